/* Atomic operations (PTX ISA, 9.7.13): blocks run on several cores. */
#include "atom.h"
#include "memory_ops.h"
#include "ops.h"
#include "real.h"

static uint64_t add_reals(uint64_t old, uint64_t b, enum type t)
{
	switch (t) {
	case T_F32: return bits_of(float_of((uint32_t)old) + float_of((uint32_t)b));
	case T_F64: return bits_of_double(double_of(old) + double_of(b));
	case T_F16: return half_from(half_value((uint16_t)old) + half_value((uint16_t)b), 0);
	case T_BF16: return bfloat_from(bfloat_value((uint16_t)old) + bfloat_value((uint16_t)b), 0);
	case T_F16X2: case T_BF16X2: {
		enum type half = t == T_F16X2 ? T_F16 : T_BF16;

		return add_reals(old & 0xffff, b & 0xffff, half) |
		       add_reals(old >> 16 & 0xffff, b >> 16 & 0xffff, half) << 16;
	}
	default: return old + b;
	}
}

static uint64_t combine(const struct insn *in, uint64_t old, uint64_t b, uint64_t c)
{
	bool less = in->type == T_S32   ? (int32_t)b < (int32_t)old
	            : in->type == T_S64 ? (int64_t)b < (int64_t)old
	                                : b < old;

	switch (in->sub) {
	case ATOM_ADD: return add_reals(old, b, in->type);
	case ATOM_MIN: return less ? b : old;
	case ATOM_MAX: return less ? old : b;
	case ATOM_AND: return old & b;
	case ATOM_OR: return old | b;
	case ATOM_XOR: return old ^ b;
	case ATOM_EXCH: return b;
	case ATOM_CAS: return old == b ? c : old;
	case ATOM_INC: return old >= b ? 0 : old + 1;
	default: return old == 0 || old > b ? b : old - 1; /* DEC */
	}
}

#define UPDATE(T)                                                                              \
	do {                                                                                       \
		T *at = (T *)(void *)p, old = __atomic_load_n(at, __ATOMIC_RELAXED);                   \
		while (!__atomic_compare_exchange_n(at, &old, (T)combine(in, old, b, c), false,        \
		                                    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))               \
			;                                                                                  \
		return old;                                                                            \
	} while (0)

static uint64_t update(uint8_t *p, const struct insn *in, uint64_t b, uint64_t c)
{
	if (in->size == 2)
		UPDATE(uint16_t);
	if (in->size == 4)
		UPDATE(uint32_t);
	UPDATE(uint64_t);
}

void op_atom(struct warp *w, const struct insn *in)
{
	bool wide = in->size == 8;
	uint64_t mask = in->size == 8 ? UINT64_MAX : in->size == 4 ? 0xffffffffu : 0xffffu;

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);
		uint8_t *p = lane_memory(w, in, l, in->space, lane_address(w, in, l), in->size, true);

		if (!p)
			return;
		uint64_t b = wide ? ((const u64a *)row64(w, in->b))[l] : ((const u32a *)row32(w, in->b))[l];
		uint64_t c = in->c == REF_NONE ? 0
		             : wide            ? ((const u64a *)row64(w, in->c))[l]
		                               : ((const u32a *)row32(w, in->c))[l];
		uint64_t old = update(p, in, b & mask, c & mask);

		if (in->d == REF_NONE)
			continue;
		if (wide)
			((u64a *)row64(w, in->d))[l] = old;
		else
			((u32a *)row32(w, in->d))[l] = (uint32_t)old;
	}
}
