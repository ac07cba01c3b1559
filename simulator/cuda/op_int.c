/* Integer arithmetic (PTX ISA, 9.7.1 and 9.7.2). */
#include "ops.h"
#include "warp.h"

typedef unsigned __int128 u128;
typedef __int128 s128;

#define UNARY(name, T, row, expr)                                 \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		T *d = row(w, in->d);                                     \
		const T *a = row(w, in->a);                               \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define BINARY(name, T, row, expr)                                \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		T *d = row(w, in->d);                                     \
		const T *a = row(w, in->a), *b = row(w, in->b);           \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define TERNARY(name, T, row, expr)                                              \
	static void name(struct warp *w, const struct insn *in)                      \
	{                                                                            \
		T *d = row(w, in->d);                                                    \
		const T *a = row(w, in->a), *b = row(w, in->b), *c = row(w, in->c);      \
		EACH_LANE(d[l] = (expr));                                                \
	}
/* The result is twice as wide as the factors. */
#define WIDE(name, D, drow, S, expr)                              \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		D *d = drow(w, in->d);                                    \
		const S *a = row32(w, in->a), *b = row32(w, in->b);       \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define WIDE_ADD(name, D, drow, S, expr)                                           \
	static void name(struct warp *w, const struct insn *in)                        \
	{                                                                              \
		D *d = drow(w, in->d);                                                     \
		const S *a = row32(w, in->a), *b = row32(w, in->b);                        \
		const D *c = drow(w, in->c);                                               \
		EACH_LANE(d[l] = (expr));                                                  \
	}

/* Registers of 16 bits hold their value zero-extended. */
#define S16(x) ((int16_t)(x))
#define U16(x) ((uint16_t)(x))

BINARY(add16, u32a, row32, U16(a[l] + b[l]))
BINARY(add32, u32a, row32, a[l] + b[l])
BINARY(add64, u64a, row64, a[l] + b[l])
BINARY(sub16, u32a, row32, U16(a[l] - b[l]))
BINARY(sub32, u32a, row32, a[l] - b[l])
BINARY(sub64, u64a, row64, a[l] - b[l])

static int32_t clamp32(int64_t v)
{
	return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}
BINARY(add_sat, s32a, row32, clamp32((int64_t)a[l] + b[l]))
BINARY(sub_sat, s32a, row32, clamp32((int64_t)a[l] - b[l]))

BINARY(mul_lo16, u32a, row32, U16(a[l] * b[l]))
BINARY(mul_lo32, u32a, row32, a[l] * b[l])
BINARY(mul_lo64, u64a, row64, a[l] * b[l])
BINARY(mul_hi_u16, u32a, row32, U16(((uint32_t)U16(a[l]) * U16(b[l])) >> 16))
BINARY(mul_hi_s16, u32a, row32, U16((S16(a[l]) * S16(b[l])) >> 16))
BINARY(mul_hi_u32, u32a, row32, (uint32_t)(((uint64_t)a[l] * b[l]) >> 32))
BINARY(mul_hi_s32, s32a, row32, (int32_t)(((int64_t)a[l] * b[l]) >> 32))
BINARY(mul_hi_u64, u64a, row64, (uint64_t)(((u128)a[l] * b[l]) >> 64))
BINARY(mul_hi_s64, s64a, row64, (int64_t)(((s128)a[l] * b[l]) >> 64))
WIDE(mul_wide_u16, u32a, row32, u32a, (uint32_t)U16(a[l]) * U16(b[l]))
WIDE(mul_wide_s16, u32a, row32, u32a, (uint32_t)(S16(a[l]) * S16(b[l])))
WIDE(mul_wide_u32, u64a, row64, u32a, (uint64_t)a[l] * b[l])
WIDE(mul_wide_s32, s64a, row64, s32a, (int64_t)a[l] * b[l])

TERNARY(mad_lo16, u32a, row32, U16(a[l] * b[l] + c[l]))
TERNARY(mad_lo32, u32a, row32, a[l] * b[l] + c[l])
TERNARY(mad_lo64, u64a, row64, a[l] * b[l] + c[l])
TERNARY(mad_hi_u16, u32a, row32, U16((((uint32_t)U16(a[l]) * U16(b[l])) >> 16) + c[l]))
TERNARY(mad_hi_s16, u32a, row32, U16((uint32_t)((S16(a[l]) * S16(b[l])) >> 16) + c[l]))
TERNARY(mad_hi_u32, u32a, row32, (uint32_t)(((uint64_t)a[l] * b[l]) >> 32) + c[l])
TERNARY(mad_hi_s32, s32a, row32,
        (int32_t)((uint32_t)(((int64_t)a[l] * b[l]) >> 32) + (uint32_t)c[l]))
TERNARY(mad_hi_sat, s32a, row32, clamp32((((int64_t)a[l] * b[l]) >> 32) + c[l]))
TERNARY(mad_hi_u64, u64a, row64, (uint64_t)(((u128)a[l] * b[l]) >> 64) + c[l])
TERNARY(mad_hi_s64, u64a, row64,
        (uint64_t)(((s128)(int64_t)a[l] * (int64_t)b[l]) >> 64) + c[l])
WIDE_ADD(mad_wide_u16, u32a, row32, u32a, (uint32_t)U16(a[l]) * U16(b[l]) + c[l])
WIDE_ADD(mad_wide_s16, u32a, row32, u32a, (uint32_t)(S16(a[l]) * S16(b[l])) + c[l])
WIDE_ADD(mad_wide_u32, u64a, row64, u32a, (uint64_t)a[l] * b[l] + c[l])
WIDE_ADD(mad_wide_s32, u64a, row64, s32a, (uint64_t)((int64_t)a[l] * b[l]) + c[l])

static int32_t low24s(int32_t x) { return (int32_t)((uint32_t)x << 8) >> 8; }
#define LOW24(x) ((x) & 0xffffffu)
BINARY(mul24_lo_u32, u32a, row32, LOW24(a[l]) * LOW24(b[l]))
BINARY(mul24_hi_u32, u32a, row32, (uint32_t)(((uint64_t)LOW24(a[l]) * LOW24(b[l])) >> 16))
BINARY(mul24_lo_s32, s32a, row32, (int32_t)((int64_t)low24s(a[l]) * low24s(b[l])))
BINARY(mul24_hi_s32, s32a, row32, (int32_t)(((int64_t)low24s(a[l]) * low24s(b[l])) >> 16))
TERNARY(mad24_hi_u32, u32a, row32, (uint32_t)(((uint64_t)LOW24(a[l]) * LOW24(b[l])) >> 16) + c[l])
TERNARY(mad24_hi_s32, u32a, row32,
        (uint32_t)(((int64_t)low24s((int32_t)a[l]) * low24s((int32_t)b[l])) >> 16) + c[l])
TERNARY(mad24_hi_sat, s32a, row32, clamp32((((int64_t)low24s(a[l]) * low24s(b[l])) >> 16) + c[l]))
TERNARY(mad24_lo_u32, u32a, row32, LOW24(a[l]) * LOW24(b[l]) + c[l])
TERNARY(mad24_lo_s32, u32a, row32,
        (uint32_t)((int64_t)low24s((int32_t)a[l]) * low24s((int32_t)b[l])) + c[l])

/* A division by zero is not an error on a GPU: the quotient has all bits set. */
#define UDIV(x, y, all) ((y) ? (x) / (y) : (all))
#define UREM(x, y) ((y) ? (x) % (y) : (x))
static int64_t sdiv(int64_t x, int64_t y)
{
	return y == 0 ? -1 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}
static int64_t srem(int64_t x, int64_t y) { return y == 0 ? x : y == -1 ? 0 : x % y; }
BINARY(div_u16, u32a, row32, U16(UDIV(U16(a[l]), U16(b[l]), 0xffff)))
BINARY(div_s16, u32a, row32, U16(sdiv(S16(a[l]), S16(b[l]))))
BINARY(div_u32, u32a, row32, UDIV(a[l], b[l], 0xffffffffu))
BINARY(div_s32, s32a, row32, (int32_t)sdiv(a[l], b[l]))
BINARY(div_u64, u64a, row64, UDIV(a[l], b[l], UINT64_MAX))
BINARY(div_s64, s64a, row64, sdiv(a[l], b[l]))
BINARY(rem_u16, u32a, row32, U16(UREM(U16(a[l]), U16(b[l]))))
BINARY(rem_s16, u32a, row32, U16(srem(S16(a[l]), S16(b[l]))))
BINARY(rem_u32, u32a, row32, UREM(a[l], b[l]))
BINARY(rem_s32, s32a, row32, (int32_t)srem(a[l], b[l]))
BINARY(rem_u64, u64a, row64, UREM(a[l], b[l]))
BINARY(rem_s64, s64a, row64, srem(a[l], b[l]))

UNARY(abs_s16, u32a, row32, U16(S16(a[l]) < 0 ? 0 - a[l] : a[l]))
UNARY(abs_s32, u32a, row32, (int32_t)a[l] < 0 ? 0 - a[l] : a[l])
UNARY(abs_s64, u64a, row64, (int64_t)a[l] < 0 ? 0 - a[l] : a[l])
UNARY(neg_s16, u32a, row32, U16(0 - a[l]))
UNARY(neg_s32, u32a, row32, 0 - a[l])
UNARY(neg_s64, u64a, row64, 0 - a[l])

#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
BINARY(min_u16, u32a, row32, MIN(U16(a[l]), U16(b[l])))
BINARY(min_s16, u32a, row32, U16(MIN(S16(a[l]), S16(b[l]))))
BINARY(min_u32, u32a, row32, MIN(a[l], b[l]))
BINARY(min_s32, s32a, row32, MIN(a[l], b[l]))
BINARY(min_u64, u64a, row64, MIN(a[l], b[l]))
BINARY(min_s64, s64a, row64, MIN(a[l], b[l]))
BINARY(max_u16, u32a, row32, MAX(U16(a[l]), U16(b[l])))
BINARY(max_s16, u32a, row32, U16(MAX(S16(a[l]), S16(b[l]))))
BINARY(max_u32, u32a, row32, MAX(a[l], b[l]))
BINARY(max_s32, s32a, row32, MAX(a[l], b[l]))
BINARY(max_u64, u64a, row64, MAX(a[l], b[l]))
BINARY(max_s64, s64a, row64, MAX(a[l], b[l]))

TERNARY(sad_u16, u32a, row32,
        U16((U16(a[l]) < U16(b[l]) ? b[l] - a[l] : a[l] - b[l]) + c[l]))
TERNARY(sad_s16, u32a, row32,
        U16((S16(a[l]) < S16(b[l]) ? b[l] - a[l] : a[l] - b[l]) + c[l]))
TERNARY(sad_u32, u32a, row32, (a[l] < b[l] ? b[l] - a[l] : a[l] - b[l]) + c[l])
TERNARY(sad_s32, u32a, row32,
        ((int32_t)a[l] < (int32_t)b[l] ? b[l] - a[l] : a[l] - b[l]) + c[l])
TERNARY(sad_u64, u64a, row64, (a[l] < b[l] ? b[l] - a[l] : a[l] - b[l]) + c[l])
TERNARY(sad_s64, u64a, row64,
        ((int64_t)a[l] < (int64_t)b[l] ? b[l] - a[l] : a[l] - b[l]) + c[l])

/*
 * Extended precision: the condition code is one carry bit for each lane. sub of
 * the table says whether the carry goes in.
 */
#define CARRY(name, T, W, row, expr)                                              \
	static void name(struct warp *w, const struct insn *in)                       \
	{                                                                             \
		T *d = row(w, in->d);                                                     \
		const T *a = row(w, in->a), *b = row(w, in->b);                           \
		const T *c = in->c == REF_NONE ? a : row(w, in->c);                       \
		uint32_t in_mask = in->sub ? w->carry : 0, out = 0;                       \
		for (uint32_t left = w->m; left; left &= left - 1) {                      \
			int l = __builtin_ctz(left);                                          \
			W k = (in_mask >> l) & 1;                                             \
			W sum = (expr);                                                       \
			(void)c;                                                              \
			d[l] = (T)sum;                                                        \
			out |= (uint32_t)((sum >> (sizeof(T) * 8)) & 1) << l;                 \
		}                                                                         \
		if (in->flags & F_CC)                                                     \
			w->carry = (w->carry & ~w->m) | out;                                  \
	}
CARRY(addc32, u32a, uint64_t, row32, (uint64_t)a[l] + b[l] + k)
CARRY(addc64, u64a, u128, row64, (u128)a[l] + b[l] + k)
CARRY(subc32, u32a, uint64_t, row32, (uint64_t)a[l] - b[l] - k)
CARRY(subc64, u64a, u128, row64, (u128)a[l] - b[l] - k)
CARRY(madc_lo32, u32a, uint64_t, row32, (uint64_t)(uint32_t)(a[l] * b[l]) + c[l] + k)
CARRY(madc_hi32, u32a, uint64_t, row32, (((uint64_t)a[l] * b[l]) >> 32) + c[l] + k)
CARRY(madc_his32, u32a, uint64_t, row32,
      (uint64_t)(uint32_t)(((int64_t)(int32_t)a[l] * (int32_t)b[l]) >> 32) + c[l] + k)
CARRY(madc_lo64, u64a, u128, row64, (u128)(uint64_t)(a[l] * b[l]) + c[l] + k)
CARRY(madc_hi64, u64a, u128, row64, (((u128)a[l] * b[l]) >> 64) + c[l] + k)
CARRY(madc_his64, u64a, u128, row64,
      (u128)(uint64_t)(((s128)(int64_t)a[l] * (int64_t)b[l]) >> 64) + c[l] + k)

/* Four products of bytes, added up; in sub, bit 0: a is signed, bit 1: b is. */
static uint32_t dot(uint32_t a, uint32_t b, uint32_t c, unsigned sub)
{
	for (int i = 0; i < 4; i++) {
		int32_t x = (a >> 8 * i) & 0xff, y = (b >> 8 * i) & 0xff;

		c += (uint32_t)((sub & 1 ? (int8_t)x : x) * (sub & 2 ? (int8_t)y : y));
	}
	return c;
}
TERNARY(dp4a, u32a, row32, dot(a[l], b[l], c[l], in->sub))


/* Two halves of a times two bytes of b, the upper ones with hi; sub: 1 a is signed, 2 b is. */
static uint32_t dot2(uint32_t a, uint32_t b, uint32_t c, unsigned sub)
{
	if (sub & 4)
		b >>= 16;
	for (int i = 0; i < 2; i++, a >>= 16, b >>= 8)
		c += (sub & 1 ? (uint32_t)(int32_t)(int16_t)a : a & 0xffff) * (sub & 2 ? (uint32_t)(int32_t)(int8_t)b : b & 0xff);
	return c;
}
TERNARY(dp2a, u32a, row32, dot2(a[l], b[l], c[l], in->sub))

const struct op ops_int[] = {
	{"add.u16", "hhh", add16, 0, 0, 0}, {"add.s16", "hhh", add16, 0, 0, 0},
	{"add.u32", "rrr", add32, 0, 0, 0}, {"add.s32", "rrr", add32, add_sat, F_SAT, 0},
	{"add.u64", "lll", add64, 0, 0, 0}, {"add.s64", "lll", add64, 0, 0, 0},
	{"sub.u16", "hhh", sub16, 0, 0, 0}, {"sub.s16", "hhh", sub16, 0, 0, 0},
	{"sub.u32", "rrr", sub32, 0, 0, 0}, {"sub.s32", "rrr", sub32, sub_sat, F_SAT, 0},
	{"sub.u64", "lll", sub64, 0, 0, 0}, {"sub.s64", "lll", sub64, 0, 0, 0},
	{"mul.lo.u16", "hhh", mul_lo16, 0, 0, 0}, {"mul.lo.s16", "hhh", mul_lo16, 0, 0, 0},
	{"mul.lo.u32", "rrr", mul_lo32, 0, 0, 0}, {"mul.lo.s32", "rrr", mul_lo32, 0, 0, 0},
	{"mul.lo.u64", "lll", mul_lo64, 0, 0, 0}, {"mul.lo.s64", "lll", mul_lo64, 0, 0, 0},
	{"mul.hi.u16", "hhh", mul_hi_u16, 0, 0, 0}, {"mul.hi.s16", "hhh", mul_hi_s16, 0, 0, 0},
	{"mul.hi.u32", "rrr", mul_hi_u32, 0, 0, 0}, {"mul.hi.s32", "rrr", mul_hi_s32, 0, 0, 0},
	{"mul.hi.u64", "lll", mul_hi_u64, 0, 0, 0}, {"mul.hi.s64", "lll", mul_hi_s64, 0, 0, 0},
	{"mul.wide.u16", "rhh", mul_wide_u16, 0, 0, 0}, {"mul.wide.s16", "rhh", mul_wide_s16, 0, 0, 0},
	{"mul.wide.u32", "lrr", mul_wide_u32, 0, 0, 0}, {"mul.wide.s32", "lrr", mul_wide_s32, 0, 0, 0},
	{"mad.lo.u16", "hhhh", mad_lo16, 0, 0, 0}, {"mad.lo.s16", "hhhh", mad_lo16, 0, 0, 0},
	{"mad.lo.u32", "rrrr", mad_lo32, 0, 0, 0}, {"mad.lo.s32", "rrrr", mad_lo32, 0, 0, 0},
	{"mad.lo.u64", "llll", mad_lo64, 0, 0, 0}, {"mad.lo.s64", "llll", mad_lo64, 0, 0, 0},
	{"mad.hi.u16", "hhhh", mad_hi_u16, 0, 0, 0}, {"mad.hi.s16", "hhhh", mad_hi_s16, 0, 0, 0},
	{"mad.hi.u32", "rrrr", mad_hi_u32, 0, 0, 0},
	{"mad.hi.s32", "rrrr", mad_hi_s32, mad_hi_sat, F_SAT, 0},
	{"mad.hi.u64", "llll", mad_hi_u64, 0, 0, 0}, {"mad.hi.s64", "llll", mad_hi_s64, 0, 0, 0},
	{"mad.wide.u16", "rhhr", mad_wide_u16, 0, 0, 0}, {"mad.wide.s16", "rhhr", mad_wide_s16, 0, 0, 0},
	{"mad.wide.u32", "lrrl", mad_wide_u32, 0, 0, 0}, {"mad.wide.s32", "lrrl", mad_wide_s32, 0, 0, 0},
	{"mul24.lo.u32", "rrr", mul24_lo_u32, 0, 0, 0}, {"mul24.lo.s32", "rrr", mul24_lo_s32, 0, 0, 0},
	{"mul24.hi.u32", "rrr", mul24_hi_u32, 0, 0, 0}, {"mul24.hi.s32", "rrr", mul24_hi_s32, 0, 0, 0},
	{"mad24.hi.u32", "rrrr", mad24_hi_u32, 0, 0, 0},
	{"mad24.hi.s32", "rrrr", mad24_hi_s32, mad24_hi_sat, F_SAT, 0},
	{"mad24.lo.u32", "rrrr", mad24_lo_u32, 0, 0, 0}, {"mad24.lo.s32", "rrrr", mad24_lo_s32, 0, 0, 0},
	{"div.u16", "hhh", div_u16, 0, 0, 0}, {"div.s16", "hhh", div_s16, 0, 0, 0},
	{"div.u32", "rrr", div_u32, 0, 0, 0}, {"div.s32", "rrr", div_s32, 0, 0, 0},
	{"div.u64", "lll", div_u64, 0, 0, 0}, {"div.s64", "lll", div_s64, 0, 0, 0},
	{"rem.u16", "hhh", rem_u16, 0, 0, 0}, {"rem.s16", "hhh", rem_s16, 0, 0, 0},
	{"rem.u32", "rrr", rem_u32, 0, 0, 0}, {"rem.s32", "rrr", rem_s32, 0, 0, 0},
	{"rem.u64", "lll", rem_u64, 0, 0, 0}, {"rem.s64", "lll", rem_s64, 0, 0, 0},
	{"abs.s16", "hh", abs_s16, 0, 0, 0}, {"abs.s32", "rr", abs_s32, 0, 0, 0},
	{"abs.s64", "ll", abs_s64, 0, 0, 0}, {"neg.s16", "hh", neg_s16, 0, 0, 0},
	{"neg.s32", "rr", neg_s32, 0, 0, 0}, {"neg.s64", "ll", neg_s64, 0, 0, 0},
	{"min.u16", "hhh", min_u16, 0, 0, 0}, {"min.s16", "hhh", min_s16, 0, 0, 0},
	{"min.u32", "rrr", min_u32, 0, 0, 0}, {"min.s32", "rrr", min_s32, 0, 0, 0},
	{"min.u64", "lll", min_u64, 0, 0, 0}, {"min.s64", "lll", min_s64, 0, 0, 0},
	{"max.u16", "hhh", max_u16, 0, 0, 0}, {"max.s16", "hhh", max_s16, 0, 0, 0},
	{"max.u32", "rrr", max_u32, 0, 0, 0}, {"max.s32", "rrr", max_s32, 0, 0, 0},
	{"max.u64", "lll", max_u64, 0, 0, 0}, {"max.s64", "lll", max_s64, 0, 0, 0},
	{"sad.u16", "hhhh", sad_u16, 0, 0, 0}, {"sad.s16", "hhhh", sad_s16, 0, 0, 0},
	{"sad.u32", "rrrr", sad_u32, 0, 0, 0}, {"sad.s32", "rrrr", sad_s32, 0, 0, 0},
	{"sad.u64", "llll", sad_u64, 0, 0, 0}, {"sad.s64", "llll", sad_s64, 0, 0, 0},
	{"add.cc.u32", "rrr", addc32, 0, F_CC, 0}, {"add.cc.s32", "rrr", addc32, 0, F_CC, 0},
	{"add.cc.u64", "lll", addc64, 0, F_CC, 0}, {"add.cc.s64", "lll", addc64, 0, F_CC, 0},
	{"addc.u32", "rrr", addc32, 0, F_CC, 1}, {"addc.s32", "rrr", addc32, 0, F_CC, 1},
	{"addc.u64", "lll", addc64, 0, F_CC, 1}, {"addc.s64", "lll", addc64, 0, F_CC, 1},
	{"sub.cc.u32", "rrr", subc32, 0, F_CC, 0}, {"sub.cc.s32", "rrr", subc32, 0, F_CC, 0},
	{"sub.cc.u64", "lll", subc64, 0, F_CC, 0}, {"sub.cc.s64", "lll", subc64, 0, F_CC, 0},
	{"subc.u32", "rrr", subc32, 0, F_CC, 1}, {"subc.s32", "rrr", subc32, 0, F_CC, 1},
	{"subc.u64", "lll", subc64, 0, F_CC, 1}, {"subc.s64", "lll", subc64, 0, F_CC, 1},
	{"mad.lo.cc.u32", "rrrr", madc_lo32, 0, F_CC, 0}, {"mad.lo.cc.s32", "rrrr", madc_lo32, 0, F_CC, 0},
	{"mad.hi.cc.u32", "rrrr", madc_hi32, 0, F_CC, 0}, {"mad.hi.cc.s32", "rrrr", madc_his32, 0, F_CC, 0},
	{"madc.lo.u32", "rrrr", madc_lo32, 0, F_CC, 1}, {"madc.lo.s32", "rrrr", madc_lo32, 0, F_CC, 1},
	{"madc.hi.u32", "rrrr", madc_hi32, 0, F_CC, 1}, {"madc.hi.s32", "rrrr", madc_his32, 0, F_CC, 1},
	{"mad.lo.cc.u64", "llll", madc_lo64, 0, F_CC, 0}, {"mad.lo.cc.s64", "llll", madc_lo64, 0, F_CC, 0},
	{"mad.hi.cc.u64", "llll", madc_hi64, 0, F_CC, 0}, {"mad.hi.cc.s64", "llll", madc_his64, 0, F_CC, 0},
	{"madc.lo.u64", "llll", madc_lo64, 0, F_CC, 1}, {"madc.lo.s64", "llll", madc_lo64, 0, F_CC, 1},
	{"madc.hi.u64", "llll", madc_hi64, 0, F_CC, 1}, {"madc.hi.s64", "llll", madc_his64, 0, F_CC, 1},
	{"dp4a.u32.u32", "rrrr", dp4a, 0, 0, 0}, {"dp4a.s32.u32", "rrrr", dp4a, 0, 0, 1},
	{"dp4a.u32.s32", "rrrr", dp4a, 0, 0, 2}, {"dp4a.s32.s32", "rrrr", dp4a, 0, 0, 3},
	{"dp2a.lo.u32.u32", "rrrr", dp2a, 0, 0, 0}, {"dp2a.lo.s32.u32", "rrrr", dp2a, 0, 0, 1},
	{"dp2a.lo.u32.s32", "rrrr", dp2a, 0, 0, 2}, {"dp2a.lo.s32.s32", "rrrr", dp2a, 0, 0, 3},
	{"dp2a.hi.u32.u32", "rrrr", dp2a, 0, 0, 4}, {"dp2a.hi.s32.u32", "rrrr", dp2a, 0, 0, 5},
	{"dp2a.hi.u32.s32", "rrrr", dp2a, 0, 0, 6}, {"dp2a.hi.s32.s32", "rrrr", dp2a, 0, 0, 7},
	{0},
};
