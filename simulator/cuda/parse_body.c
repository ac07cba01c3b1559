/* The body of a function: scopes, registers, labels and instructions. */
#include "ops.h"
#include "parse.h"

#include <string.h>

#define SCOPE_DEPTH 64
#define CODE_LIMIT (1u << 20) /* instructions of one function */

struct insn *emit(struct parser *p, op_fn *fn, uint32_t line, ref guard)
{
	struct func *f = p->f;

	if (f->ncode == f->capcode) {
		uint32_t cap = f->capcode ? f->capcode * 2 : 64;

		if (cap > CODE_LIMIT)
			ptx_fail(p->m, line, PTX_OUT_OF_MEMORY, "'%s' has too many instructions", f->name);
		struct insn *code = ptx_alloc(p->m, cap * sizeof *code);

		if (f->ncode)
			memcpy(code, f->code, f->ncode * sizeof *code);
		f->code = code;
		f->capcode = cap;
	}
	struct insn *in = &f->code[f->ncode++];

	*in = (struct insn){.fn = fn, .guard = guard, .line = line, .d = REF_NONE, .a = REF_NONE,
	                    .b = REF_NONE, .c = REF_NONE, .e = REF_NONE,
	                    .x = {REF_NONE, REF_NONE, REF_NONE, REF_NONE}};
	return in;
}

struct var *find_scoped_var(struct parser *p, const char *name, size_t len)
{
	struct var *v = NULL;

	for (struct scope *s = p->scope; s && !v; s = s->up)
		v = find_var(s->vars, name, len);
	if (!v && p->f)
		v = find_var(p->f->params, name, len);
	if (!v && p->f)
		v = find_var(p->f->rets, name, len);
	return v ? v : find_var(p->m->globals, name, len);
}

static void enter(struct parser *p)
{
	struct scope *s = ptx_alloc(p->m, sizeof *s);

	if (++p->depth > SCOPE_DEPTH)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "blocks are nested too deeply");
	s->up = p->scope;
	p->scope = s;
	parse_expect(p, "{");
}

static void parse_registers(struct parser *p) /* .reg .b32 %r<10>, x; */
{
	char type[16] = "";

	if (p->t.kind == TK_DOT && p->t.len < sizeof type)
		memcpy(type, p->t.s, p->t.len);
	enum type t = type_named(type);
	uint32_t vector = strcmp(type, ".v2") == 0 || strcmp(type, ".v4") == 0;

	if (vector)
		ptx_fail(p->m, p->t.line, PTX_NOT_SUPPORTED, "the simulator does not execute '.reg %s'", type);
	if (t == T_NONE)
		parse_wrong(p, "a type of register");
	parse_next(p);
	do {
		struct regs *d = ptx_alloc(p->m, sizeof *d);

		if (p->t.kind != TK_WORD)
			parse_wrong(p, "the name of a register");
		d->prefix = p->t.s;
		d->prefix_len = p->t.len;
		d->type = t;
		parse_next(p);
		if (parse_accept(p, "<")) {
			d->count = (uint32_t)parse_uint(p, 1u << 24);
			if (d->count == 0)
				ptx_fail(p->m, p->t.line, PTX_INVALID, "a family of no registers");
			parse_expect(p, ">");
		}
		d->next = p->scope->regs;
		p->scope->regs = d;
	} while (parse_accept(p, ","));
	parse_expect(p, ";");
}

static struct label *find_label(struct scope *s, const char *name, uint32_t len)
{
	for (; s; s = s->up)
		for (struct label *l = s->labels; l; l = l->next)
			if (l->len == len && memcmp(l->name, name, len) == 0)
				return l;
	return NULL;
}

static void parse_branch_targets(struct parser *p, struct label *l)
{
	uint32_t n = 0;

	l->table = ptx_alloc(p->m, sizeof *l->table);
	do {
		if (p->t.kind != TK_WORD || n == 1024)
			parse_wrong(p, "a label");
		struct fixup *fix = ptx_alloc(p->m, sizeof *fix);

		*fix = (struct fixup){.line = p->t.line, .name = p->t.s, .len = p->t.len, .scope = p->scope,
		                      .table = l->table, .entry = n, .next = p->fixups};
		p->fixups = fix;
		n++;
		parse_next(p);
	} while (parse_accept(p, ","));
	parse_expect(p, ";");
	l->table->n = n;
	l->table->target = ptx_alloc(p->m, n * sizeof *l->table->target);
}

static void define_label(struct parser *p, struct token name)
{
	struct label *l = ptx_alloc(p->m, sizeof *l);

	for (struct label *k = p->scope->labels; k; k = k->next)
		if (k->len == name.len && memcmp(k->name, name.s, name.len) == 0)
			ptx_fail(p->m, name.line, PTX_INVALID, "label '%.*s' is defined twice", (int)name.len, name.s);
	*l = (struct label){.name = name.s, .len = name.len, .next = p->scope->labels};
	p->scope->labels = l;
	if (parse_accept(p, ".branchtargets")) {
		parse_branch_targets(p, l);
		return;
	}
	if (parse_accept(p, ".callprototype") || parse_accept(p, ".calltargets")) {
		while (p->t.kind != TK_END && !token_is(&p->t, ";"))
			parse_next(p);
		parse_expect(p, ";");
		return;
	}
	l->defined = true;
	l->index = p->f->ncode;
	emit(p, op_label, name.line, REF_NONE);
}

static void resolve_labels(struct parser *p)
{
	for (struct fixup *fix = p->fixups; fix; fix = fix->next) {
		struct label *l = find_label(fix->scope, fix->name, fix->len);

		if (!l || !(fix->table ? l->defined : l->defined || l->table))
			ptx_fail(p->m, fix->line, PTX_INVALID, "Label '%.*s' is not defined",
			         fix->len > 60 ? 60 : (int)fix->len, fix->name);
		if (fix->table)
			fix->table->target[fix->entry] = &p->f->code[l->index];
		else if (p->f->code[fix->insn].fn == op_brx && l->table)
			p->f->code[fix->insn].table = l->table;
		else if (l->defined && p->f->code[fix->insn].fn != op_brx)
			p->f->code[fix->insn].target = &p->f->code[l->index];
		else
			ptx_fail(p->m, fix->line, PTX_INVALID, "'%.*s' is the wrong kind of label", (int)fix->len,
			         fix->name);
	}
}

static void parse_opcode(struct parser *p, struct statement *s)
{
	char text[160];
	size_t n = 0;

	if (p->t.kind != TK_WORD)
		parse_wrong(p, "an instruction");
	do {
		if (n + p->t.len + 1 >= sizeof text || s->nwords == MAX_WORDS)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "an opcode is too long");
		s->word[s->nwords++] = ptx_copy(p->m, p->t.s, p->t.len);
		memcpy(text + n, p->t.s, p->t.len);
		n += p->t.len;
		parse_next(p);
	} while (p->t.kind == TK_DOT);
	s->opcode = ptx_copy(p->m, text, n);
}

static void parse_instruction(struct parser *p)
{
	struct statement s = {.line = p->t.line, .guard = REF_NONE};

	if (parse_accept(p, "@")) {
		bool not = parse_accept(p, "!");
		struct operand *o =
			p->t.kind == TK_WORD ? parse_register(p, p->t.s, p->t.len) : NULL;

		if (!o || o->kind != OP_PRED)
			parse_wrong(p, "a predicate");
		s.guard = o->row | not;
		parse_next(p);
	}
	parse_opcode(p, &s);
	refuse_instruction(p, &s);
	while (!token_is(&p->t, ";")) {
		if (s.nops == MAX_OPERANDS)
			parse_wrong(p, "';'");
		s.op[s.nops++] = parse_operand(p);
		if (!parse_accept(p, ","))
			break;
	}
	parse_expect(p, ";");
	decode(p, &s);
}

static void parse_location(struct parser *p) /* .loc 1 12 0[, function_name $L, inlined_at 1 2 3] */
{
	uint32_t line = p->t.line;

	while (p->t.kind != TK_END && p->t.line == line && !token_is(&p->t, "}"))
		parse_next(p);
}

static void parse_statement(struct parser *p)
{
	static const struct { const char *name; enum space space; } spaces[] = {
		{".local", SP_LOCAL}, {".param", SP_LOCAL}, {".shared", SP_SHARED},
		{".global", SP_GLOBAL}, {".const", SP_CONST},
	};

	if (token_is(&p->t, "{")) {
		enter(p);
		return;
	}
	if (parse_accept(p, ".reg")) {
		parse_registers(p);
		return;
	}
	if (parse_accept(p, ".loc")) {
		parse_location(p);
		return;
	}
	if (parse_accept(p, ".pragma")) {
		while (p->t.kind == TK_STRING || token_is(&p->t, ","))
			parse_next(p);
		parse_expect(p, ";");
		return;
	}
	bool external = parse_accept(p, ".extern");

	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
		if (parse_accept(p, spaces[i].name)) {
			parse_variable(p, spaces[i].space, external ? EXTERNAL : LOCAL);
			parse_expect(p, ";");
			return;
		}
	}
	if (p->t.kind == TK_WORD) {
		struct lexer ahead = p->lx;
		struct token name = p->t, colon = lex_next(&ahead);

		if (token_is(&colon, ":")) {
			parse_next(p);
			parse_next(p);
			define_label(p, name);
			return;
		}
	}
	parse_instruction(p);
}

/* Parameters that are registers become registers of the body. */
static void bind_parameters(struct parser *p)
{
	for (int returns = 0; returns < 2; returns++) {
		for (struct var *v = returns ? p->f->rets : p->f->params; v; v = v->next) {
			if (v->space != SP_REG)
				continue;
			struct regs *d = ptx_alloc(p->m, sizeof *d);

			*d = (struct regs){.prefix = v->name, .prefix_len = (uint32_t)strlen(v->name),
			                   .type = v->type, .next = p->scope->regs};
			p->scope->regs = d;
			v->reg = parse_register(p, d->prefix, d->prefix_len)->row;
		}
	}
}

void parse_body(struct parser *p)
{
	p->scope = NULL;
	p->fixups = NULL;
	p->depth = 0;
	enter(p);
	bind_parameters(p);
	while (p->scope) {
		if (token_is(&p->t, "}")) {
			p->scope = p->scope->up;
			p->depth--;
			parse_next(p);
		} else {
			parse_statement(p);
		}
	}
	emit(p, op_ret, p->t.line, REF_NONE);
	resolve_labels(p);
}
