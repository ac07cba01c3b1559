/* ld, st, atom, red, cvta, isspacep, prefetch, membar and fence (PTX ISA, 9.7.9, 9.7.13). */
#include "atom.h"
#include "ops.h"
#include "parse.h"

#include <string.h>

static int space_named(const char *word)
{
	static const struct { const char *word; enum space space; } names[] = {
		{".global", SP_GLOBAL}, {".shared", SP_SHARED}, {".shared::cta", SP_SHARED},
		{".local", SP_LOCAL}, {".const", SP_CONST}, {".param", SP_PARAM},
		{".param::entry", SP_PARAM}, {".param::func", SP_PARAM},
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i].word, word) == 0)
			return (int)names[i].space;
	return -1;
}

/* Ordering, scope and cache hints: one thread of the host does all of them. */
static bool is_hint(const char *word)
{
	static const char *const hints[] = {
		".weak", ".relaxed", ".acquire", ".release", ".acq_rel", ".volatile", ".cta", ".cluster",
		".gpu", ".sys", ".ca", ".cg", ".cs", ".lu", ".cv", ".wb", ".wt", ".nc", ".sc", ".mmio",
	};

	for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
		if (strcmp(hints[i], word) == 0)
			return true;
	return strncmp(word, ".L1::", 5) == 0 || strncmp(word, ".L2::", 5) == 0;
}

/* The address operand: settles in->a, imm, wide_address and space. */
void decode_address(struct parser *p, const struct statement *s, struct insn *in, struct operand *o)
{
	if (o->kind != OP_MEMORY)
		fail_decode(p, s, "An address in brackets is needed");
	struct operand *base = o->base;

	in->imm = o->offset;
	in->wide_address = true;
	if (base->kind == OP_REG) {
		if (type_size(base->type) < 4 || !types_agree(base->type, T_U32))
			fail_decode(p, s, "Arguments mismatch");
		in->a = base->row;
		in->wide_address = type_size(base->type) == 8;
		if (!in->wide_address && (in->space == SP_GLOBAL || in->space == SP_GENERIC))
			fail_decode(p, s, "A 32-bit address");
		if (in->space == SP_PARAM && !p->f->entry)
			in->space = SP_LOCAL;
		return;
	}
	if (base->kind == OP_INT) {
		in->a = const64(p->m, base->bits);
		return;
	}
	if (base->kind != OP_VAR)
		fail_decode(p, s, base->kind == OP_LABEL ? "Unknown symbol" : "Arguments mismatch");
	struct var *v = base->var;
	bool frame = v->space == SP_LOCAL; /* .local, and .param of device functions */

	if (in->space != SP_GENERIC && in->space != v->space &&
	    !(frame && (in->space == SP_PARAM || in->space == SP_LOCAL)))
		fail_decode(p, s, "State space mismatch");
	in->space = v->space;
	if (v->space == SP_SHARED)
		in->a = var_row(p, v, true);
	else if (v->space == SP_GLOBAL || v->space == SP_CONST)
		in->a = const64(p->m, v->address);
	else if (v->space == SP_REG)
		fail_decode(p, s, "Arguments mismatch");
	else
		in->imm += (int64_t)v->address;
}

/* A register of ld or st may be wider than the type, but not for floats. */
static ref value_row(struct parser *p, const struct statement *s, struct operand *o, enum type t,
                     bool dest, bool *wide)
{
	*wide = type_size(t) == 8;
	if (o->kind == OP_SINK && dest)
		return new_row(p, t);
	if (o->kind != OP_REG) {
		if (dest)
			fail_decode(p, s, "Arguments mismatch");
		return decode_source(p, s, o, t);
	}
	bool real = t == T_F32 || t == T_F64;

	if (type_size(o->type) < type_size(t) || !types_agree(o->type, t) ||
	    (real && type_size(o->type) != type_size(t)))
		fail_decode(p, s, "Arguments mismatch");
	*wide = type_size(o->type) == 8;
	return o->row;
}

static void decode_load_store(struct parser *p, struct statement *s)
{
	bool store = strcmp(s->word[0], "st") == 0;
	struct insn in = {.a = REF_NONE, .space = SP_GENERIC, .vec = 1};
	uint32_t i = 1;
	int space;

	for (; i < s->nwords; i++) {
		if ((space = space_named(s->word[i])) >= 0)
			in.space = (uint8_t)space;
		else if (strcmp(s->word[i], ".v2") == 0)
			in.vec = 2;
		else if (strcmp(s->word[i], ".v4") == 0)
			in.vec = 4;
		else if (!is_hint(s->word[i]))
			break;
	}
	enum type t = i + 1 == s->nwords ? type_named(s->word[i]) : T_NONE;

	if (t == T_NONE || t == T_PRED || t == T_F16X2 || t == T_BF16X2 || t == T_BF16 || t == T_F16 ||
	    type_size(t) * in.vec > 16 || (store && in.space == SP_CONST))
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, 2, s->nops > 2 ? 3 : 2); /* a cache policy may follow */
	struct operand *address = s->op[store ? 0 : 1], *value = s->op[store ? 1 : 0];
	bool wide = false, first = true, mixed = false;

	decode_address(p, s, &in, address);
	if (store && in.space == SP_PARAM)
		fail_decode(p, s, "State space mismatch");
	if ((in.vec > 1) != (value->kind == OP_VECTOR) || (value->kind == OP_VECTOR && value->n != in.vec))
		fail_decode(p, s, "Arguments mismatch");
	for (unsigned k = 0; k < in.vec; k++) {
		struct operand *o = value->kind == OP_VECTOR ? &value->item[k] : value;
		bool w;

		in.x[k] = value_row(p, s, o, t, !store, &w);
		mixed |= !first && w != wide;
		wide = w;
		first = false;
	}
	if (mixed)
		fail_decode(p, s, "Arguments mismatch");
	op_fn *fn = store ? op_st : op_ld;
	bool plain = in.vec == 1 && wide == (type_size(t) == 8);

	if (plain && type_size(t) == 4)
		fn = store ? op_st32 : op_ld32;
	else if (plain && type_size(t) == 8)
		fn = store ? op_st64 : op_ld64;
	if (!store && in.space == SP_PARAM && in.a == REF_NONE)
		fn = op_ld_param;
	struct insn *out = emit(p, fn, s->line, s->guard);

	out->a = in.a;
	out->imm = in.imm;
	out->wide_address = in.wide_address;
	out->space = in.space;
	out->vec = in.vec;
	memcpy(out->x, in.x, in.vec * sizeof in.x[0]);
	out->d = in.x[0];
	out->type = t;
	out->size = (uint8_t)type_size(t);
	out->sub = wide;
}

static const struct { const char *word; uint8_t op; } atoms[] = {
	{".add", ATOM_ADD}, {".min", ATOM_MIN}, {".max", ATOM_MAX}, {".and", ATOM_AND}, {".or", ATOM_OR},
	{".xor", ATOM_XOR}, {".exch", ATOM_EXCH}, {".cas", ATOM_CAS}, {".inc", ATOM_INC},
	{".dec", ATOM_DEC},
};

static bool atom_has(uint8_t op, enum type t)
{
	bool bits = t == T_B32 || t == T_B64, ints = t == T_U32 || t == T_S32 || t == T_U64 || t == T_S64;

	switch (op) {
	case ATOM_ADD: return ints || t == T_F32 || t == T_F64 || t == T_F16X2 || t == T_BF16X2 || t == T_F16 || t == T_BF16;
	case ATOM_MIN: case ATOM_MAX: return ints;
	case ATOM_INC: case ATOM_DEC: return t == T_U32;
	case ATOM_CAS: return bits || t == T_B16;
	default: return bits;
	}
}

static void decode_atom(struct parser *p, struct statement *s)
{
	bool red = strcmp(s->word[0], "red") == 0;
	struct insn in = {.a = REF_NONE, .space = SP_GENERIC};
	uint32_t i = 1, k = sizeof atoms / sizeof *atoms;
	int space;

	for (; i < s->nwords; i++) {
		if ((space = space_named(s->word[i])) >= 0)
			in.space = (uint8_t)space;
		else if (!is_hint(s->word[i]))
			break;
	}
	for (k = 0; i < s->nwords && k < sizeof atoms / sizeof *atoms; k++)
		if (strcmp(atoms[k].word, s->word[i]) == 0)
			break;
	i++;
	while (i < s->nwords && (strcmp(s->word[i], ".noftz") == 0 || is_hint(s->word[i])))
		i++;
	enum type t = i + 1 == s->nwords ? type_named(s->word[i]) : T_NONE;

	if (k == sizeof atoms / sizeof *atoms || !atom_has(atoms[k].op, t) ||
	    (in.space != SP_GENERIC && in.space != SP_GLOBAL && in.space != SP_SHARED) ||
	    (red && (atoms[k].op == ATOM_CAS || atoms[k].op == ATOM_EXCH)))
		fail_decode(p, s, "Unknown modifier");
	uint32_t n = (red ? 2 : 3) + (atoms[k].op == ATOM_CAS), at = red ? 0 : 1;

	need_operands(p, s, n, n);
	ref d = red ? REF_NONE : decode_dest(p, s, s->op[0], t);

	decode_address(p, s, &in, s->op[at]);
	ref b = decode_source(p, s, s->op[at + 1], t);
	ref c = atoms[k].op == ATOM_CAS ? decode_source(p, s, s->op[at + 2], t) : REF_NONE;
	struct insn *out = emit(p, op_atom, s->line, s->guard);

	out->a = in.a;
	out->imm = in.imm;
	out->wide_address = in.wide_address;
	out->space = in.space;
	out->d = d;
	out->b = b;
	out->c = c;
	out->type = t;
	out->size = (uint8_t)type_size(t);
	out->sub = atoms[k].op;
}

static void decode_cvta(struct parser *p, struct statement *s)
{
	bool to = s->nwords == 4 && strcmp(s->word[1], ".to") == 0;
	int space = s->nwords == (to ? 4u : 3u) ? space_named(s->word[to ? 2 : 1]) : -1;
	enum type t = space >= 0 ? type_named(s->word[s->nwords - 1]) : T_NONE;

	need_operands(p, s, 2, 2);
	if (t != T_U64)
		fail_decode(p, s, "Unknown modifier");
	if (s->op[1]->kind == OP_VAR && s->op[1]->var->space != (enum space)space &&
	    !(s->op[1]->var->space == SP_LOCAL && space == SP_PARAM))
		fail_decode(p, s, "State space mismatch");
	ref d = decode_dest(p, s, s->op[0], t), a = decode_source(p, s, s->op[1], t);
	bool same = space == SP_GLOBAL || space == SP_CONST;
	struct insn *in = emit(p, same ? op_mov64 : to ? op_cvta_to : op_cvta_from, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->space = (uint8_t)(space == SP_PARAM && !p->f->entry ? SP_LOCAL : space);
}

static void decode_isspacep(struct parser *p, struct statement *s)
{
	int space = s->nwords == 2 ? space_named(s->word[1]) : -1;

	need_operands(p, s, 2, 2);
	if (space < 0)
		fail_decode(p, s, "Unknown modifier");
	ref d = decode_pred(p, s, s->op[0]), a = decode_source(p, s, s->op[1], T_U64);
	struct insn *in = emit(p, op_isspacep, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->space = (uint8_t)space;
}

void decode_memory(struct parser *p, struct statement *s)
{
	const char *base = s->word[0];

	if (strcmp(base, "ld") == 0 || strcmp(base, "st") == 0 || strcmp(base, "ldu") == 0) {
		decode_load_store(p, s);
	} else if (strcmp(base, "atom") == 0 || strcmp(base, "red") == 0) {
		decode_atom(p, s);
	} else if (strcmp(base, "cvta") == 0) {
		decode_cvta(p, s);
	} else if (strcmp(base, "isspacep") == 0) {
		decode_isspacep(p, s);
	} else if (strncmp(base, "prefetch", 8) == 0) {
		need_operands(p, s, 1, 1);
		if (s->op[0]->kind != OP_MEMORY)
			fail_decode(p, s, "An address in brackets is needed");
		emit(p, op_nop, s->line, s->guard);
	} else { /* membar, fence */
		static const char *const known[] = {".cta", ".gl", ".sys", ".gpu", ".cluster", ".sc",
		                                    ".acq_rel", ".acquire", ".release"};

		need_operands(p, s, 0, 0);
		for (uint32_t i = 1; i < s->nwords; i++) {
			bool found = false;

			for (size_t k = 0; k < sizeof known / sizeof *known; k++)
				found |= strcmp(known[k], s->word[i]) == 0;
			if (!found)
				fail_decode(p, s, "Unknown modifier");
		}
		if (s->nwords < 2)
			fail_decode(p, s, "Modifiers are missing");
		emit(p, op_fence, s->line, s->guard);
	}
}
