/* How lanes reach memory. */
#ifndef MEMORY_OPS_H
#define MEMORY_OPS_H

#include "warp.h"

/*
 * The host address of bytes at addr in space for one lane; NULL after a fault
 * was recorded: out of bounds (700), misaligned (716), a store to constants.
 */
uint8_t *lane_memory(struct warp *w, const struct insn *in, int lane, enum space space,
                     uint64_t addr, unsigned bytes, bool write);

static inline uint64_t lane_address(const struct warp *w, const struct insn *in, int lane)
{
	uint64_t base = 0;

	if (in->a != REF_NONE)
		base = in->wide_address ? ((const u64a *)row64(w, in->a))[lane]
		                        : ((const u32a *)row32(w, in->a))[lane];
	else if (in->space == SP_LOCAL)
		base = w->frame->local;
	return base + (uint64_t)in->imm;
}

#endif
