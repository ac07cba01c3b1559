/*
 * gpusim memfault: one bit of each allocation, or of the GPU's memory, is bad. A
 * stuck bit is what it is whatever is written; a flipping one is right in memory
 * and comes back wrong each time the host reads it. A bit of the GPU's memory
 * that is stuck is so for kernels, too: the bytes around it are an extent of
 * their own, in which every access is looked at, so that others cost nothing.
 * gpusim wrong: some results of arithmetic are wrong.
 */
#include "driver.h"

#include <string.h>

struct fault { uint32_t kind, bit; uint64_t offset; };

static struct fault current(const struct device *d)
{
	size_t gpu = offsetof(struct gpusim_state, gpu) + d->gpu * sizeof(struct gpusim_gpu);
	struct fault f = {0};

	gpusim_copy(driver.file, gpu + offsetof(struct gpusim_gpu, memfault_kind), &f.kind, sizeof f.kind);
	if (f.kind == GPUSIM_MEMFAULT_NONE)
		return f;
	gpusim_copy(driver.file, gpu + offsetof(struct gpusim_gpu, memfault_bit), &f.bit, sizeof f.bit);
	gpusim_copy(driver.file, gpu + offsetof(struct gpusim_gpu, memfault_offset), &f.offset, sizeof f.offset);
	f.offset += f.bit / 8 % 4; /* the byte of the word that holds the bit */
	f.bit %= 8;
	return f;
}

static void stick(struct alloc *a, void *arg)
{
	const struct fault *f = arg;

	if (f->offset < a->size && !a->internal)
		a->host[f->offset] |= (uint8_t)(1u << f->bit);
}

#define CELL 16u /* as long as the longest access, and aligned as it */

bool fault_cell(const struct device *d, struct extent *out)
{
	struct fault f = {0};

	if (d->region) /* it has given memory to someone */
		f = current(d);
	if (f.kind != GPUSIM_MEMFAULT_STUCK_AT_0 && f.kind != GPUSIM_MEMFAULT_STUCK_AT_1)
		return false;
	uint64_t at = f.offset % CELL;

	*out = (struct extent){.address = d->region + f.offset - at, .size = CELL};
	out->stuck = (struct stuck){true, (uint8_t)at, (uint8_t)f.bit, f.kind == GPUSIM_MEMFAULT_STUCK_AT_1};
	return true;
}

void fault_stick(void)
{
	for (int i = 0; i < driver.ndevices; i++) {
		struct extent cell;

		if (!fault_cell(&driver.device[i], &cell))
			continue;
		uint8_t *p = memory_resolve(cell.address + cell.stuck.byte, 1);

		if (p && cell.stuck.value)
			__atomic_fetch_or(p, (uint8_t)(1u << cell.stuck.bit), __ATOMIC_RELAXED);
		else if (p)
			__atomic_fetch_and(p, (uint8_t)~(1u << cell.stuck.bit), __ATOMIC_RELAXED);
	}
}

void fault_wrong(struct device *d, struct wrong *out)
{
	size_t gpu = offsetof(struct gpusim_state, gpu) + d->gpu * sizeof(struct gpusim_gpu);

	gpusim_copy(driver.file, gpu + offsetof(struct gpusim_gpu, wrong_every), &out->every, sizeof out->every);
	if (out->every)
		gpusim_copy(driver.file, gpu + offsetof(struct gpusim_gpu, wrong_bit), &out->bit, sizeof out->bit);
	out->bit &= 31;
	out->results = &d->results;
}

void fault_apply(struct context *c)
{
	struct fault f = current(c->device);

	if (f.kind == GPUSIM_MEMFAULT_STUCK)
		memory_each(c, stick, &f);
}

void fault_read(const struct alloc *a, uint64_t address, void *copied, uint64_t n)
{
	if (a->kind != ALLOC_DEVICE || a->internal)
		return;
	struct fault f = current(a->ctx->device);
	uint64_t at = a->address + f.offset - address;

	if (f.kind == GPUSIM_MEMFAULT_FLIP && f.offset < a->size && a->address + f.offset >= address && at < n)
		((uint8_t *)copied)[at] ^= (uint8_t)(1u << f.bit);
}
