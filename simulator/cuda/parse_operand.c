/* Operands of an instruction (PTX ISA, chapter 6). */
#include "parse.h"
#include "special.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_name(const char *s, uint32_t len)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (uint32_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)s[i]) * 0x100000001b3ull;
	return h;
}

/* Is name one of the registers that d declares? */
static bool declares(const struct regs *d, const char *name, uint32_t len)
{
	uint64_t n = 0;

	if (len < d->prefix_len || memcmp(name, d->prefix, d->prefix_len) != 0)
		return false;
	if (d->count == 0)
		return len == d->prefix_len;
	if (len == d->prefix_len || len - d->prefix_len > 10 ||
	    (name[d->prefix_len] == '0' && len - d->prefix_len > 1))
		return false;
	for (uint32_t i = d->prefix_len; i < len; i++) {
		if (name[i] < '0' || name[i] > '9')
			return false;
		n = n * 10 + (uint64_t)(name[i] - '0');
	}
	return n < d->count;
}

static struct operand *new_operand(struct parser *p, enum operand_kind kind)
{
	struct operand *o = ptx_alloc(p->m, sizeof *o);

	o->kind = kind;
	return o;
}

struct operand *parse_register(struct parser *p, const char *name, uint32_t len)
{
	uint64_t h = hash_name(name, len);

	for (struct scope *s = p->scope; s; s = s->up) {
		struct reg *r = s->used[h % 64];

		while (r && !(r->hash == h && r->len == len && memcmp(r->name, name, len) == 0))
			r = r->next;
		for (struct regs *d = r ? NULL : s->regs; d; d = d->next) {
			if (!declares(d, name, len))
				continue;
			r = ptx_alloc(p->m, sizeof *r);
			r->name = name;
			r->len = len;
			r->hash = h;
			r->type = d->type;
			r->row = new_row(p, d->type);
			r->next = s->used[h % 64];
			s->used[h % 64] = r;
			break;
		}
		if (r) {
			struct operand *o = new_operand(p, r->type == T_PRED ? OP_PRED : OP_REG);

			o->type = r->type;
			o->row = r->row;
			return o;
		}
		/* A variable of an inner scope hides a register of an outer one. */
		if (find_var(s->vars, name, len))
			return NULL;
	}
	return NULL;
}

static int64_t parse_offset(struct parser *p)
{
	bool minus = false;

	while (token_is(&p->t, "+") || token_is(&p->t, "-")) {
		minus ^= token_is(&p->t, "-");
		parse_next(p);
	}
	uint64_t n = parse_uint(p, (uint64_t)1 << 48);

	return minus ? -(int64_t)n : (int64_t)n;
}

static struct operand *parse_word(struct parser *p)
{
	const char *name = p->t.s;
	uint32_t len = p->t.len;
	struct operand *o = parse_register(p, name, len);

	if (o) {
		parse_next(p);
		return o;
	}
	if (name[0] == '%') {
		char text[48] = "";
		uint32_t line = p->t.line;

		memcpy(text, name, len < 40 ? len : 40);
		parse_next(p);
		if (p->t.kind == TK_DOT && p->t.joined && p->t.len == 2) {
			strncat(text, p->t.s, 2);
			parse_next(p);
		}
		o = new_operand(p, OP_SPECIAL);
		o->special = special_named(text);
		if (o->special < 0)
			refuse_name(p, line, text, strlen(text));
		if (o->special < 0)
			ptx_fail(p->m, line, PTX_INVALID, "Unknown symbol '%s'", text);
		return o;
	}
	if (len == 1 && name[0] == '_') {
		parse_next(p);
		return new_operand(p, OP_SINK);
	}
	if (token_is(&p->t, "WARP_SZ")) {
		parse_next(p);
		o = new_operand(p, OP_INT);
		o->bits = LANES;
		return o;
	}
	struct var *v = find_scoped_var(p, name, len);
	struct func *f = v ? NULL : find_func(p->m, name, len);

	parse_next(p);
	o = new_operand(p, v ? OP_VAR : f ? OP_FUNC : OP_LABEL);
	o->var = v;
	o->func = f;
	o->name = name;
	o->len = len;
	return o;
}

static struct operand *parse_constant(struct parser *p)
{
	bool minus = false, invert = false;

	while (token_is(&p->t, "-") || token_is(&p->t, "+") || token_is(&p->t, "~")) {
		minus ^= token_is(&p->t, "-");
		invert ^= token_is(&p->t, "~");
		parse_next(p);
	}
	struct operand *o = new_operand(p, p->t.kind == TK_F32   ? OP_F32
	                                   : p->t.kind == TK_F64 ? OP_F64
	                                                         : OP_INT);
	if (p->t.kind != TK_INT && p->t.kind != TK_F32 && p->t.kind != TK_F64)
		parse_wrong(p, "an operand");
	o->bits = p->t.bits;
	if (minus && o->kind == OP_F32)
		o->bits ^= 0x80000000u;
	else if (minus && o->kind == OP_F64)
		o->bits ^= 1ull << 63;
	else if (minus)
		o->bits = -o->bits;
	if (invert && o->kind == OP_INT)
		o->bits = ~o->bits;
	parse_next(p);
	return o;
}

static struct operand *parse_memory(struct parser *p) /* after [ */
{
	struct operand *o = new_operand(p, OP_MEMORY);

	o->base = p->t.kind == TK_WORD ? parse_word(p) : parse_constant(p);
	if (token_is(&p->t, "+") || token_is(&p->t, "-"))
		o->offset = parse_offset(p);
	parse_expect(p, "]");
	return o;
}

static struct operand *parse_items(struct parser *p, enum operand_kind kind, const char *end)
{
	struct operand *o = new_operand(p, kind);
	struct operand *items[255];

	while (!token_is(&p->t, end)) {
		if (o->n == sizeof items / sizeof *items)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "too many operands");
		if (token_is(&p->t, "{") || token_is(&p->t, "[") || token_is(&p->t, "("))
			parse_wrong(p, "an operand");
		items[o->n++] = parse_operand(p);
		if (!parse_accept(p, ","))
			break;
	}
	parse_expect(p, end);
	o->item = ptx_alloc(p->m, o->n * sizeof *o->item);
	for (uint32_t i = 0; i < o->n; i++)
		o->item[i] = *items[i];
	return o;
}

struct operand *parse_operand(struct parser *p)
{
	struct operand *o;

	if (parse_accept(p, "["))
		return parse_memory(p);
	if (parse_accept(p, "{"))
		return parse_items(p, OP_VECTOR, "}");
	if (parse_accept(p, "("))
		return parse_items(p, OP_LIST, ")");
	if (parse_accept(p, "!")) {
		if (p->t.kind != TK_WORD)
			parse_wrong(p, "a predicate");
		o = parse_word(p);
		if (o->kind != OP_PRED)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "'!' needs a predicate");
		o->row ^= 1;
		o->negated = true;
		return o;
	}
	if (p->t.kind != TK_WORD)
		return parse_constant(p);
	o = parse_word(p);
	if ((o->kind == OP_VAR || o->kind == OP_FUNC) && (token_is(&p->t, "+") || token_is(&p->t, "-")))
		o->offset = parse_offset(p);
	if (parse_accept(p, "|")) {
		if (p->t.kind != TK_WORD)
			parse_wrong(p, "a predicate");
		o->second = parse_word(p);
		if (o->second->kind != OP_PRED && o->second->kind != OP_SINK)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "'|' needs a predicate");
	}
	return o;
}
