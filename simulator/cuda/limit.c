/* Limits and preferences of a context, and the profiler that nobody runs. */
#include "driver.h"

static size_t *limit(struct context *c, int which)
{
	return which == 0 ? &c->stack : which == 1 ? &c->printf_fifo : which == 2 ? &c->heap : NULL;
}

EXPORT CUresult cuCtxSetLimit(int which, size_t value)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!limit(c, which))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (which == 0 && value > 512 << 10) /* local memory of a thread (PTX ISA, 5.1.5) */
		return CUDA_ERROR_INVALID_VALUE;
	*limit(c, which) = value;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int which)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!limit(c, which))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = *limit(c, which);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

/* Preferences that only a cache could notice. */
EXPORT CUresult cuCtxSetCacheConfig(int config)
{
	struct context *c;

	(void)config;
	return current_context(&c);
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (!rc && config)
		*config = 0;
	return rc;
}

static CUresult profile(void)
{
	struct context *c;

	return current_context(&c);
}

EXPORT CUresult cuProfilerStart(void) { return profile(); }
EXPORT CUresult cuProfilerStop(void) { return profile(); }
