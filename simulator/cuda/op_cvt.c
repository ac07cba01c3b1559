/*
 * Conversions (PTX ISA, 9.7.9.21 and following). insn.type is what comes out,
 * type2 what goes in, sub the width in bits of the register that receives it,
 * vec whether the source register is 64-bit.
 */
#include "ops.h"
#include "real.h"
#include "warp.h"

#include <fenv.h>

static bool is_float(enum type t)
{
	return t == T_F16 || t == T_BF16 || t == T_F32 || t == T_F64;
}

static bool is_signed(enum type t)
{
	return t == T_S8 || t == T_S16 || t == T_S32 || t == T_S64;
}

static uint64_t extend(uint64_t v, enum type t)
{
	switch (type_size(t)) {
	case 1: return is_signed(t) ? (uint64_t)(int64_t)(int8_t)v : (uint8_t)v;
	case 2: return is_signed(t) ? (uint64_t)(int64_t)(int16_t)v : (uint16_t)v;
	case 4: return is_signed(t) ? (uint64_t)(int64_t)(int32_t)v : (uint32_t)v;
	default: return v;
	}
}

static double real_value(uint64_t v, enum type t, unsigned flags)
{
	switch (t) {
	case T_F16: return half_value((uint16_t)v);
	case T_BF16: return bfloat_value((uint16_t)v);
	case T_F32: return (double)(flags & F_FTZ ? flush(float_of((uint32_t)v)) : float_of((uint32_t)v));
	default: return double_of(v);
	}
}

/* To an integer, in the given direction. */
static double whole(double d, unsigned flags)
{
	return flags & F_RZ ? trunc(d) : flags & F_RM ? floor(d) : flags & F_RP ? ceil(d) : nearbyint(d);
}

static uint64_t real_to_int(double d, enum type to, enum type from, unsigned flags)
{
	unsigned bits = type_size(to) * 8;

	if (d != d)
		return from == T_F64 || bits == 64 ? extend((uint64_t)1 << (bits - 1), to) : 0;
	d = whole(d, flags);
	if (is_signed(to)) {
		double top = ldexp(1.0, (int)bits - 1);

		if (d >= top)
			return ((uint64_t)1 << (bits - 1)) - 1;
		return (uint64_t)(d < -top ? -(int64_t)(((uint64_t)1 << (bits - 1)) - 1) - 1 : (int64_t)d);
	}
	if (d <= 0)
		return 0;
	if (d >= ldexp(1.0, (int)bits))
		return bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
	return (uint64_t)d;
}

static int host_rounding(unsigned flags)
{
	return flags & F_RZ   ? FE_TOWARDZERO
	       : flags & F_RM ? FE_DOWNWARD
	       : flags & F_RP ? FE_UPWARD
	                      : FE_TONEAREST;
}

static uint64_t float_bits(float f, unsigned flags)
{
	if (flags & F_FTZ)
		f = flush(f);
	if (flags & F_SAT)
		f = saturate(f);
	return f == f ? bits_of(f) : 0x7fffffffu;
}

static uint64_t int_to_real(uint64_t v, bool negative, enum type to, unsigned flags)
{
	volatile int64_t s = (int64_t)v;
	volatile uint64_t u = v;
	volatile float f;
	volatile double d;
	int mode = host_rounding(flags);

	if (mode != FE_TONEAREST)
		fesetround(mode);
	if (to == T_F32)
		f = negative ? (float)s : (float)u;
	else
		d = negative ? (double)s : (double)u;
	if (mode != FE_TONEAREST)
		fesetround(FE_TONEAREST);
	/* Beyond 2^53 a double is not exact, but then half-width numbers are infinite or saturated. */
	switch (to) {
	case T_F32: return float_bits(f, flags);
	case T_F16: return half_from(d, flags);
	case T_BF16: return bfloat_from(d, flags);
	default: return bits_of_double(d);
	}
}

static uint64_t real_to_real(double d, enum type to, unsigned flags)
{
	if ((flags & F_RELU) && d < 0)
		d = 0;
	if (flags & F_INT)
		d = whole(d, flags);
	if ((flags & F_SAT) && to != T_F32)
		d = !(d > 0.0) ? 0.0 : d > 1.0 ? 1.0 : d;
	switch (to) {
	case T_F16: return half_from(d, flags & F_INT ? 0 : flags);
	case T_BF16: return bfloat_from(d, flags & F_INT ? 0 : flags);
	case T_F32: return float_bits((float)round_to(d, 24, -126, 127, flags & F_INT ? 0 : flags), flags);
	default: return bits_of_double(d);
	}
}

static uint64_t clamp(uint64_t v, bool negative, enum type to)
{
	unsigned bits = type_size(to) * 8;
	uint64_t top = is_signed(to) ? ((uint64_t)1 << (bits - 1)) - 1
	               : bits == 64  ? UINT64_MAX
	                             : ((uint64_t)1 << bits) - 1;

	if (!negative)
		return v > top ? top : v;
	if (!is_signed(to))
		return 0;
	return (int64_t)v < -(int64_t)top - 1 ? (uint64_t)(-(int64_t)top - 1) : v;
}

static uint64_t convert(uint64_t v, const struct insn *in)
{
	enum type to = in->type, from = in->type2;
	uint64_t r;

	if (is_float(from)) {
		double d = real_value(v, from, in->flags);

		return is_float(to) ? real_to_real(d, to, in->flags)
		                    : real_to_int(d, to, from, in->flags);
	}
	v = extend(v, from);
	bool negative = is_signed(from) && (int64_t)v < 0;

	if (is_float(to))
		return int_to_real(v, negative, to, in->flags);
	r = in->flags & F_SAT ? clamp(v, negative, to) : v;
	return extend(r, to);
}

static void store(struct warp *w, const struct insn *in, int lane, uint64_t v)
{
	if (in->sub == 64)
		((u64a *)row64(w, in->d))[lane] = v;
	else
		((u32a *)row32(w, in->d))[lane] = in->sub == 16 ? (uint16_t)v : (uint32_t)v;
}

void op_cvt(struct warp *w, const struct insn *in)
{
	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);

		if (in->type == T_F16X2 || in->type == T_BF16X2) {
			uint32_t hi = ((const u32a *)row32(w, in->a))[l], lo = ((const u32a *)row32(w, in->b))[l];
			enum type half = in->type == T_F16X2 ? T_F16 : T_BF16;

			((u32a *)row32(w, in->d))[l] = (uint32_t)real_to_real((double)float_of(hi), half, in->flags) << 16 |
			                               (uint32_t)real_to_real((double)float_of(lo), half, in->flags);
			continue;
		}
		uint64_t v = in->vec ? ((const u64a *)row64(w, in->a))[l] : ((const u32a *)row32(w, in->a))[l];

		store(w, in, l, convert(v, in));
	}
}

/* What compilers emit all the time, without a decision for each lane. */
#define CAST(name, D, drow, S, srow, expr)                        \
	static void name(struct warp *w, const struct insn *in)       \
	{                                                             \
		D *d = drow(w, in->d);                                    \
		const S *a = srow(w, in->a);                              \
		EACH_LANE(d[l] = (expr));                                 \
	}
CAST(s32_to_64, s64a, row64, s32a, row32, a[l])
CAST(u32_to_64, u64a, row64, u32a, row32, a[l])
CAST(b64_to_32, u32a, row32, u64a, row64, (uint32_t)a[l])
CAST(u16_to_32, u32a, row32, u32a, row32, (uint16_t)a[l])
CAST(s16_to_32, s32a, row32, u32a, row32, (int16_t)a[l])
CAST(b32_to_16, u32a, row32, u32a, row32, (uint16_t)a[l])
CAST(s32_to_f32, f32a, row32, s32a, row32, (float)a[l])
CAST(u32_to_f32, f32a, row32, u32a, row32, (float)a[l])
CAST(f32_to_f64, f64a, row64, f32a, row32, (double)a[l])
CAST(s32_to_f64, f64a, row64, s32a, row32, (double)a[l])

op_fn *fast_cvt(enum type to, enum type from)
{
	static const struct { enum type to, from; op_fn *fn; } known[] = {
		{T_S64, T_S32, s32_to_64}, {T_U64, T_S32, s32_to_64}, {T_U64, T_U32, u32_to_64},
		{T_S64, T_U32, u32_to_64}, {T_U32, T_U64, b64_to_32}, {T_U32, T_S64, b64_to_32},
		{T_S32, T_U64, b64_to_32}, {T_S32, T_S64, b64_to_32}, {T_U32, T_U16, u16_to_32},
		{T_S32, T_U16, u16_to_32}, {T_S32, T_S16, s16_to_32}, {T_U32, T_S16, s16_to_32},
		{T_U16, T_U32, b32_to_16}, {T_U16, T_S32, b32_to_16}, {T_S16, T_U32, b32_to_16},
		{T_S16, T_S32, b32_to_16}, {T_F32, T_S32, s32_to_f32}, {T_F32, T_U32, u32_to_f32},
		{T_F64, T_F32, f32_to_f64}, {T_F64, T_S32, s32_to_f64},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].to == to && known[i].from == from)
			return known[i].fn;
	return NULL;
}
