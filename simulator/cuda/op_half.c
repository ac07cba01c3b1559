/* f16, f16x2, bf16, bf16x2 (PTX ISA, 9.7.4). */
#include "ops.h"
#include "real.h"
#include "warp.h"

double round_to(double d, int p, int emin, int emax, unsigned flags)
{
	int e;

	if (d != d || isinf(d) || d == 0.0)
		return d;
	frexp(d, &e); /* |d| = m × 2^e, 0.5 <= m < 1 */
	e = e - 1 < emin ? emin : e - 1;
	double unit = ldexp(1.0, e - (p - 1)); /* one in the last place */
	double q = d / unit;                   /* exact: a power of two */
	double r = flags & F_RZ ? trunc(q) : flags & F_RM ? floor(q) : flags & F_RP ? ceil(q) : nearbyint(q);
	double out = r * unit;
	double most = ldexp(2.0 - ldexp(1.0, 1 - p), emax);

	if (fabs(out) > most) {
		bool keep = (flags & F_RZ) || ((flags & F_RM) && d > 0) || ((flags & F_RP) && d < 0);

		return copysign(keep ? most : INFINITY, d);
	}
	return out == 0.0 ? copysign(0.0, d) : out;
}

uint16_t half_from(double d, unsigned flags)
{
	uint16_t sign = signbit(d) ? 0x8000 : 0;
	int e;

	if (d != d)
		return 0x7fff;
	d = fabs(round_to(d, 11, -14, 15, flags));
	if (isinf(d))
		return sign | 0x7c00;
	if (d < 0x1p-14)
		return (uint16_t)(sign | (uint16_t)(d * 0x1p24));
	double m = frexp(d, &e); /* e - 1 in -14 … 15 */
	return (uint16_t)(sign | (uint16_t)((e - 1 + 15) << 10) | (uint16_t)((m * 2 - 1) * 1024));
}

double half_value(uint16_t h)
{
	double sign = h & 0x8000 ? -1.0 : 1.0;
	int e = (h >> 10) & 31, m = h & 1023;

	if (e == 31)
		return m ? (double)NAN : sign * (double)INFINITY;
	return sign * (e ? ldexp(1024 + m, e - 25) : ldexp(m, -24));
}

uint16_t bfloat_from(double d, unsigned flags)
{
	if (d != d)
		return 0x7fff;
	return (uint16_t)(bits_of((float)round_to(d, 8, -126, 127, flags)) >> 16);
}

enum { H_ADD, H_SUB, H_MUL, H_FMA, H_MIN, H_MAX, H_NEG, H_ABS, H_EX2, H_TANH,
       H_RELU = 0x40, H_XORSIGN = 0x80, H_CODE = 0x3f };

/*
 * Double holds sums, products and fused products of half-width numbers exactly
 * wherever their rounding can depend on it.
 */
static double compute(unsigned op, double a, double b, double c, bool nan)
{
	switch (op) {
	case H_ADD: return a + b;
	case H_SUB: return a - b;
	case H_MUL: return a * b;
	case H_FMA: return fma(a, b, c);
	case H_EX2: return exp2(a);
	case H_TANH: return tanh(a);
	case H_MIN:
	case H_MAX:
		if (a != a || b != b)
			return nan || (a != a && b != b) ? (double)NAN : a != a ? b : a;
		if (a == b)
			return (op == H_MIN) == !!signbit(a) ? a : b;
		return (a < b) == (op == H_MIN) ? a : b;
	default: return a;
	}
}

/* With .relu negative results are 0; with .xorsign.abs magnitudes are compared, and signs multiplied. */
static double compute_modified(const struct insn *in, double a, double b, double c)
{
	unsigned op = in->sub & H_CODE;
	bool nan = in->flags & F_NAN;

	if (in->sub & H_XORSIGN) {
		double r = compute(op, fabs(a), fabs(b), c, nan);

		return r != r ? r : copysign(r, !!signbit(a) != !!signbit(b) ? -1.0 : 1.0);
	}
	double r = compute(op, a, b, c, nan);

	return (in->sub & H_RELU) && r <= 0 ? 0 : r;
}

static uint16_t half_op(const struct insn *in, uint16_t a, uint16_t b, uint16_t c)
{
	if (in->sub == H_NEG)
		return a ^ 0x8000;
	if (in->sub == H_ABS)
		return a & 0x7fff;
	double r = compute_modified(in, half_value(a), half_value(b), half_value(c));

	if (in->flags & F_SAT)
		r = !(r > 0.0) ? 0.0 : r > 1.0 ? 1.0 : r;
	uint16_t h = half_from(r, F_RN);

	return (in->flags & F_FTZ) && (h & 0x7c00) == 0 ? h & 0x8000 : h;
}

static uint16_t bfloat_op(const struct insn *in, uint16_t a, uint16_t b, uint16_t c)
{
	if (in->sub == H_NEG)
		return a ^ 0x8000;
	if (in->sub == H_ABS)
		return a & 0x7fff;
	return bfloat_from(compute_modified(in, bfloat_value(a), bfloat_value(b), bfloat_value(c)), F_RN);
}

#define HALF(name, one, pairs)                                                        \
	static void name(struct warp *w, const struct insn *in)                           \
	{                                                                                 \
		u32a *d = row32(w, in->d);                                                    \
		const u32a *a = row32(w, in->a), *b = in->b == REF_NONE ? a : row32(w, in->b),\
		           *c = in->c == REF_NONE ? a : row32(w, in->c);                      \
		EACH_LANE(uint32_t x = a[l]; uint32_t y = b[l]; uint32_t z = c[l];            \
		          uint32_t r = one(in, (uint16_t)x, (uint16_t)y, (uint16_t)z);        \
		          if (pairs) r |= (uint32_t)one(in, (uint16_t)(x >> 16),              \
		                                        (uint16_t)(y >> 16),                  \
		                                        (uint16_t)(z >> 16)) << 16;           \
		          d[l] = r);                                                          \
	}
HALF(f16, half_op, false)
HALF(f16x2, half_op, true)
HALF(bf16, bfloat_op, false)
HALF(bf16x2, bfloat_op, true)

#define KEYS(op, code, one, two)                                                               \
	{op ".f16", one, f16, 0, F_RN | F_FTZ | F_SAT | F_NAN, code},                              \
		{op ".f16x2", two, f16x2, 0, F_RN | F_FTZ | F_SAT | F_NAN, code},                      \
		{op ".bf16", one, bf16, 0, F_RN | F_NAN, code},                                        \
		{op ".bf16x2", two, bf16x2, 0, F_RN | F_NAN, code}

const struct op ops_half[] = {
	KEYS("add", H_ADD, "eee", "xxx"), KEYS("sub", H_SUB, "eee", "xxx"),
	KEYS("mul", H_MUL, "eee", "xxx"), KEYS("fma", H_FMA, "eeee", "xxxx"),
	KEYS("min", H_MIN, "eee", "xxx"), KEYS("max", H_MAX, "eee", "xxx"),
	KEYS("fma.relu", H_FMA | H_RELU, "eeee", "xxxx"), KEYS("min.xorsign.abs", H_MIN | H_XORSIGN, "eee", "xxx"),
	KEYS("max.xorsign.abs", H_MAX | H_XORSIGN, "eee", "xxx"),
	KEYS("neg", H_NEG, "ee", "xx"), KEYS("abs", H_ABS, "ee", "xx"),
	KEYS("ex2.approx", H_EX2, "ee", "xx"), {"ex2.approx.ftz.bf16", "ee", bf16, 0, 0, H_EX2},
	{"ex2.approx.ftz.bf16x2", "xx", bf16x2, 0, 0, H_EX2}, KEYS("tanh.approx", H_TANH, "ee", "xx"),
	{0},
};
