/* Branches, calls, barriers and warp collectives (PTX ISA, 9.7.12 and 9.7.13). */
#include "collective.h"
#include "ops.h"
#include "parse.h"

#include <string.h>

static bool word_is(const struct statement *s, uint32_t i, const char *word)
{
	return i < s->nwords && strcmp(s->word[i], word) == 0;
}

static int choose(const struct statement *s, uint32_t i, const char *const *list, int n)
{
	for (int k = 0; k < n; k++)
		if (word_is(s, i, list[k]))
			return k;
	return -1;
}

static void branch_to(struct parser *p, const struct statement *s, struct operand *o)
{
	struct fixup *fix = ptx_alloc(p->m, sizeof *fix);

	if (o->kind != OP_LABEL)
		fail_decode(p, s, "A label is needed");
	*fix = (struct fixup){.insn = p->f->ncode - 1, .line = s->line, .name = o->name, .len = o->len,
	                      .scope = p->scope, .next = p->fixups};
	p->fixups = fix;
}

static void decode_branch(struct parser *p, struct statement *s)
{
	bool indexed = strcmp(s->word[0], "brx") == 0;
	uint32_t i = 1;

	if (indexed && !word_is(s, i++, ".idx"))
		fail_decode(p, s, "Unknown modifier");
	if (word_is(s, i, ".uni"))
		i++;
	if (i != s->nwords)
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, indexed ? 2 : 1, indexed ? 2 : 1);
	ref a = indexed ? decode_source(p, s, s->op[0], T_U32) : REF_NONE;

	emit(p, indexed ? op_brx : op_bra, s->line, s->guard)->a = a;
	branch_to(p, s, s->op[indexed ? 1 : 0]);
}

/* The arguments or results of a call, checked against the function where it is known. */
static struct arg *decode_args(struct parser *p, const struct statement *s, struct operand *list,
                               const struct var *formal, bool known, bool results)
{
	struct arg *args = ptx_alloc(p->m, (list ? list->n : 0) * sizeof *args);

	for (uint32_t i = 0; list && i < list->n; i++, formal = formal ? formal->next : NULL) {
		struct operand *o = &list->item[i];

		if (known && !formal)
			fail_decode(p, s, "Too many arguments");
		if (o->kind == OP_VAR && o->var->space == SP_LOCAL) {
			args[i].space = SP_LOCAL;
			args[i].offset = o->var->address;
			args[i].size = o->var->size;
		} else if (known && formal->space == SP_REG) {
			args[i].space = SP_REG;
			args[i].type = formal->type;
			args[i].size = type_size(formal->type);
			args[i].reg = results ? decode_dest(p, s, o, formal->type)
			                      : decode_source(p, s, o, formal->type);
		} else {
			fail_decode(p, s, "Arguments mismatch");
		}
		if (known && (args[i].size != formal->size || (args[i].space == SP_REG) != (formal->space == SP_REG)))
			fail_decode(p, s, "Arguments mismatch");
	}
	if (known && formal)
		fail_decode(p, s, "Too few arguments");
	return args;
}

static void decode_call(struct parser *p, struct statement *s)
{
	struct operand *rets = NULL, *args = NULL, *target;
	uint32_t i = 0;

	if (s->nwords > 2 || (s->nwords == 2 && !word_is(s, 1, ".uni")))
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, 1, 4);
	if (s->op[i]->kind == OP_LIST)
		rets = s->op[i++];
	if (i == s->nops)
		fail_decode(p, s, "A function is needed");
	target = s->op[i++];
	if (i < s->nops && s->op[i]->kind == OP_LIST)
		args = s->op[i++];
	bool direct = target->kind == OP_FUNC;

	if (target->kind == OP_LABEL)
		ptx_fail(p->m, s->line, PTX_INVALID, "Unknown symbol '%.*s'",
		         target->len > 60 ? 60 : (int)target->len, target->name);
	if (i + (direct ? 0 : 1) != s->nops || (!direct && target->kind != OP_REG) ||
	    (direct && target->func->entry))
		fail_decode(p, s, "Arguments mismatch");
	struct func *f = direct ? target->func : NULL;
	struct call *call = ptx_alloc(p->m, sizeof *call);

	call->func = f;
	call->nargs = args ? args->n : 0;
	call->nrets = rets ? rets->n : 0;
	call->args = decode_args(p, s, args, f ? f->params : NULL, direct, false);
	call->rets = decode_args(p, s, rets, f ? f->rets : NULL, direct, true);
	ref a = direct ? REF_NONE : decode_source(p, s, target, T_U64);
	struct insn *in = emit(p, op_call, s->line, s->guard);

	in->call = call;
	in->a = a;
	p->f->calls = true;
}

static void decode_bar_red(struct parser *p, struct statement *s, uint32_t i)
{
	static const char *const ops[] = {".popc", ".and", ".or"};
	int op = choose(s, i, ops, 3);
	bool popc = op == RED_POPC;

	if (word_is(s, i + 1, ".aligned"))
		i++;
	if (op < 0 || !word_is(s, i + 1, popc ? ".u32" : ".pred") || i + 2 != s->nwords)
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, 3, 4);
	ref d = popc ? decode_dest(p, s, s->op[0], T_U32) : decode_pred(p, s, s->op[0]);
	ref a = decode_source(p, s, s->op[1], T_U32);
	ref b = s->nops == 4 ? decode_source(p, s, s->op[2], T_U32) : REF_NONE;
	ref c = decode_pred(p, s, s->op[s->nops - 1]);
	struct insn *in = emit(p, op_barrier_red, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->b = b;
	in->c = c;
	in->sub = (uint8_t)op;
}

static void decode_barrier(struct parser *p, struct statement *s)
{
	uint32_t i = 1;

	if (word_is(s, 1, ".warp")) {
		if (s->nwords != 3 || !word_is(s, 2, ".sync"))
			fail_decode(p, s, "Unknown modifier");
		need_operands(p, s, 1, 1);
		ref mask = decode_source(p, s, s->op[0], T_B32);

		emit(p, op_warp_sync, s->line, s->guard)->e = mask;
		return;
	}
	if (word_is(s, i, ".cta"))
		i++;
	if (word_is(s, i, ".red")) {
		decode_bar_red(p, s, i + 1);
		return;
	}
	bool arrive = word_is(s, i, ".arrive");

	if (!arrive && !word_is(s, i, ".sync"))
		fail_decode(p, s, "Unknown modifier");
	if (word_is(s, ++i, ".aligned"))
		i++;
	if (i != s->nwords)
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, arrive ? 2 : 1, 2);
	ref a = decode_source(p, s, s->op[0], T_U32);
	ref b = s->nops == 2 ? decode_source(p, s, s->op[1], T_U32) : REF_NONE;
	struct insn *in = emit(p, arrive ? op_arrive : op_barrier, s->line, s->guard);

	in->a = a;
	in->b = b;
}

/* The mask of .sync, the last operand; without .sync, who is there takes part. */
static ref decode_members(struct parser *p, const struct statement *s, bool sync, uint32_t at)
{
	need_operands(p, s, at + sync, at + sync);
	return sync ? decode_source(p, s, s->op[at], T_B32) : REF_NONE;
}

/* Threads of a warp part from sm_70 on: who takes part must be said. */
static void need_sync(struct parser *p, const struct statement *s, bool sync)
{
	if (!sync && p->m->target >= 70 && p->m->version >= 64)
		ptx_fail(p->m, s->line, PTX_INVALID,
		         "Instruction '%s' without '.sync' is not supported on .target sm_70 and higher from PTX ISA version 6.4",
		         s->word[0]);
}

static void decode_vote(struct parser *p, struct statement *s)
{
	static const char *const modes[] = {".all", ".any", ".uni", ".ballot"};
	bool sync = word_is(s, 1, ".sync");
	int mode = choose(s, 1 + sync, modes, 4);

	if (mode < 0 || s->nwords != 3u + sync ||
	    !word_is(s, 2 + sync, mode == VOTE_BALLOT ? ".b32" : ".pred"))
		fail_decode(p, s, "Unknown modifier");
	need_sync(p, s, sync);
	ref members = decode_members(p, s, sync, 2);
	ref d = mode == VOTE_BALLOT ? decode_dest(p, s, s->op[0], T_B32) : decode_pred(p, s, s->op[0]);
	ref c = decode_pred(p, s, s->op[1]);
	struct insn *in = emit(p, op_vote, s->line, s->guard);

	in->d = d;
	in->c = c;
	in->e = members;
	in->sub = (uint8_t)mode;
}

static ref second_pred(struct parser *p, const struct statement *s)
{
	struct operand *o = s->op[0]->second;

	return o && o->kind != OP_SINK ? decode_pred(p, s, o) : REF_NONE;
}

static void decode_shuffle(struct parser *p, struct statement *s)
{
	static const char *const modes[] = {".up", ".down", ".bfly", ".idx"};
	bool sync = word_is(s, 1, ".sync");
	int mode = choose(s, 1 + sync, modes, 4);

	if (mode < 0 || s->nwords != 3u + sync || !word_is(s, 2 + sync, ".b32"))
		fail_decode(p, s, "Unknown modifier");
	need_sync(p, s, sync);
	ref members = decode_members(p, s, sync, 4);
	ref d = decode_dest(p, s, s->op[0], T_B32), x = second_pred(p, s);
	ref a = decode_source(p, s, s->op[1], T_B32), b = decode_source(p, s, s->op[2], T_B32),
	    c = decode_source(p, s, s->op[3], T_B32);
	struct insn *in = emit(p, op_shfl, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->b = b;
	in->c = c;
	in->e = members;
	in->x[0] = x;
	in->sub = (uint8_t)mode;
}

static void decode_match(struct parser *p, struct statement *s)
{
	bool all = word_is(s, 1, ".all");
	enum type t = s->nwords == 4 ? type_named(s->word[3]) : T_NONE;

	if ((!all && !word_is(s, 1, ".any")) || !word_is(s, 2, ".sync") || (t != T_B32 && t != T_B64))
		fail_decode(p, s, "Unknown modifier");
	ref members = decode_members(p, s, true, 2);
	ref d = decode_dest(p, s, s->op[0], T_B32), x = second_pred(p, s),
	    a = decode_source(p, s, s->op[1], t);
	struct insn *in = emit(p, op_match, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->e = members;
	in->x[0] = x;
	in->size = (uint8_t)type_size(t);
	in->sub = all;
}

static void decode_redux(struct parser *p, struct statement *s)
{
	static const char *const ops[] = {".add", ".min", ".max", ".and", ".or", ".xor"};
	int op = choose(s, 2, ops, 6);
	enum type t = s->nwords == 4 ? type_named(s->word[3]) : T_NONE;
	bool bits = op >= 3;

	if (!word_is(s, 1, ".sync") || op < 0 || (bits ? t != T_B32 : t != T_U32 && t != T_S32))
		fail_decode(p, s, "Unknown modifier");
	ref members = decode_members(p, s, true, 2);
	ref d = decode_dest(p, s, s->op[0], t), a = decode_source(p, s, s->op[1], t);
	struct insn *in = emit(p, op_redux, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->e = members;
	in->type = t;
	in->sub = (uint8_t)op;
}

static void decode_elect(struct parser *p, struct statement *s)
{
	if (!word_is(s, 1, ".sync") || s->nwords != 2)
		fail_decode(p, s, "Unknown modifier");
	ref members = decode_members(p, s, true, 1);
	ref d = decode_dest(p, s, s->op[0], T_B32), x = second_pred(p, s);
	struct insn *in = emit(p, op_elect, s->line, s->guard);

	in->d = d;
	in->e = members;
	in->x[0] = x;
}

static void decode_simple(struct parser *p, struct statement *s)
{
	const char *base = s->word[0];

	if (strcmp(base, "ret") == 0 || strcmp(base, "exit") == 0 || strcmp(base, "trap") == 0 ||
	    strcmp(base, "brkpt") == 0) {
		if (s->nwords > 1 && !(strcmp(base, "ret") == 0 && s->nwords == 2 && word_is(s, 1, ".uni")))
			fail_decode(p, s, "Unknown modifier");
		need_operands(p, s, 0, 0);
		emit(p, base[0] == 'r' ? op_ret : base[0] == 'e' ? op_exit : op_trap, s->line, s->guard);
	} else if (strcmp(base, "activemask") == 0) {
		if (s->nwords != 2 || !word_is(s, 1, ".b32"))
			fail_decode(p, s, "Unknown modifier");
		need_operands(p, s, 1, 1);
		ref d = decode_dest(p, s, s->op[0], T_B32);

		emit(p, op_activemask, s->line, s->guard)->d = d;
	} else { /* nanosleep.u32, pmevent: no effect that a program can rely on */
		need_operands(p, s, 1, 1);
		decode_source(p, s, s->op[0], T_U32);
		emit(p, op_nop, s->line, s->guard);
	}
}

void decode_control(struct parser *p, struct statement *s)
{
	static const struct { const char *base; void (*fn)(struct parser *, struct statement *); } list[] = {
		{"bra", decode_branch}, {"brx", decode_branch}, {"call", decode_call}, {"bar", decode_barrier},
		{"barrier", decode_barrier}, {"vote", decode_vote}, {"shfl", decode_shuffle},
		{"match", decode_match}, {"redux", decode_redux}, {"elect", decode_elect},
	};

	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		if (strcmp(list[i].base, s->word[0]) == 0) {
			list[i].fn(p, s);
			return;
		}
	}
	decode_simple(p, s);
}
