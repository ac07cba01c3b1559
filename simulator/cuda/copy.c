/* cuMemcpy… and cuMemset…. All are done when they return, the Async ones too. */
#include "driver.h"

#include <string.h>

/* One end of a copy while memory is held. */
static uint8_t *end_of(uint64_t address, uint64_t n, bool must_be_device)
{
	uint8_t *p = memory_resolve(address, n);

	/* Past the end of an allocation, or freed: the host must not touch it. */
	if (!p && (must_be_device || memory_is_ours(address)))
		return NULL;
	return p ? p : (uint8_t *)(uintptr_t)address;
}

static CUresult copy(uint64_t to, bool to_device, uint64_t from, bool from_device, uint64_t n)
{
	struct context *c;
	struct alloc a, b;
	CUresult rc = current_context(&c);

	if (rc || n == 0)
		return rc;
	/* For memfault: what the host reads, be it to pinned memory. */
	bool reads = memory_find(from, &a) && !(memory_find(to, &b) && b.kind == ALLOC_DEVICE);

	memory_hold();
	uint8_t *d = end_of(to, n, to_device), *s = end_of(from, n, from_device);

	if (!d || !s) {
		memory_let_go();
		return CUDA_ERROR_INVALID_VALUE;
	}
	fault_stick();
	memmove(d, s, n);
	if (reads)
		fault_read(&a, from, d, n);
	fault_apply(c);
	fault_stick();
	memory_let_go();
	return CUDA_SUCCESS;
}

#define HOST(p) ((uint64_t)(uintptr_t)(p))

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n)
{
	return copy(to, true, HOST(from), false, n);
}
ALIAS(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n)
{
	return copy(HOST(to), false, from, true, n);
}
ALIAS(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, true, from, true, n); }
ALIAS(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, false, from, false, n); }
ALIAS(cuMemcpy_ptds, cuMemcpy);

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpyHtoD_v2(to, from, n);
}
ALIAS(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpyDtoH_v2(to, from, n);
}
ALIAS(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpyDtoD_v2(to, from, n);
}
ALIAS(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2);

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpy(to, from, n);
}
ALIAS(cuMemcpyAsync_ptsz, cuMemcpyAsync);

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t n)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	bool known = find_context(to_ctx) && find_context(from_ctx);

	pthread_mutex_unlock(&driver.lock);
	return known ? copy(to, true, from, true, n) : CUDA_ERROR_INVALID_CONTEXT;
}
ALIAS(cuMemcpyPeer_ptds, cuMemcpyPeer);

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t n,
                                  CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpyPeer(to, to_ctx, from, from_ctx, n);
}
ALIAS(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync);

static bool kind_ok(int type) { return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

EXPORT CUresult cuMemcpy3D_v2(const struct copy3d *p)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!p || !kind_ok(p->src_type) || !kind_ok(p->dst_type))
		return p && (p->src_type == CU_MEMORYTYPE_ARRAY || p->dst_type == CU_MEMORYTYPE_ARRAY)
		           ? CUDA_ERROR_NOT_SUPPORTED /* arrays are for textures */
		           : CUDA_ERROR_INVALID_VALUE;
	size_t sp = p->src_pitch ? p->src_pitch : p->width + p->src_x, dp = p->dst_pitch ? p->dst_pitch : p->width + p->dst_x;
	size_t sh = p->src_height ? p->src_height : p->height + p->src_y;
	size_t dh = p->dst_height ? p->dst_height : p->height + p->dst_y;
	uint64_t from = p->src_type == CU_MEMORYTYPE_HOST ? HOST(p->src_host) : p->src_device;
	uint64_t to = p->dst_type == CU_MEMORYTYPE_HOST ? HOST(p->dst_host) : p->dst_device;

	if (sp < p->width || dp < p->width)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t z = 0; z < p->depth; z++) {
		for (size_t y = 0; y < p->height && !rc; y++)
			rc = copy(to + ((z + p->dst_z) * dh + y + p->dst_y) * dp + p->dst_x, p->dst_type == CU_MEMORYTYPE_DEVICE,
			          from + ((z + p->src_z) * sh + y + p->src_y) * sp + p->src_x,
			          p->src_type == CU_MEMORYTYPE_DEVICE, p->width);
	}
	return rc;
}
ALIAS(cuMemcpy3D_v2_ptds, cuMemcpy3D_v2);

EXPORT CUresult cuMemcpy3DAsync_v2(const struct copy3d *p, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpy3D_v2(p);
}
ALIAS(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_v2);

EXPORT CUresult cuMemcpy2D_v2(const struct copy2d *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct copy3d full = {
		.src_x = p->src_x, .src_y = p->src_y, .src_type = p->src_type, .src_host = p->src_host,
		.src_device = p->src_device, .src_pitch = p->src_pitch, .dst_x = p->dst_x, .dst_y = p->dst_y,
		.dst_type = p->dst_type, .dst_host = p->dst_host, .dst_device = p->dst_device,
		.dst_pitch = p->dst_pitch, .width = p->width, .height = p->height, .depth = 1,
	};

	return cuMemcpy3D_v2(&full);
}
ALIAS(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2);
ALIAS(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2);
ALIAS(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2D_v2);

EXPORT CUresult cuMemcpy2DAsync_v2(const struct copy2d *p, CUstream s)
{
	CUresult rc = check_stream(s);

	return rc ? rc : cuMemcpy2D_v2(p);
}
ALIAS(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2);

/* height rows of width elements; pitch is ignored for one row. */
static CUresult fill(uint64_t to, size_t pitch, uint32_t value, size_t element, size_t width, size_t height)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc || !width || !height)
		return rc;
	if (to % element || width > SIZE_MAX / element || (height > 1 && pitch < width * element))
		return CUDA_ERROR_INVALID_VALUE;
	memory_hold();
	for (size_t y = 0; y < height && !rc; y++) {
		uint8_t *p = memory_resolve(to + y * pitch, width * element);

		if (!p)
			rc = CUDA_ERROR_INVALID_VALUE;
		else if (element == 1)
			memset(p, (int)(value & 0xff), width);
		else
			for (size_t x = 0; x < width; x++)
				memcpy(p + x * element, &value, element);
	}
	fault_apply(c);
	fault_stick();
	memory_let_go();
	return rc;
}

#define MEMSET(bits, type)                                                                              \
	EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type v, size_t n)                              \
	{                                                                                                   \
		return fill(to, 0, v, bits / 8, n, 1);                                                          \
	}                                                                                                   \
	ALIAS(cuMemsetD##bits##_v2_ptds, cuMemsetD##bits##_v2);                                             \
	EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, type v, size_t n, CUstream s)                \
	{                                                                                                   \
		CUresult rc = check_stream(s);                                                                  \
		return rc ? rc : fill(to, 0, v, bits / 8, n, 1);                                                \
	}                                                                                                   \
	ALIAS(cuMemsetD##bits##Async_ptsz, cuMemsetD##bits##Async);                                         \
	EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type v, size_t w, size_t h)    \
	{                                                                                                   \
		return fill(to, pitch, v, bits / 8, w, h);                                                      \
	}                                                                                                   \
	ALIAS(cuMemsetD2D##bits##_v2_ptds, cuMemsetD2D##bits##_v2);                                         \
	EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type v, size_t w, size_t h,  \
	                                         CUstream s)                                                \
	{                                                                                                   \
		CUresult rc = check_stream(s);                                                                  \
		return rc ? rc : fill(to, pitch, v, bits / 8, w, h);                                            \
	}                                                                                                   \
	ALIAS(cuMemsetD2D##bits##Async_ptsz, cuMemsetD2D##bits##Async);
MEMSET(8, unsigned char)
MEMSET(16, unsigned short)
MEMSET(32, unsigned)
