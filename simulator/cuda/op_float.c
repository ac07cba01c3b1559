/*
 * Floating point (PTX ISA, 9.7.3 and 9.7.4). Results are those of IEEE 754 in
 * the precision of the instruction: the compiler must not contract or widen.
 */
#include "ops.h"
#include "real.h"
#include "warp.h"

#if !defined(__STRICT_ANSI__) || defined(__FAST_MATH__)
#error "compile with -std=c11: GNU modes contract a*b+c into one rounding"
#endif

#include <fenv.h>
#include <math.h>

/* As a GPU writes NaN. */
static inline float one_nan(float x) { return x == x ? x : float_of(0x7fffffffu); }

#define F32_2(name, expr)                                         \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		f32a *d = row32(w, in->d);                                \
		const f32a *a = row32(w, in->a), *b = row32(w, in->b);    \
		EACH_LANE(d[l] = one_nan(expr));                          \
	}
#define F64_2(name, expr)                                         \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		f64a *d = row64(w, in->d);                                \
		const f64a *a = row64(w, in->a), *b = row64(w, in->b);    \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define F32_1(name, expr)                                         \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		f32a *d = row32(w, in->d);                                \
		const f32a *a = row32(w, in->a);                          \
		EACH_LANE(d[l] = (expr));                                 \
	}
#define F64_1(name, expr)                                         \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		f64a *d = row64(w, in->d);                                \
		const f64a *a = row64(w, in->a);                          \
		EACH_LANE(d[l] = (expr));                                 \
	}

F32_2(add32, a[l] + b[l])
F32_2(sub32, a[l] - b[l])
F32_2(mul32, a[l] * b[l])
F32_2(div32, a[l] / b[l])
F64_2(add64, a[l] + b[l])
F64_2(sub64, a[l] - b[l])
F64_2(mul64, a[l] * b[l])
F64_2(div64, a[l] / b[l])
F32_1(rcp32, one_nan(1.0f / a[l]))
F32_1(sqrt32, one_nan(sqrtf(a[l])))
F64_1(rcp64, 1.0 / a[l])
F64_1(sqrt64, sqrt(a[l]))

#define FMA_BODY(T, row, expr)                                                      \
	{                                                                               \
		T *d = row(w, in->d);                                                       \
		const T *a = row(w, in->a), *b = row(w, in->b), *c = row(w, in->c);         \
		EACH_LANE(d[l] = (expr));                                                   \
	}
#ifdef __x86_64__
/* With the processor's instruction where it has one; without it libm emulates. */
__attribute__((target("avx2,fma"))) static void fma32_fast(struct warp *w, const struct insn *in)
FMA_BODY(f32a, row32, one_nan(__builtin_fmaf(a[l], b[l], c[l])))
__attribute__((target("avx2,fma"))) static void fma64_fast(struct warp *w, const struct insn *in)
FMA_BODY(f64a, row64, __builtin_fma(a[l], b[l], c[l]))
static void fma32_any(struct warp *w, const struct insn *in)
FMA_BODY(f32a, row32, one_nan(fmaf(a[l], b[l], c[l])))
static void fma64_any(struct warp *w, const struct insn *in)
FMA_BODY(f64a, row64, fma(a[l], b[l], c[l]))

static void fma32(struct warp *w, const struct insn *in)
{
	(__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") ? fma32_fast : fma32_any)(w, in);
}
static void fma64(struct warp *w, const struct insn *in)
{
	(__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") ? fma64_fast : fma64_any)(w, in);
}
#else
static void fma32(struct warp *w, const struct insn *in)
FMA_BODY(f32a, row32, one_nan(fmaf(a[l], b[l], c[l])))
static void fma64(struct warp *w, const struct insn *in)
FMA_BODY(f64a, row64, fma(a[l], b[l], c[l]))
#endif

/* The same with .rz/.rm/.rp, .ftz or .sat, one lane at a time. */
enum { X_ADD, X_SUB, X_MUL, X_DIV, X_FMA, X_RCP, X_SQRT };

static int host_rounding(unsigned flags)
{
	return flags & F_RZ   ? FE_TOWARDZERO
	       : flags & F_RM ? FE_DOWNWARD
	       : flags & F_RP ? FE_UPWARD
	                      : FE_TONEAREST;
}

/* volatile keeps the arithmetic between the two changes of rounding mode. */
static float compute32(unsigned op, float x, float y, float z)
{
	volatile float a = x, b = y, c = z, r;

	switch (op) {
	case X_ADD: r = a + b; break;
	case X_SUB: r = a - b; break;
	case X_MUL: r = a * b; break;
	case X_DIV: r = a / b; break;
	case X_FMA: r = fmaf(a, b, c); break;
	case X_RCP: r = 1.0f / a; break;
	default: r = sqrtf(a);
	}
	return r;
}

static double compute64(unsigned op, double x, double y, double z)
{
	volatile double a = x, b = y, c = z, r;

	switch (op) {
	case X_ADD: r = a + b; break;
	case X_SUB: r = a - b; break;
	case X_MUL: r = a * b; break;
	case X_DIV: r = a / b; break;
	case X_FMA: r = fma(a, b, c); break;
	case X_RCP: r = 1.0 / a; break;
	default: r = sqrt(a);
	}
	return r;
}

static void flagged32(struct warp *w, const struct insn *in)
{
	f32a *d = row32(w, in->d);
	const f32a *a = row32(w, in->a), *b = in->b == REF_NONE ? a : row32(w, in->b),
	           *c = in->c == REF_NONE ? a : row32(w, in->c);
	bool ftz = in->flags & F_FTZ, sat = in->flags & F_SAT;
	int mode = host_rounding(in->flags);

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);
		float x = ftz ? flush(a[l]) : a[l], y = ftz ? flush(b[l]) : b[l], z = ftz ? flush(c[l]) : c[l];

		if (mode != FE_TONEAREST)
			fesetround(mode);
		float r = compute32(in->sub, x, y, z);
		if (mode != FE_TONEAREST)
			fesetround(FE_TONEAREST);
		if (ftz)
			r = flush(r);
		d[l] = sat ? saturate(r) : one_nan(r);
	}
}

static void flagged64(struct warp *w, const struct insn *in)
{
	f64a *d = row64(w, in->d);
	const f64a *a = row64(w, in->a), *b = in->b == REF_NONE ? a : row64(w, in->b),
	           *c = in->c == REF_NONE ? a : row64(w, in->c);
	int mode = host_rounding(in->flags);

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);

		fesetround(mode);
		double r = compute64(in->sub, a[l], b[l], c[l]);
		fesetround(FE_TONEAREST);
		d[l] = r;
	}
}

/* abs, neg and copysign change the sign and nothing else, also of NaN. */
static void abs32(struct warp *w, const struct insn *in)
{
	f32a *d = row32(w, in->d);
	const f32a *a = row32(w, in->a);
	bool ftz = in->flags & F_FTZ;
	EACH_LANE(float x = ftz ? flush(a[l]) : a[l]; d[l] = float_of(bits_of(x) & 0x7fffffffu));
}
static void neg32(struct warp *w, const struct insn *in)
{
	f32a *d = row32(w, in->d);
	const f32a *a = row32(w, in->a);
	bool ftz = in->flags & F_FTZ;
	EACH_LANE(float x = ftz ? flush(a[l]) : a[l]; d[l] = float_of(bits_of(x) ^ 0x80000000u));
}
F64_1(abs64, fabs(a[l]))
F64_1(neg64, -a[l])
#define COPYSIGN(name, T, row, sign)                              \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		T *d = row(w, in->d);                                     \
		const T *a = row(w, in->a), *b = row(w, in->b);           \
		EACH_LANE(d[l] = (a[l] & (sign)) | (b[l] & ~(T)(sign)));  \
	}
COPYSIGN(copysign32, u32a, row32, 0x80000000u)
COPYSIGN(copysign64, u64a, row64, 0x8000000000000000ull)

/* The smaller (sub 0) or larger; a number beats NaN unless .NaN; -0 is below +0. */
static float pick32(float x, float y, const struct insn *in)
{
	if (in->flags & F_FTZ) {
		x = flush(x);
		y = flush(y);
	}
	if (x != x || y != y) {
		if ((in->flags & F_NAN) || (x != x && y != y))
			return float_of(0x7fffffffu);
		return x != x ? y : x;
	}
	if (x == y)
		return (bits_of(x) >> 31) != in->sub ? x : y;
	return (x < y) != in->sub ? x : y;
}
F32_2(pick_f32, pick32(a[l], b[l], in))

/* .xorsign.abs: magnitudes are compared, and signs multiplied. */
static float pick_abs32(float x, float y, const struct insn *in)
{
	float r = pick32(fabsf(x), fabsf(y), in);

	return r != r ? r : copysignf(r, !!signbit(x) != !!signbit(y) ? -1.0f : 1.0f);
}
F32_2(pick_abs_f32, pick_abs32(a[l], b[l], in))

static double pick64(double x, double y, const struct insn *in)
{
	if (x != x || y != y)
		return x != x ? y : x;
	if (x == y)
		return (uint32_t)!!signbit(x) != in->sub ? x : y;
	return (x < y) != in->sub ? x : y;
}
F64_2(pick_f64, pick64(a[l], b[l], in))

/* The .approx functions: the host's are at least as exact as a GPU's. */
enum { A_SIN, A_COS, A_EX2, A_LG2, A_TANH, A_RSQRT, A_RCP, A_SQRT };
static float approx(unsigned f, float x)
{
	switch (f) {
	case A_SIN: return sinf(x);
	case A_COS: return cosf(x);
	case A_EX2: return exp2f(x);
	case A_LG2: return log2f(x);
	case A_TANH: return tanhf(x);
	case A_RSQRT: return (float)(1.0 / sqrt((double)x));
	case A_RCP: return 1.0f / x;
	default: return sqrtf(x);
	}
}
static void approx32(struct warp *w, const struct insn *in)
{
	f32a *d = row32(w, in->d);
	const f32a *a = row32(w, in->a);
	bool ftz = in->flags & F_FTZ;
	EACH_LANE(float x = ftz ? flush(a[l]) : a[l]; float r = approx(in->sub, x);
	          d[l] = one_nan(ftz ? flush(r) : r));
}
F64_1(rsqrt64, 1.0 / sqrt(a[l]))

#define R3 (F_RN | F_RZ | F_RM | F_RP)
const struct op ops_float[] = {
	{"add.f32", "fff", add32, flagged32, R3 | F_FTZ | F_SAT, X_ADD},
	{"sub.f32", "fff", sub32, flagged32, R3 | F_FTZ | F_SAT, X_SUB},
	{"mul.f32", "fff", mul32, flagged32, R3 | F_FTZ | F_SAT, X_MUL},
	{"fma.f32", "ffff", fma32, flagged32, R3 | F_FTZ | F_SAT, X_FMA},
	{"mad.f32", "ffff", fma32, flagged32, R3 | F_FTZ | F_SAT, X_FMA},
	{"div.f32", "fff", div32, flagged32, R3 | F_FTZ, X_DIV},
	{"div.approx.f32", "fff", div32, flagged32, F_FTZ, X_DIV},
	{"div.full.f32", "fff", div32, flagged32, F_FTZ, X_DIV},
	{"rcp.f32", "ff", rcp32, flagged32, R3 | F_FTZ, X_RCP},
	{"sqrt.f32", "ff", sqrt32, flagged32, R3 | F_FTZ, X_SQRT},
	{"add.f64", "ddd", add64, flagged64, R3, X_ADD},
	{"sub.f64", "ddd", sub64, flagged64, R3, X_SUB},
	{"mul.f64", "ddd", mul64, flagged64, R3, X_MUL},
	{"fma.f64", "dddd", fma64, flagged64, R3, X_FMA},
	{"mad.f64", "dddd", fma64, flagged64, R3, X_FMA},
	{"div.f64", "ddd", div64, flagged64, R3, X_DIV},
	{"rcp.f64", "dd", rcp64, flagged64, R3, X_RCP},
	{"sqrt.f64", "dd", sqrt64, flagged64, R3, X_SQRT},
	{"abs.f32", "ff", abs32, 0, F_FTZ, 0},
	{"neg.f32", "ff", neg32, 0, F_FTZ, 0},
	{"abs.f64", "dd", abs64, 0, 0, 0},
	{"neg.f64", "dd", neg64, 0, 0, 0},
	{"copysign.f32", "fff", copysign32, 0, 0, 0},
	{"copysign.f64", "ddd", copysign64, 0, 0, 0},
	{"min.f32", "fff", pick_f32, 0, F_FTZ | F_NAN, 0},
	{"max.f32", "fff", pick_f32, 0, F_FTZ | F_NAN, 1},
	{"min.xorsign.abs.f32", "fff", pick_abs_f32, 0, F_FTZ | F_NAN, 0},
	{"max.xorsign.abs.f32", "fff", pick_abs_f32, 0, F_FTZ | F_NAN, 1},
	{"min.f64", "ddd", pick_f64, 0, 0, 0},
	{"max.f64", "ddd", pick_f64, 0, 0, 1},
	{"sin.approx.f32", "ff", approx32, 0, F_FTZ, A_SIN},
	{"cos.approx.f32", "ff", approx32, 0, F_FTZ, A_COS},
	{"ex2.approx.f32", "ff", approx32, 0, F_FTZ, A_EX2},
	{"lg2.approx.f32", "ff", approx32, 0, F_FTZ, A_LG2},
	{"tanh.approx.f32", "ff", approx32, 0, 0, A_TANH},
	{"rsqrt.approx.f32", "ff", approx32, 0, F_FTZ, A_RSQRT},
	{"rcp.approx.f32", "ff", approx32, 0, F_FTZ, A_RCP},
	{"sqrt.approx.f32", "ff", approx32, 0, F_FTZ, A_SQRT},
	{"rsqrt.approx.f64", "dd", rsqrt64, 0, F_FTZ, 0},
	{"rcp.approx.f64", "dd", rcp64, 0, F_FTZ, 0},
	{0},
};
