/*
 * Memory: one table of all allocations, sorted by address. Device addresses lie
 * in a reservation without access, so a host program that uses one as a pointer
 * faults as it would with a GPU; what is behind them is anonymous memory of the
 * host that is taken when it is first touched. Allocations never touch: an
 * access past the end of one is out of bounds.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRAIN 512u /* alignment of device addresses, and the gap between allocations */

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct alloc *table;
static size_t count, capacity;
static uint64_t next_id;

/* The first entry whose end is beyond address. */
static size_t position(uint64_t address)
{
	size_t lo = 0, hi = count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (table[mid].address + table[mid].size <= address)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct alloc *find(uint64_t address)
{
	size_t i = position(address);

	return i < count && table[i].address <= address ? &table[i] : NULL;
}

static bool insert(const struct alloc *a)
{
	if (count == capacity) {
		size_t cap = capacity ? capacity * 2 : 64;
		struct alloc *grown = realloc(table, cap * sizeof *table);

		if (!grown)
			return false;
		table = grown;
		capacity = cap;
	}
	size_t i = position(a->address);

	memmove(&table[i + 1], &table[i], (count - i) * sizeof *table);
	table[i] = *a;
	count++;
	return true;
}

static void *map(uint64_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static uint64_t host_memory(void) { return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); }

/* At a fixed address where that is free, so that it tells which byte of which GPU it is. */
static bool reserve(struct device *d)
{
	void *wanted = (void *)(uintptr_t)(GPUSIM_DEVICE_BASE + d->gpu * GPUSIM_DEVICE_STRIDE);

	if (d->region)
		return true;
	/* Twice the memory, so that gaps and fragments never run out of addresses first. */
	d->region_size = d->memory * 2 + (1u << 30);
	void *p = mmap(wanted, d->region_size, PROT_NONE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (p == MAP_FAILED)
		p = mmap(NULL, d->region_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	/* Where address space is limited: addresses that no program has (57 bits and more). */
	d->region = p == MAP_FAILED ? (uint64_t)(d - driver.device + 1) << 57 : (uint64_t)(uintptr_t)p;
	return true;
}

/* A free range of the device's addresses, first fit. */
static uint64_t find_room(const struct device *d, uint64_t size, uint64_t align)
{
	uint64_t at = (d->region + align - 1) & ~(align - 1), end = d->region + d->region_size;

	for (size_t i = position(at); i < count && table[i].address < end; i++) {
		if (table[i].address >= at + size + GRAIN)
			break;
		at = (table[i].address + table[i].size + GRAIN + align - 1) & ~(align - 1);
	}
	return at + size <= end ? at : 0;
}

static uint64_t charge(const struct alloc *a) { return (a->size + GRAIN - 1) & ~(uint64_t)(GRAIN - 1); }

static CUresult place(struct alloc *a, uint32_t align)
{
	struct device *d = a->ctx->device;

	if (a->kind != ALLOC_DEVICE) { /* the host's: a program that touched more than there is would be killed */
		a->host = a->size <= host_memory() ? map(a->size) : NULL;
		a->address = (uint64_t)(uintptr_t)a->host;
		return a->host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	uint64_t free_now = d->memory - d->used, others = memory_taken(d);

	free_now = free_now > others ? free_now - others : 0;
	if (a->size > free_now || charge(a) > free_now || !reserve(d))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->address = find_room(d, a->size, align > GRAIN ? align : GRAIN);
	a->host = a->address ? map(a->size) : NULL;
	return a->host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_alloc(struct context *c, uint64_t size, enum alloc_kind kind, uint32_t align, struct alloc *out)
{
	struct alloc a = {.size = size, .kind = kind, .ctx = c};

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&lock);
	CUresult rc = place(&a, align);

	a.id = ++next_id;
	if (!rc && !insert(&a)) {
		munmap(a.host, a.size);
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!rc && kind == ALLOC_DEVICE)
		c->device->used += charge(&a);
	pthread_rwlock_unlock(&lock);
	*out = a;
	return rc;
}

CUresult memory_register(struct context *c, void *p, uint64_t size, unsigned flags)
{
	struct alloc a = {.address = (uint64_t)(uintptr_t)p, .size = size, .host = p, .kind = ALLOC_REGISTERED,
	                  .ctx = c, .flags = flags};
	CUresult rc = CUDA_SUCCESS;

	if (!p || !size || a.address + size < a.address)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&lock);
	size_t i = position(a.address);

	if (i < count && table[i].address < a.address + size)
		rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!insert(&a))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_unlock(&lock);
	return rc;
}

static void drop(size_t i)
{
	struct alloc a = table[i];

	if (a.kind != ALLOC_REGISTERED)
		munmap(a.host, a.size);
	if (a.kind == ALLOC_DEVICE)
		a.ctx->device->used -= charge(&a);
	count--;
	memmove(&table[i], &table[i + 1], (count - i) * sizeof *table);
}

CUresult memory_free(uint64_t address, unsigned kinds)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;

	pthread_rwlock_wrlock(&lock);
	struct alloc *a = find(address);

	if (a && a->address == address && (kinds >> a->kind & 1)) {
		drop((size_t)(a - table));
		rc = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&lock);
	return rc;
}

void memory_free_context(struct context *c)
{
	pthread_rwlock_wrlock(&lock);
	for (size_t i = count; i-- > 0;)
		if (table[i].ctx == c)
			drop(i);
	pthread_rwlock_unlock(&lock);
}

bool memory_find(uint64_t address, struct alloc *out)
{
	pthread_rwlock_rdlock(&lock);
	struct alloc *a = find(address);

	if (a)
		*out = *a;
	pthread_rwlock_unlock(&lock);
	return a != NULL;
}

void memory_set_internal(uint64_t address, bool readonly)
{
	pthread_rwlock_wrlock(&lock);
	struct alloc *a = find(address);

	if (a) {
		a->internal = true;
		a->readonly = readonly;
	}
	pthread_rwlock_unlock(&lock);
}

/* A kernel of c reaches its own device's memory, that of peers it asked for, and pinned host memory. */
static bool reaches(const struct context *c, const struct alloc *a)
{
	if (a->kind != ALLOC_DEVICE)
		return true;
	return a->ctx->device == c->device || c->peer[a->ctx->ordinal];
}

/* An allocation as extents: one, or what is before, at and behind a bit that is stuck. */
static size_t divide(const struct alloc *a, struct extent cell, struct extent *out)
{
	size_t n = 0;

	if (a->kind != ALLOC_DEVICE || !cell.size || cell.address < a->address ||
	    cell.address - a->address >= a->size) {
		*out = (struct extent){a->address, a->size, a->host, a->readonly, {0}};
		return 1;
	}
	uint64_t before = cell.address - a->address, left = a->size - before;

	cell.size = cell.size < left ? cell.size : left;
	cell.host = a->host + before;
	cell.readonly = a->readonly;
	cell.stuck.is = cell.stuck.byte < cell.size;
	if (before)
		out[n++] = (struct extent){a->address, before, a->host, a->readonly, {0}};
	out[n++] = cell;
	if (left > cell.size)
		out[n++] = (struct extent){cell.address + cell.size, left - cell.size, cell.host + cell.size, a->readonly, {0}};
	return n;
}

CUresult memory_view(struct context *c, struct extent **out, size_t *n)
{
	pthread_rwlock_rdlock(&lock);
	/* At most one allocation of each device is divided, into three. */
	struct extent *view = malloc((count + 2 * MAX_DEVICES + 1) * sizeof *view), cell[MAX_DEVICES] = {0};

	*n = 0;
	*out = view;
	if (!view) {
		pthread_rwlock_unlock(&lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (int i = 0; i < driver.ndevices; i++)
		fault_cell(&driver.device[i], &cell[i]);
	for (size_t i = 0; i < count; i++)
		if (reaches(c, &table[i]))
			*n += divide(&table[i], cell[table[i].ctx->ordinal], &view[*n]);
	return CUDA_SUCCESS;
}

void memory_done(struct extent *view)
{
	pthread_rwlock_unlock(&lock);
	free(view);
}

void memory_hold(void) { pthread_rwlock_rdlock(&lock); }
void memory_let_go(void) { pthread_rwlock_unlock(&lock); }

uint8_t *memory_resolve(uint64_t address, uint64_t n)
{
	struct alloc *a = find(address);

	return a && n <= a->size - (address - a->address) ? a->host + (address - a->address) : NULL;
}

bool memory_is_ours(uint64_t address)
{
	for (int i = 0; i < driver.ndevices; i++) {
		const struct device *d = &driver.device[i];

		if (d->region && address - d->region < d->region_size)
			return true;
	}
	return find(address) != NULL;
}

void memory_each(const struct context *c, void (*visit)(struct alloc *, void *), void *arg)
{
	for (size_t i = 0; i < count; i++)
		if (table[i].kind == ALLOC_DEVICE && table[i].ctx->device == c->device)
			visit(&table[i], arg);
}
