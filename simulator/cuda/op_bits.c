/* Logic, shifts and bit fields (PTX ISA, 9.7.1 and 9.7.8). */
#include "ops.h"
#include "warp.h"

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
/* 64-bit value, 32-bit count or result. */
#define SHIFT64(name, T, expr)                                    \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		T *d = row64(w, in->d);                                   \
		const T *a = row64(w, in->a);                             \
		const u32a *b = row32(w, in->b);                          \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define COUNT64(name, T, expr)                                    \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		u32a *d = row32(w, in->d);                                \
		const T *a = row64(w, in->a);                             \
		EACH_LANE(d[l] = (uint32_t)(expr));                       \
	}

BINARY(and32, u32a, row32, a[l] & b[l])
BINARY(and64, u64a, row64, a[l] & b[l])
BINARY(or32, u32a, row32, a[l] | b[l])
BINARY(or64, u64a, row64, a[l] | b[l])
BINARY(xor32, u32a, row32, a[l] ^ b[l])
BINARY(xor64, u64a, row64, a[l] ^ b[l])
UNARY(not16, u32a, row32, ~a[l] & 0xffff)
UNARY(not32, u32a, row32, ~a[l])
UNARY(not64, u64a, row64, ~a[l])
UNARY(cnot16, u32a, row32, (a[l] & 0xffff) == 0)
UNARY(cnot32, u32a, row32, a[l] == 0)
UNARY(cnot64, u64a, row64, a[l] == 0)

/* Counts are clamped to the width. */
BINARY(shl16, u32a, row32, b[l] > 15 ? 0 : (uint16_t)(a[l] << b[l]))
BINARY(shl32, u32a, row32, b[l] > 31 ? 0 : a[l] << b[l])
SHIFT64(shl64, u64a, b[l] > 63 ? 0 : a[l] << b[l])
BINARY(shr_u16, u32a, row32, b[l] > 15 ? 0 : (a[l] & 0xffff) >> b[l])
BINARY(shr_u32, u32a, row32, b[l] > 31 ? 0 : a[l] >> b[l])
SHIFT64(shr_u64, u64a, b[l] > 63 ? 0 : a[l] >> b[l])
BINARY(shr_s16, u32a, row32, (uint16_t)((int16_t)a[l] >> (b[l] > 15 ? 15 : b[l])))
BINARY(shr_s32, u32a, row32, (uint32_t)((int32_t)a[l] >> (b[l] > 31 ? 31 : b[l])))
SHIFT64(shr_s64, s64a, a[l] >> (b[l] > 63 ? 63 : b[l]))

static uint32_t funnel_left(uint32_t lo, uint32_t hi, uint32_t n)
{
	uint64_t both = (uint64_t)hi << 32 | lo;

	return n > 31 ? lo : (uint32_t)((both << n) >> 32);
}
static uint32_t funnel_right(uint32_t lo, uint32_t hi, uint32_t n)
{
	uint64_t both = (uint64_t)hi << 32 | lo;

	return n > 31 ? hi : (uint32_t)(both >> n);
}
TERNARY(shf_l_wrap, u32a, row32, funnel_left(a[l], b[l], c[l] & 31))
TERNARY(shf_l_clamp, u32a, row32, funnel_left(a[l], b[l], c[l]))
TERNARY(shf_r_wrap, u32a, row32, funnel_right(a[l], b[l], c[l] & 31))
TERNARY(shf_r_clamp, u32a, row32, funnel_right(a[l], b[l], c[l]))

static uint32_t byte_of(uint64_t bytes, uint32_t selector)
{
	uint32_t v = (uint32_t)(bytes >> 8 * (selector & 7)) & 0xff;

	return selector & 8 ? (v & 0x80 ? 0xff : 0) : v;
}
/* mode: 0 by selector; the six special modes use only the selector's low two bits. */
static uint32_t permute(uint32_t a, uint32_t b, uint32_t c, unsigned mode)
{
	static const uint16_t table[7][4] = {
		{0},
		{0x3210, 0x4321, 0x5432, 0x6543}, /* f4e */
		{0x5670, 0x6701, 0x7012, 0x0123}, /* b4e */
		{0x0000, 0x1111, 0x2222, 0x3333}, /* rc8 */
		{0x3210, 0x3211, 0x3222, 0x3333}, /* ecl */
		{0x0000, 0x1110, 0x2210, 0x3210}, /* ecr */
		{0x1010, 0x3232, 0x1010, 0x3232}, /* rc16 */
	};
	uint64_t bytes = (uint64_t)b << 32 | a;
	uint32_t selector = mode ? table[mode][c & 3] : c, out = 0;

	for (int i = 0; i < 4; i++)
		out |= byte_of(bytes, (selector >> 4 * i) & 0xf) << 8 * i;
	return out;
}
TERNARY(prmt, u32a, row32, permute(a[l], b[l], c[l], in->sub))

static uint64_t extract(uint64_t a, uint32_t pos, uint32_t len, unsigned bits, bool is_signed)
{
	bool fill = false;

	pos &= 0xff;
	len &= 0xff;
	if (is_signed && len > 0) {
		uint32_t top = pos + len - 1 < bits - 1 ? pos + len - 1 : bits - 1;

		fill = (a >> top) & 1;
	}
	uint64_t value = pos >= bits ? 0 : a >> pos;
	uint32_t have = pos >= bits ? 0 : bits - pos;
	uint32_t keep = len < have ? len : have;
	uint64_t low = keep >= 64 ? UINT64_MAX : ((uint64_t)1 << keep) - 1;

	return (value & low) | (fill ? ~low : 0);
}
TERNARY(bfe_u32, u32a, row32, (uint32_t)extract(a[l], b[l], c[l], 32, false))
TERNARY(bfe_s32, u32a, row32, (uint32_t)extract(a[l], b[l], c[l], 32, true))
#define BFE64(name, is_signed)                                                            \
	static void name(struct warp *w, const struct insn *in)                               \
	{                                                                                     \
		u64a *d = row64(w, in->d);                                                        \
		const u64a *a = row64(w, in->a);                                                  \
		const u32a *b = row32(w, in->b), *c = row32(w, in->c);                            \
		EACH_LANE(d[l] = extract(a[l], b[l], c[l], 64, is_signed));                       \
	}
BFE64(bfe_u64, false)
BFE64(bfe_s64, true)

static uint64_t insert(uint64_t a, uint64_t b, uint32_t pos, uint32_t len, unsigned bits)
{
	pos &= 0xff;
	len &= 0xff;
	if (pos >= bits || len == 0)
		return b;
	uint64_t field = len >= 64 ? UINT64_MAX : ((uint64_t)1 << len) - 1;

	return (b & ~(field << pos)) | ((a & field) << pos);
}
static void bfi32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b), *c = row32(w, in->c),
	           *e = row32(w, in->e);
	EACH_LANE(d[l] = (uint32_t)insert(a[l], b[l], c[l], e[l], 32));
}
static void bfi64(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a), *b = row64(w, in->b);
	const u32a *c = row32(w, in->c), *e = row32(w, in->e);
	EACH_LANE(d[l] = insert(a[l], b[l], c[l], e[l], 64));
}

static uint32_t reverse(uint32_t x)
{
	x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
	x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
	x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
	return __builtin_bswap32(x);
}
UNARY(popc32, u32a, row32, (uint32_t)__builtin_popcount(a[l]))
COUNT64(popc64, u64a, __builtin_popcountll(a[l]))
UNARY(clz32, u32a, row32, a[l] ? (uint32_t)__builtin_clz(a[l]) : 32)
COUNT64(clz64, u64a, a[l] ? __builtin_clzll(a[l]) : 64)
UNARY(brev32, u32a, row32, reverse(a[l]))
UNARY(brev64, u64a, row64,
      (uint64_t)reverse((uint32_t)a[l]) << 32 | reverse((uint32_t)(a[l] >> 32)))

/* The most significant bit that is not a sign bit; shift: from the top instead. */
static uint32_t find_bit(uint64_t x, unsigned bits, bool shift)
{
	if (x == 0)
		return 0xffffffffu;
	uint32_t top = 63 - (uint32_t)__builtin_clzll(x);

	return shift ? bits - 1 - top : top;
}
UNARY(bfind_u32, u32a, row32, find_bit(a[l], 32, in->sub))
UNARY(bfind_s32, u32a, row32, find_bit((int32_t)a[l] < 0 ? ~a[l] : a[l], 32, in->sub))
COUNT64(bfind_u64, u64a, find_bit(a[l], 64, in->sub))
COUNT64(bfind_s64, s64a, find_bit((uint64_t)(a[l] < 0 ? ~a[l] : a[l]), 64, in->sub))

BINARY(bmsk_clamp, u32a, row32, (uint32_t)insert(~0ull, 0, a[l] > 255 ? 255 : a[l],
                                                 b[l] > 32 ? 32 : b[l], 32))
BINARY(bmsk_wrap, u32a, row32, (uint32_t)insert(~0ull, 0, a[l] & 31, b[l] & 31, 32))

/* The low n bits of x, extended by 0 or by the uppermost of them; all of 32. */
static uint32_t widen(uint32_t x, uint32_t n, bool sign)
{
	if (n >= 32)
		return x;
	if (n == 0)
		return 0;
	uint32_t field = x & ((1u << n) - 1);

	return sign && field >> (n - 1) ? field | ~((1u << n) - 1) : field;
}
BINARY(szext_clamp, u32a, row32, widen(a[l], b[l], in->sub))
BINARY(szext_wrap, u32a, row32, widen(a[l], b[l] & 31, in->sub))

/* The nth set bit of mask from base upwards, downwards where n < 0; n 0: base itself, if it is set (PTX ISA, fns). */
static uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n)
{
	int32_t step = n < 0 ? -1 : 1, left = n < 0 ? -n : n;

	if (n == 0)
		return base < 32 && mask >> base & 1 ? base : 0xffffffffu;
	for (int64_t at = base; at >= 0 && at < 32; at += step)
		if (mask >> at & 1 && --left == 0)
			return (uint32_t)at;
	return 0xffffffffu;
}
static void fns(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b), *c = row32(w, in->c);

	EACH_LANE(d[l] = nth_set(a[l], b[l], (int32_t)c[l]));
}

/* Any function of three bits: bit (4a + 2b + c) of the table is the result. */
static void lop3(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b), *c = row32(w, in->c);
	const u32a *table = row32(w, in->e);
	uint32_t pick[8];

	for (int i = 0; i < 8; i++)
		pick[i] = (table[0] >> i) & 1 ? FULL : 0;
	EACH_LANE(uint32_t x = a[l]; uint32_t y = b[l]; uint32_t z = c[l];
	          d[l] = (pick[0] & ~x & ~y & ~z) | (pick[1] & ~x & ~y & z) | (pick[2] & ~x & y & ~z) |
	                 (pick[3] & ~x & y & z) | (pick[4] & x & ~y & ~z) | (pick[5] & x & ~y & z) |
	                 (pick[6] & x & y & ~z) | (pick[7] & x & y & z));
}

enum { LOGIC_AND, LOGIC_OR, LOGIC_XOR, LOGIC_NOT };
void op_pred_logic(struct warp *w, const struct insn *in)
{
	uint32_t a = pred_get(w, in->a);

	if (in->sub == LOGIC_NOT) {
		pred_set(w, in->d, ~a);
		return;
	}
	uint32_t b = pred_get(w, in->b);

	pred_set(w, in->d, in->sub == LOGIC_AND ? a & b : in->sub == LOGIC_OR ? a | b : a ^ b);
}

/* slct: c >= 0 ? a : b; sub: c is a float, and NaN is not >= 0. */
#define SLCT(name, T, row, C, expr)                                     \
	static void name(struct warp *w, const struct insn *in)             \
	{                                                                   \
		T *d = row(w, in->d);                                           \
		const T *a = row(w, in->a), *b = row(w, in->b);                 \
		const C *c = row32(w, in->c);                                   \
		EACH_LANE(d[l] = (expr) ? a[l] : b[l]);                         \
	}
SLCT(slct32, u32a, row32, s32a, c[l] >= 0)
SLCT(slct64, u64a, row64, s32a, c[l] >= 0)
SLCT(slct32f, u32a, row32, f32a, c[l] >= 0.0f)
SLCT(slct64f, u64a, row64, f32a, c[l] >= 0.0f)

#define SLCT_KEYS(type, operands, fn, fnf)                                          \
	{"slct." type ".s32", operands "r", fn, 0, 0, 0},                               \
		{"slct." type ".f32", operands "f", fnf, 0, F_FTZ, 0}

const struct op ops_bits[] = {
	{"and.b16", "hhh", and32, 0, 0, 0}, {"and.b32", "rrr", and32, 0, 0, 0}, {"and.b64", "lll", and64, 0, 0, 0},
	{"or.b16", "hhh", or32, 0, 0, 0}, {"or.b32", "rrr", or32, 0, 0, 0}, {"or.b64", "lll", or64, 0, 0, 0},
	{"xor.b16", "hhh", xor32, 0, 0, 0}, {"xor.b32", "rrr", xor32, 0, 0, 0}, {"xor.b64", "lll", xor64, 0, 0, 0},
	{"not.b16", "hh", not16, 0, 0, 0}, {"not.b32", "rr", not32, 0, 0, 0}, {"not.b64", "ll", not64, 0, 0, 0},
	{"cnot.b16", "hh", cnot16, 0, 0, 0}, {"cnot.b32", "rr", cnot32, 0, 0, 0}, {"cnot.b64", "ll", cnot64, 0, 0, 0},
	{"and.pred", "ppp", op_pred_logic, 0, 0, LOGIC_AND},
	{"or.pred", "ppp", op_pred_logic, 0, 0, LOGIC_OR},
	{"xor.pred", "ppp", op_pred_logic, 0, 0, LOGIC_XOR},
	{"not.pred", "pp", op_pred_logic, 0, 0, LOGIC_NOT},
	{"shl.b16", "hhr", shl16, 0, 0, 0}, {"shl.b32", "rrr", shl32, 0, 0, 0}, {"shl.b64", "llr", shl64, 0, 0, 0},
	{"shr.b16", "hhr", shr_u16, 0, 0, 0}, {"shr.b32", "rrr", shr_u32, 0, 0, 0}, {"shr.b64", "llr", shr_u64, 0, 0, 0},
	{"shr.u16", "hhr", shr_u16, 0, 0, 0}, {"shr.u32", "rrr", shr_u32, 0, 0, 0}, {"shr.u64", "llr", shr_u64, 0, 0, 0},
	{"shr.s16", "hhr", shr_s16, 0, 0, 0}, {"shr.s32", "rrr", shr_s32, 0, 0, 0}, {"shr.s64", "llr", shr_s64, 0, 0, 0},
	{"shf.l.wrap.b32", "rrrr", shf_l_wrap, 0, 0, 0}, {"shf.l.clamp.b32", "rrrr", shf_l_clamp, 0, 0, 0},
	{"shf.r.wrap.b32", "rrrr", shf_r_wrap, 0, 0, 0}, {"shf.r.clamp.b32", "rrrr", shf_r_clamp, 0, 0, 0},
	{"prmt.b32", "rrrr", prmt, 0, 0, 0}, {"prmt.b32.f4e", "rrrr", prmt, 0, 0, 1},
	{"prmt.b32.b4e", "rrrr", prmt, 0, 0, 2}, {"prmt.b32.rc8", "rrrr", prmt, 0, 0, 3},
	{"prmt.b32.ecl", "rrrr", prmt, 0, 0, 4}, {"prmt.b32.ecr", "rrrr", prmt, 0, 0, 5},
	{"prmt.b32.rc16", "rrrr", prmt, 0, 0, 6},
	{"bfe.u32", "rrrr", bfe_u32, 0, 0, 0}, {"bfe.s32", "rrrr", bfe_s32, 0, 0, 0}, {"bfe.u64", "llrr", bfe_u64, 0, 0, 0},
	{"bfe.s64", "llrr", bfe_s64, 0, 0, 0}, {"bfi.b32", "rrrrr", bfi32, 0, 0, 0}, {"bfi.b64", "lllrr", bfi64, 0, 0, 0},
	{"popc.b32", "rr", popc32, 0, 0, 0}, {"popc.b64", "rl", popc64, 0, 0, 0}, {"clz.b32", "rr", clz32, 0, 0, 0},
	{"clz.b64", "rl", clz64, 0, 0, 0}, {"brev.b32", "rr", brev32, 0, 0, 0}, {"brev.b64", "ll", brev64, 0, 0, 0},
	{"bfind.u32", "rr", bfind_u32, 0, 0, 0}, {"bfind.s32", "rr", bfind_s32, 0, 0, 0}, {"bfind.u64", "rl", bfind_u64, 0, 0, 0},
	{"bfind.s64", "rl", bfind_s64, 0, 0, 0}, {"bfind.shiftamt.u32", "rr", bfind_u32, 0, 0, 1},
	{"bfind.shiftamt.s32", "rr", bfind_s32, 0, 0, 1},
	{"bfind.shiftamt.u64", "rl", bfind_u64, 0, 0, 1},
	{"bfind.shiftamt.s64", "rl", bfind_s64, 0, 0, 1},
	{"bmsk.clamp.b32", "rrr", bmsk_clamp, 0, 0, 0}, {"bmsk.wrap.b32", "rrr", bmsk_wrap, 0, 0, 0},
	{"lop3.b32", "rrrrr", lop3, 0, 0, 0}, {"fns.b32", "rrrr", fns, 0, 0, 0},
	{"szext.clamp.u32", "rrr", szext_clamp, 0, 0, 0}, {"szext.clamp.s32", "rrr", szext_clamp, 0, 0, 1},
	{"szext.wrap.u32", "rrr", szext_wrap, 0, 0, 0}, {"szext.wrap.s32", "rrr", szext_wrap, 0, 0, 1},
	SLCT_KEYS("b32", "rrr", slct32, slct32f), SLCT_KEYS("u32", "rrr", slct32, slct32f),
	SLCT_KEYS("s32", "rrr", slct32, slct32f), SLCT_KEYS("f32", "fff", slct32, slct32f),
	SLCT_KEYS("b64", "lll", slct64, slct64f), SLCT_KEYS("u64", "lll", slct64, slct64f),
	SLCT_KEYS("s64", "lll", slct64, slct64f), SLCT_KEYS("f64", "ddd", slct64, slct64f),
	SLCT_KEYS("b16", "hhh", slct32, slct32f), SLCT_KEYS("u16", "hhh", slct32, slct32f),
	SLCT_KEYS("s16", "hhh", slct32, slct32f),
	{0},
};
