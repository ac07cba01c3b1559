/* Conversions to tf32, and those that pack saturated integers. */
#include "ops.h"
#include "real.h"
#include "warp.h"

/* The exponent of single precision and 10 bits of fraction; without a direction ties go away from 0. */
static uint32_t to_tf32(uint32_t bits, unsigned flags)
{
	float f = float_of(bits);

	if ((flags & F_RELU) && f < 0)
		return 0;
	if (f != f)
		return 0x7fffffffu;
	if ((bits & 0x7f800000u) == 0x7f800000u)
		return bits;
	if (flags & F_RZ)
		return bits & ~0x1fffu;
	if (flags & F_RN)
		return (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
	return (bits + 0x1000u) & ~0x1fffu;
}

void op_cvt_tf32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a);

	EACH_LANE(d[l] = to_tf32(a[l], in->flags));
}

static uint32_t saturated(int32_t v, enum type t)
{
	int32_t low = t == T_S8 ? INT8_MIN : t == T_S16 ? INT16_MIN : 0;
	int32_t high = t == T_S8 ? INT8_MAX : t == T_S16 ? INT16_MAX : t == T_U8 ? UINT8_MAX : UINT16_MAX;
	uint32_t mask = type_size(t) == 1 ? 0xff : 0xffff;

	return (uint32_t)(v < low ? low : v > high ? high : v) & mask;
}

void op_cvt_pack(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const s32a *a = row32(w, in->a), *b = row32(w, in->b);
	const u32a *c = in->c == REF_NONE ? NULL : row32(w, in->c);
	unsigned bits = type_size(in->type) * 8;

	EACH_LANE(d[l] = (c ? c[l] << 2 * bits : 0) | saturated(a[l], in->type) << bits | saturated(b[l], in->type));
}
