/* cp.async and ldmatrix: from global to shared memory, and on to the fragments of mma. */
#include "memory_ops.h"
#include "ops.h"

#include <string.h>

/* One lane copies size bytes, the last of them zeros where fewer are to be read. */
static bool copy_lane(struct warp *w, const struct insn *in, int lane, uint64_t from, unsigned n)
{
	uint8_t bytes[16] = {0}, *p;

	if (n == in->size) {
		if (!(p = lane_memory(w, in, lane, SP_GLOBAL, from, n, false)))
			return false;
		memcpy(bytes, p, n);
	} else {
		for (unsigned k = 0; k < n; k++) {
			if (!(p = lane_memory(w, in, lane, SP_GLOBAL, from + k, 1, false)))
				return false;
			bytes[k] = *p;
		}
	}
	p = lane_memory(w, in, lane, in->space, lane_address(w, in, lane), in->size, true);
	if (p)
		memcpy(p, bytes, in->size);
	return p != NULL;
}

void op_copy(struct warp *w, const struct insn *in)
{
	const u64a *from = row64(w, in->b);
	const u32a *size = in->c == REF_NONE ? NULL : row32(w, in->c);

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);
		unsigned n = size && size[l] < in->size ? size[l] : in->size;

		if (!copy_lane(w, in, l, from[l], n))
			return;
	}
}

/*
 * Lane 8i + r has the address of row r of matrix i, of 8 × 8 elements. Lane l receives, of each
 * matrix, elements 2(l % 4) and the next of row l / 4; transposed, of column l / 4.
 */
void op_ldmatrix(struct warp *w, const struct insn *in)
{
	uint16_t m[4][8][8];

	if (!warp_gather(w, in, FULL))
		return;
	if (w->m != FULL) {
		run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "ldmatrix needs all 32 threads of its warp, %d are there",
		          __builtin_popcount(w->m));
		return;
	}
	for (int l = 0; l < 8 * in->vec; l++) {
		const uint8_t *p = lane_memory(w, in, l, in->space, lane_address(w, in, l), 16, false);

		if (!p)
			return;
		memcpy(m[l / 8][l % 8], p, 16);
	}
	for (int i = 0; i < in->vec; i++) {
		u32a *d = row32(w, in->x[i]);

		for (int l = 0; l < LANES; l++) {
			int r = l / 4, c = l % 4 * 2;

			d[l] = in->sub ? m[i][c][r] | (uint32_t)m[i][c + 1][r] << 16 : m[i][r][c] | (uint32_t)m[i][r][c + 1] << 16;
		}
	}
}
