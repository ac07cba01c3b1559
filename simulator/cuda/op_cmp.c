/* Comparisons and selection (PTX ISA 9.0, sections 9.7.6 and 9.7.7). */
#include "ops.h"
#include "real.h"
#include "warp.h"

/*
 * write_result combines the result of a comparison, one bit per lane, with predicate c and
 * writes it. in->vec selects the operator: BOOL_NONE ignores c.
 * setp (in->size is 0): predicate d gets the result, e the result of the opposite comparison.
 * set (in->size is the width of d): d gets in->imm in lanes where the result is true, else 0.
 */
static void write_result(struct warp *w, const struct insn *in, uint32_t bits)
{
	uint32_t other = ~bits;

	if (in->vec != BOOL_NONE) {
		uint32_t c = pred_get(w, in->c);

		bits = in->vec == BOOL_AND ? bits & c : in->vec == BOOL_OR ? bits | c : bits ^ c;
		other = in->vec == BOOL_AND ? other & c : in->vec == BOOL_OR ? other | c : other ^ c;
	}
	if (in->size) {
		u32a *d = row32(w, in->d);
		uint32_t yes = (uint32_t)in->imm;

		EACH_LANE(d[l] = (bits >> l) & 1 ? yes : 0);
		return;
	}
	pred_set(w, in->d, bits);
	pred_set(w, in->e, other);
}

/*
 * COLLECT sets the bit of each lane l for which expr is true. It is the whole body of a case:
 * a loop over the lanes and the break.
 */
#define COLLECT(expr)                             \
	for (int l = 0; l < LANES; l++) {             \
		bits |= (uint32_t)(expr) << l;            \
	}                                             \
	break

#define COMPARE_INT(name, T, row, cast)                                   \
	static void name(struct warp *w, const struct insn *in)               \
	{                                                                     \
		const T *a = row(w, in->a), *b = row(w, in->b);                   \
		uint32_t bits = 0;                                                \
		switch (in->sub) {                                                \
		case CMP_EQ: COLLECT(cast(a[l]) == cast(b[l]));                   \
		case CMP_NE: COLLECT(cast(a[l]) != cast(b[l]));                   \
		case CMP_LT: COLLECT(cast(a[l]) < cast(b[l]));                    \
		case CMP_LE: COLLECT(cast(a[l]) <= cast(b[l]));                   \
		case CMP_GT: COLLECT(cast(a[l]) > cast(b[l]));                    \
		default: COLLECT(cast(a[l]) >= cast(b[l]));                       \
		}                                                                 \
		write_result(w, in, bits);                                             \
	}
#define SAME(x) (x)
#define S16(x) ((int16_t)(x))
#define U16(x) ((uint16_t)(x))
COMPARE_INT(cmp_u16, u32a, row32, U16)
COMPARE_INT(cmp_s16, u32a, row32, S16)
COMPARE_INT(cmp_u32, u32a, row32, SAME)
COMPARE_INT(cmp_s32, s32a, row32, SAME)
COMPARE_INT(cmp_u64, u64a, row64, SAME)
COMPARE_INT(cmp_s64, s64a, row64, SAME)

/*
 * CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE: false if either operand is NaN.
 * CMP_EQU, CMP_NEU, CMP_LTU, CMP_LEU, CMP_GTU, CMP_GEU (unordered): true if either is NaN.
 * CMP_NUM: true if neither is NaN. CMP_NAN: true if either is.
 */
#define COMPARE_FLOAT(name, T, row, cast)                                       \
	static void name(struct warp *w, const struct insn *in)                     \
	{                                                                           \
		const T *a = row(w, in->a), *b = row(w, in->b);                         \
		uint32_t bits = 0;                                                      \
		switch (in->sub) {                                                      \
		case CMP_EQ: COLLECT(cast(a[l]) == cast(b[l]));                         \
		case CMP_NE: COLLECT(cast(a[l]) < cast(b[l]) || cast(a[l]) > cast(b[l]));\
		case CMP_LT: COLLECT(cast(a[l]) < cast(b[l]));                          \
		case CMP_LE: COLLECT(cast(a[l]) <= cast(b[l]));                         \
		case CMP_GT: COLLECT(cast(a[l]) > cast(b[l]));                          \
		case CMP_GE: COLLECT(cast(a[l]) >= cast(b[l]));                         \
		case CMP_EQU: COLLECT(!(cast(a[l]) < cast(b[l]) || cast(a[l]) > cast(b[l])));\
		case CMP_NEU: COLLECT(cast(a[l]) != cast(b[l]));                        \
		case CMP_LTU: COLLECT(!(cast(a[l]) >= cast(b[l])));                     \
		case CMP_LEU: COLLECT(!(cast(a[l]) > cast(b[l])));                      \
		case CMP_GTU: COLLECT(!(cast(a[l]) <= cast(b[l])));                     \
		case CMP_GEU: COLLECT(!(cast(a[l]) < cast(b[l])));                      \
		case CMP_NUM: COLLECT(cast(a[l]) == cast(a[l]) && cast(b[l]) == cast(b[l]));\
		default: COLLECT(cast(a[l]) != cast(a[l]) || cast(b[l]) != cast(b[l])); \
		}                                                                       \
		write_result(w, in, bits);                                                   \
	}
COMPARE_FLOAT(cmp_f32_plain, f32a, row32, SAME)
COMPARE_FLOAT(cmp_f32_ftz, f32a, row32, flush)
COMPARE_FLOAT(cmp_f64, f64a, row64, SAME)
#define HALF(x) half_value((uint16_t)(x))
COMPARE_FLOAT(cmp_f16_plain, u32a, row32, HALF)
static double half_ftz(uint16_t h) { return half_value((h & 0x7c00) ? h : h & 0x8000); }
#define HALF_FTZ(x) half_ftz((uint16_t)(x))
COMPARE_FLOAT(cmp_f16_ftz, u32a, row32, HALF_FTZ)
#define BFLOAT(x) bfloat_value((uint16_t)(x))
COMPARE_FLOAT(cmp_bf16, u32a, row32, BFLOAT)

static void cmp_f32(struct warp *w, const struct insn *in)
{
	(in->flags & F_FTZ ? cmp_f32_ftz : cmp_f32_plain)(w, in);
}

static void cmp_f16(struct warp *w, const struct insn *in)
{
	(in->flags & F_FTZ ? cmp_f16_ftz : cmp_f16_plain)(w, in);
}

/*
 * is_true does one comparison of one pair. It repeats the cases of COMPARE_FLOAT, which has
 * the switch outside of its loop so that compilers vectorize it; pairs are rare enough to
 * choose per lane.
 */
static bool is_true(unsigned comparison, double a, double b)
{
	switch (comparison) {
	case CMP_EQ: return a == b;
	case CMP_NE: return a < b || a > b;
	case CMP_LT: return a < b;
	case CMP_LE: return a <= b;
	case CMP_GT: return a > b;
	case CMP_GE: return a >= b;
	case CMP_EQU: return !(a < b || a > b);
	case CMP_NEU: return a != b;
	case CMP_LTU: return !(a >= b);
	case CMP_LEU: return !(a > b);
	case CMP_GTU: return !(a <= b);
	case CMP_GEU: return !(a < b);
	case CMP_NUM: return a == a && b == b;
	default: return a != a || b != b;
	}
}

/*
 * Each operand is a pair of 16-bit numbers. setp: d gets the result of the lower halves, e of
 * the upper. set: each half of d gets the result of the same halves.
 */
void op_cmp_pair(struct warp *w, const struct insn *in)
{
	const u32a *a = row32(w, in->a), *b = row32(w, in->b);
	uint32_t bits[2] = {0}, c = in->vec ? pred_get(w, in->c) : 0;

	for (int half = 0; half < 2; half++) {
		for (int l = 0; l < LANES; l++) {
			uint16_t x = (uint16_t)(a[l] >> 16 * half), y = (uint16_t)(b[l] >> 16 * half);
			bool yes = in->type == T_BF16X2       ? is_true(in->sub, bfloat_value(x), bfloat_value(y))
			           : in->flags & F_FTZ        ? is_true(in->sub, half_ftz(x), half_ftz(y))
			                                      : is_true(in->sub, half_value(x), half_value(y));

			bits[half] |= (uint32_t)yes << l;
		}
		if (in->vec)
			bits[half] = in->vec == BOOL_AND ? bits[half] & c : in->vec == BOOL_OR ? bits[half] | c : bits[half] ^ c;
	}
	if (in->size) {
		u32a *d = row32(w, in->d);
		uint32_t yes = (uint32_t)in->imm;

		EACH_LANE(d[l] = ((bits[0] >> l) & 1 ? yes : 0) | ((bits[1] >> l) & 1 ? yes << 16 : 0));
		return;
	}
	pred_set(w, in->d, bits[0]);
	pred_set(w, in->e, bits[1]);
}

op_fn *cmp_handler(enum type t)
{
	switch (t) {
	case T_B16: case T_U16: return cmp_u16;
	case T_S16: return cmp_s16;
	case T_B32: case T_U32: return cmp_u32;
	case T_S32: return cmp_s32;
	case T_B64: case T_U64: return cmp_u64;
	case T_S64: return cmp_s64;
	case T_F32: return cmp_f32;
	case T_F64: return cmp_f64;
	case T_F16: return cmp_f16;
	case T_BF16: return cmp_bf16;
	case T_F16X2: case T_BF16X2: return op_cmp_pair;
	default: return NULL;
	}
}

void op_selp32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b);
	uint32_t p = pred_get(w, in->c);

	EACH_LANE(d[l] = (p >> l) & 1 ? a[l] : b[l]);
}

void op_selp64(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a), *b = row64(w, in->b);
	uint32_t p = pred_get(w, in->c);

	EACH_LANE(d[l] = (p >> l) & 1 ? a[l] : b[l]);
}

/* in->sub selects the property, from 0: finite, infinite, number, notanumber, normal, subnormal. */
void op_testp(struct warp *w, const struct insn *in)
{
	uint32_t bits = 0;

	for (int l = 0; l < LANES; l++) {
		int class;

		if (in->type == T_F64)
			class = fpclassify(((const f64a *)row64(w, in->a))[l]);
		else
			class = fpclassify(((const f32a *)row32(w, in->a))[l]);
		bool finite = class != FP_NAN && class != FP_INFINITE;
		bool property[6] = {finite, class == FP_INFINITE, class != FP_NAN, class == FP_NAN,
		                    class == FP_NORMAL, class == FP_SUBNORMAL};

		bits |= (uint32_t)property[in->sub] << l;
	}
	pred_set(w, in->d, bits);
}
