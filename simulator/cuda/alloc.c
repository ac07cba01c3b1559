/* cuMem…: allocation, registration, and what a pointer is. */
#include "driver.h"

#define CONTEXT_OR_RETURN                           \
	struct context *c;                              \
	CUresult rc = current_context(&c);              \
	if (rc)                                         \
		return rc

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	rc = memory_alloc(c, size, ALLOC_DEVICE, 0, &a);
	if (!rc)
		*out = a.address;
	return rc;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
	if (!pitch || !width || !height || width > SIZE_MAX - 512 ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 511) & ~(size_t)511;
	return *pitch > SIZE_MAX / height ? CUDA_ERROR_OUT_OF_MEMORY : cuMemAlloc_v2(out, *pitch * height);
}

/* Memory is freed in its own context, whichever is current. */
static CUresult release(uint64_t p, unsigned kinds)
{
	CUresult rc = check_ready();
	struct alloc a;

	if (rc)
		return rc;
	if (!memory_find(p, &a) || a.internal)
		return CUDA_ERROR_INVALID_VALUE;
	rc = check_context(a.ctx);
	return rc ? rc : memory_free(p, kinds);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	return p ? release(p, 1 << ALLOC_DEVICE | 1 << ALLOC_MANAGED) : check_ready();
}

static CUresult host_alloc(void **out, size_t size, unsigned flags)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!out || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	rc = memory_alloc(c, size, ALLOC_HOST, 0, &a);
	if (!rc)
		*out = a.host;
	return rc;
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t size) { return host_alloc(out, size, 0); }
EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) { return host_alloc(out, size, flags); }

EXPORT CUresult cuMemFreeHost(void *p) { return release((uint64_t)(uintptr_t)p, 1 << ALLOC_HOST); }

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags)
{
	CONTEXT_OR_RETURN;
	return memory_register(c, p, size, flags);
}

EXPORT CUresult cuMemHostUnregister(void *p)
{
	CUresult rc = release((uint64_t)(uintptr_t)p, 1 << ALLOC_REGISTERED);

	return rc == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : rc;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!out || flags || !memory_find((uint64_t)(uintptr_t)p, &a) || a.kind == ALLOC_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (uint64_t)(uintptr_t)p; /* unified addressing */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *p)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!flags || !memory_find((uint64_t)(uintptr_t)p, &a) || a.kind == ALLOC_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = a.flags | 2; /* DEVICEMAP, as unified addressing implies */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!out || (flags != 1 && flags != 2)) /* attached globally, or to the host */
		return CUDA_ERROR_INVALID_VALUE;
	rc = memory_alloc(c, size, ALLOC_MANAGED, 0, &a);
	if (!rc)
		*out = a.address;
	return rc;
}

/* Managed memory is the host's: there is nothing to move. */
EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice to, CUstream stream)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	(void)to;
	(void)stream;
	return n && memory_find(p, &a) && a.kind == ALLOC_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ALIAS(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync);

EXPORT CUresult cuMemAdvise(CUdeviceptr p, size_t n, int advice, CUdevice device)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	(void)device;
	return n && advice > 0 && memory_find(p, &a) && a.kind == ALLOC_MANAGED ? CUDA_SUCCESS
	                                                                         : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CONTEXT_OR_RETURN;
	uint64_t taken = memory_taken(c->device);

	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	memory_hold();
	taken += c->device->used;
	memory_let_go();
	*total = c->device->memory;
	*free_bytes = taken < *total ? *total - taken : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	CONTEXT_OR_RETURN;
	struct alloc a;

	if (!memory_find(p, &a))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = a.address;
	if (size)
		*size = a.size;
	return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *out, int which, const struct alloc *a)
{
	bool host = a->kind != ALLOC_DEVICE;

	switch (which) {
	case 1: *(CUcontext *)out = a->ctx; break;
	case 2: *(unsigned *)out = a->kind == ALLOC_HOST || a->kind == ALLOC_REGISTERED ? CU_MEMORYTYPE_HOST
		                                                                        : CU_MEMORYTYPE_DEVICE;
		break;
	case 3: *(CUdeviceptr *)out = a->address; break;
	case 4:
		if (!host)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)out = a->host;
		break;
	case 6: *(unsigned *)out = 1; break; /* copies are always synchronous */
	case 7: *(unsigned long long *)out = a->id; break;
	case 8: *(unsigned *)out = a->kind == ALLOC_MANAGED; break;
	case 9: *(int *)out = a->ctx->ordinal; break;
	case 10: case 14: case 15: *(unsigned *)out = 0; break; /* no IPC, no handles, no RDMA */
	case 11: case 19: *(CUdeviceptr *)out = a->address; break;
	case 12: case 18: *(size_t *)out = a->size; break;
	case 13: *(unsigned *)out = 1; break;
	case 16: *(unsigned *)out = 3; break; /* read and write */
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *out, int which, CUdeviceptr p)
{
	CUresult rc = check_ready();
	struct alloc a;

	if (rc)
		return rc;
	if (!out || !memory_find(p, &a))
		return CUDA_ERROR_INVALID_VALUE;
	if (which == 3 || which == 4) { /* of p itself, not of its allocation */
		uint64_t offset = p - a.address;

		a.address += offset;
		a.host += offset;
	}
	return pointer_attribute(out, which, &a);
}

/* For a pointer that is none of ours each answer is 0 (and the device -2), not an error. */
EXPORT CUresult cuPointerGetAttributes(unsigned n, const int *which, void **out, CUdeviceptr p)
{
	CUresult rc = check_ready();
	struct alloc a;

	if (rc)
		return rc;
	if (!which || !out)
		return CUDA_ERROR_INVALID_VALUE;
	bool known = memory_find(p, &a);

	for (unsigned i = 0; i < n; i++) {
		bool wide = which[i] == 1 || which[i] == 3 || which[i] == 4 || which[i] == 7 || which[i] == 11 ||
		            which[i] == 12 || which[i] == 18 || which[i] == 19;

		if (known && cuPointerGetAttribute(out[i], which[i], p) == CUDA_SUCCESS)
			continue;
		if (wide)
			*(uint64_t *)out[i] = 0;
		else
			*(int *)out[i] = which[i] == 9 ? -2 : 0;
	}
	return CUDA_SUCCESS;
}
