/* A statement becomes instructions: what is common, and the plain instructions. */
#include "ops.h"
#include "parse.h"
#include "real.h"
#include "special.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void fail_decode(struct parser *p, const struct statement *s, const char *why)
{
	ptx_fail(p->m, s->line, PTX_INVALID, "%s for instruction '%s'", why, s->opcode);
}

void need_operands(struct parser *p, const struct statement *s, uint32_t least, uint32_t most)
{
	if (s->nops < least || s->nops > most)
		fail_decode(p, s, "Wrong number of operands");
}

/* The bits of constant o as type t. */
static uint64_t constant(struct parser *p, const struct statement *s, const struct operand *o,
                         enum type t)
{
	bool real = t == T_F32 || t == T_F64;

	if (o->kind == OP_INT) {
		if (real && o->bits)
			fail_decode(p, s, "An integer constant");
		return o->bits;
	}
	if (t == T_F32 || t == T_B32)
		return o->kind == OP_F32 ? o->bits : bits_of((float)double_of(o->bits));
	if (t == T_F64 || t == T_B64)
		return o->kind == OP_F64 ? o->bits : bits_of_double((double)float_of((uint32_t)o->bits));
	fail_decode(p, s, "A floating-point constant");
}

/* The address of a variable or function that is not in a thread's own frame. */
static ref symbol_row(struct parser *p, const struct statement *s, struct operand *o, bool wide)
{
	struct module *m = p->m;

	if (o->kind == OP_FUNC) {
		uint64_t address = FUNC_ADDRESS + (uint64_t)o->func->index * FUNC_STRIDE;

		return wide ? const64(m, address) : const32(m, (uint32_t)address);
	}
	struct var *v = o->var;

	if (v->space == SP_SHARED) {
		ref base = var_row(p, v, wide);

		if (o->offset == 0)
			return base;
		ref offset = wide ? const64(m, (uint64_t)o->offset) : const32(m, (uint32_t)o->offset);
		ref d = new_row(p, wide ? T_U64 : T_U32);
		struct insn *in = emit(p, wide ? op_lea64 : op_lea32, s->line, s->guard);

		in->d = d;
		in->a = base;
		in->b = offset;
		return d;
	}
	uint64_t address = v->address + (uint64_t)o->offset;

	return wide ? const64(m, address) : const32(m, (uint32_t)address);
}

/* 'i' an integer, 'f' a float, 'b' bits, which agree with both (PTX ISA, 9.2). */
static char kind_of(enum type t)
{
	switch (t) {
	case T_U8: case T_S8: case T_U16: case T_S16: case T_U32: case T_S32: case T_U64: case T_S64:
		return 'i';
	case T_F16: case T_BF16: case T_F32: case T_F16X2: case T_BF16X2: case T_F64: return 'f';
	default: return 'b';
	}
}

bool types_agree(enum type reg, enum type t)
{
	char a = kind_of(reg), b = kind_of(t);

	return a == b || a == 'b' || b == 'b';
}

ref decode_source(struct parser *p, const struct statement *s, struct operand *o, enum type t)
{
	unsigned size = type_size(t);
	bool wide = size == 8;

	switch (o->kind) {
	case OP_REG:
		/* A byte lives in a wider register. */
		if ((type_size(o->type) != size && !(size == 1 && type_size(o->type) <= 4)) ||
		    !types_agree(o->type, t))
			fail_decode(p, s, "Arguments mismatch");
		return o->row;
	case OP_INT: case OP_F32: case OP_F64: {
		uint64_t bits = constant(p, s, o, t);

		return wide ? const64(p->m, bits)
		            : const32(p->m, size == 2 ? (uint16_t)bits : (uint32_t)bits);
	}
	case OP_SPECIAL: {
		if (special_is_wide(o->special) != wide || size < 4)
			fail_decode(p, s, "Arguments mismatch");
		ref d = new_row(p, t);
		struct insn *in = emit(p, op_special, s->line, s->guard);

		in->d = d;
		in->sub = (uint8_t)o->special;
		return d;
	}
	case OP_VAR:
		if (size < 4)
			fail_decode(p, s, "Arguments mismatch");
		if (o->var->space == SP_LOCAL) {
			ref d = new_row(p, t);
			struct insn *in = emit(p, op_local_address, s->line, s->guard);

			in->d = d;
			in->size = (uint8_t)size;
			in->imm = (int64_t)o->var->address + o->offset;
			return d;
		}
		return symbol_row(p, s, o, wide);
	case OP_FUNC:
		if (size < 4)
			fail_decode(p, s, "Arguments mismatch");
		return symbol_row(p, s, o, wide);
	case OP_LABEL:
		ptx_fail(p->m, s->line, PTX_INVALID, "Unknown symbol '%.*s'", o->len > 60 ? 60 : (int)o->len,
		         o->name);
	default:
		fail_decode(p, s, "Arguments mismatch");
	}
}

ref decode_dest(struct parser *p, const struct statement *s, struct operand *o, enum type t)
{
	if (o->kind == OP_SINK)
		return new_row(p, t);
	if (o->kind != OP_REG || type_size(o->type) != type_size(t) || !types_agree(o->type, t))
		fail_decode(p, s, "Arguments mismatch");
	return o->row;
}

ref decode_pred(struct parser *p, const struct statement *s, const struct operand *o)
{
	if (o->kind != OP_PRED)
		fail_decode(p, s, "A predicate is needed");
	return o->row;
}

static const struct { const char *word; uint16_t flag; } modifiers[] = {
	{".rn", F_RN}, {".rz", F_RZ}, {".rm", F_RM}, {".rp", F_RP}, {".ftz", F_FTZ}, {".sat", F_SAT},
	{".NaN", F_NAN}, {".cc", F_CC},
};

static uint16_t modifier(const char *word)
{
	for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++)
		if (strcmp(modifiers[i].word, word) == 0)
			return modifiers[i].flag;
	return 0;
}

/* All plain instructions, sorted by key. */
static const struct op *plain[1024];
static size_t nplain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int by_key(const void *a, const void *b)
{
	return strcmp((*(const struct op *const *)a)->key, (*(const struct op *const *)b)->key);
}

static void collect(void)
{
	static const struct op *const tables[] = {ops_int, ops_bits, ops_float, ops_half};

	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		for (const struct op *op = tables[i]; op->key; op++)
			plain[nplain++] = op;
	qsort(plain, nplain, sizeof *plain, by_key);
}

static const struct op *find_plain(const char *key)
{
	struct op wanted = {.key = key};
	const struct op *w = &wanted;

	pthread_once(&once, collect);
	const struct op **found = bsearch(&w, plain, nplain, sizeof *plain, by_key);

	return found ? *found : NULL;
}

static enum type operand_type(char c, bool untyped)
{
	switch (c) {
	case 'h': return untyped ? T_B16 : T_U16;
	case 'e': return T_F16;
	case 'r': return untyped ? T_B32 : T_U32; /* a float constant is no integer */
	case 'x': return T_F16X2;
	case 'f': return T_F32;
	case 'l': return untyped ? T_B64 : T_U64;
	case 'd': return T_F64;
	default: return T_PRED;
	}
}

/* The opcode without the modifiers that are flags: "add.f32" of "add.rn.ftz.f32". */
static const struct op *find_op(const struct statement *s, uint16_t *flags)
{
	char key[200] = "", all[200] = "";

	strcpy(key, s->word[0]);
	strcpy(all, s->word[0]);
	*flags = 0;
	for (uint32_t i = 1; i < s->nwords; i++) {
		uint16_t flag = modifier(s->word[i]);

		/* A modifier comes before the type and only once. */
		if (flag && (i + 1 == s->nwords || (*flags & flag) ||
		             ((flag & F_ROUND) && (*flags & F_ROUND))))
			return NULL;
		*flags |= flag;
		strcat(all, s->word[i]);
		if (!flag)
			strcat(key, s->word[i]);
	}
	const struct op *op = find_plain(all); /* add.cc is an opcode of its own, .cc of addc a flag */

	if (op) {
		*flags &= F_CC;
		return op;
	}
	return find_plain(key);
}

static bool needs_rounding(const struct statement *s, uint16_t flags, const struct op *op)
{
	static const char *const ops[] = {"fma.f32", "fma.f64", "div.f32", "div.f64", "rcp.f32",
	                                  "rcp.f64", "sqrt.f32", "sqrt.f64", "fma.f16", "fma.f16x2",
	                                  "fma.bf16", "fma.bf16x2", "fma.relu.f16", "fma.relu.f16x2",
	                                  "fma.relu.bf16", "fma.relu.bf16x2"};

	(void)s;
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (strcmp(ops[i], op->key) == 0)
			return !(flags & F_ROUND);
	return false;
}

/* The width of the result, where op is what a GPU's floating-point units do. */
static uint8_t computes(const struct op *op)
{
	static const char *const ops[] = {"add.", "sub.", "mul.", "fma.", "mad."};

	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (strncmp(op->key, ops[i], 4) == 0)
			return op->operands[0] == 'f' ? 32 : op->operands[0] == 'd' ? 64 : 0;
	return 0;
}

static void decode_plain(struct parser *p, struct statement *s)
{
	uint16_t flags;
	const struct op *op = find_op(s, &flags);

	if (!op || (flags & ~op->allowed))
		ptx_fail(p->m, s->line, PTX_INVALID, "Not a name of any known instruction: '%s'", s->opcode);
	if (needs_rounding(s, flags, op))
		fail_decode(p, s, "Rounding modifier required");
	uint32_t n = (uint32_t)strlen(op->operands);
	ref rows[5] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE, REF_NONE};

	bool untyped = strstr(s->opcode, ".b") != NULL;

	need_operands(p, s, n, n);
	for (uint32_t i = 0; i < n; i++) {
		enum type t = operand_type(op->operands[i], untyped);

		if (t == T_PRED) {
			rows[i] = decode_pred(p, s, s->op[i]);
			if (i == 0 && s->op[i]->negated)
				fail_decode(p, s, "Arguments mismatch");
		} else {
			rows[i] = i == 0 ? decode_dest(p, s, s->op[i], t) : decode_source(p, s, s->op[i], t);
		}
	}
	op_fn *fn = op->flagged && (flags & ~F_RN) ? op->flagged : op->fn;
	struct insn *in = emit(p, fn, s->line, s->guard);

	in->d = rows[0];
	in->a = rows[1];
	in->b = rows[2];
	in->c = rows[3];
	in->e = rows[4];
	in->flags = flags;
	in->sub = (uint8_t)op->sub;
	in->computes = computes(op);
}

void decode(struct parser *p, struct statement *s)
{
	static const struct { const char *base; void (*fn)(struct parser *, struct statement *); } special[] = {
		{"mov", decode_mov}, {"setp", decode_setp}, {"set", decode_setp}, {"selp", decode_setp},
		{"testp", decode_setp}, {"cvt", decode_cvt}, {"ld", decode_memory}, {"ldu", decode_memory},
		{"st", decode_memory}, {"atom", decode_memory}, {"red", decode_memory},
		{"cvta", decode_memory}, {"isspacep", decode_memory}, {"prefetch", decode_memory},
		{"prefetchu", decode_memory}, {"membar", decode_memory}, {"fence", decode_memory},
		{"bra", decode_control}, {"brx", decode_control}, {"call", decode_control},
		{"ret", decode_control}, {"exit", decode_control}, {"trap", decode_control},
		{"brkpt", decode_control}, {"bar", decode_control}, {"barrier", decode_control},
		{"vote", decode_control}, {"shfl", decode_control}, {"activemask", decode_control},
		{"match", decode_control}, {"redux", decode_control}, {"elect", decode_control},
		{"nanosleep", decode_control}, {"pmevent", decode_control}, {"mma", decode_mma},
		{"ldmatrix", decode_ldmatrix}, {"cp", decode_async},
	};

	for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
		if (strcmp(special[i].base, s->word[0]) == 0) {
			special[i].fn(p, s);
			return;
		}
	}
	decode_plain(p, s);
}
