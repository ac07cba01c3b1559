/* What CUDA 4.0 deprecated and PyCUDA still calls: kernels whose shape and parameters are set one by one. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define PARAM_LIMIT 4096u

CUresult cuCtxDestroy_v2(CUcontext ctx);

/* What is set of a kernel until it is launched. */
struct legacy {
	unsigned block[3], shared;
	size_t size;
	uint8_t params[PARAM_LIMIT];
};

static CUresult settings(CUfunction handle, struct legacy **out)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);

	if (rc)
		return rc;
	if (!f->legacy) {
		f->legacy = calloc(1, sizeof *f->legacy);
		if (!f->legacy)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = f->legacy;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	struct legacy *l;
	CUresult rc = settings(f, &l);

	if (rc)
		return rc;
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(l->block, (unsigned[]){(unsigned)x, (unsigned)y, (unsigned)z}, sizeof l->block);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes)
{
	struct legacy *l;
	CUresult rc = settings(f, &l);

	if (!rc)
		l->shared = bytes;
	return rc;
}

EXPORT CUresult cuParamSetSize(CUfunction f, unsigned bytes)
{
	struct legacy *l;
	CUresult rc = settings(f, &l);

	if (!rc && bytes > PARAM_LIMIT)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		l->size = bytes;
	return rc;
}

EXPORT CUresult cuParamSetv(CUfunction f, int offset, void *value, unsigned bytes)
{
	struct legacy *l;
	CUresult rc = settings(f, &l);

	if (rc)
		return rc;
	if (!value || offset < 0 || (unsigned)offset > PARAM_LIMIT || bytes > PARAM_LIMIT - (unsigned)offset)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(l->params + offset, value, bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuParamSeti(CUfunction f, int offset, unsigned value) { return cuParamSetv(f, offset, &value, 4); }
EXPORT CUresult cuParamSetf(CUfunction f, int offset, float value) { return cuParamSetv(f, offset, &value, 4); }

EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	struct legacy *l;
	CUresult rc = settings(f, &l);

	if (rc)
		return rc;
	if (width <= 0 || height <= 0 || !l->block[0])
		return CUDA_ERROR_INVALID_VALUE;
	void *extra[] = {(void *)1, l->params, (void *)2, &l->size, NULL};

	return cuLaunchKernel(f, (unsigned)width, (unsigned)height, 1, l->block[0], l->block[1], l->block[2], l->shared,
	                      stream, NULL, extra);
}

EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height) { return cuLaunchGridAsync(f, width, height, NULL); }
EXPORT CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }

/* The usage count of a context that cuCtxCreate made. */
EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!out || flags || c->primary)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	c->refs++;
	pthread_mutex_unlock(&driver.lock);
	*out = c;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct context *c = find_context(ctx);
	bool last = c && !c->primary && c->refs == 0;

	if (!c || c->primary)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (!last)
		c->refs--;
	pthread_mutex_unlock(&driver.lock);
	return last ? cuCtxDestroy_v2(ctx) : rc;
}

/* Banks of shared memory cost nothing here; since Maxwell they are 4 bytes wide. */
EXPORT CUresult cuCtxGetSharedMemConfig(int *config)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (!rc && !config)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		*config = 1;
	return rc;
}

EXPORT CUresult cuCtxSetSharedMemConfig(int config)
{
	struct context *c;
	CUresult rc = current_context(&c);

	return rc ? rc : config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction f, int config)
{
	struct function *function;
	CUresult rc = resolve_function(f, &function);

	return rc ? rc : config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
