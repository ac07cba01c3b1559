/*
 * gpusim memfault: one bit of each allocation is bad. A stuck bit is 1 whatever
 * is written; a flipping one is right in memory and comes back wrong each time
 * the host reads it.
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
