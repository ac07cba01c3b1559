/* Contexts: a stack of them for each thread, and one primary context for each device. */
#include "driver.h"

#include <stdlib.h>

#define STACK 64
static __thread CUcontext stack[STACK];
static __thread int depth;

struct context *find_context(CUcontext wanted)
{
	for (struct context *c = driver.contexts; c; c = c->next)
		if (c == wanted)
			return c;
	return NULL;
}

static CUcontext top(void) { return depth ? stack[depth - 1] : NULL; }

/* What c is worth: driver.lock is held. */
static CUresult condition(struct context *c)
{
	if (!c)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (!c->failed && device_lost(c->device)) /* off the bus: nothing answers any more */
		c->failed = CUDA_ERROR_UNKNOWN;
	return c->failed;
}

CUresult check_context(CUcontext ctx)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	rc = condition(find_context(ctx));
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

CUresult current_context(struct context **out)
{
	CUresult rc = check_ready();
	struct context *c = NULL;

	if (rc)
		return rc;
	if (!top())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&driver.lock);
	c = find_context(top());
	rc = condition(c);
	pthread_mutex_unlock(&driver.lock);
	*out = c;
	return rc;
}

void context_fail(struct context *c, CUresult code, const char *message)
{
	pthread_mutex_lock(&driver.lock);
	if (!c->failed)
		c->failed = code;
	pthread_mutex_unlock(&driver.lock);
	report(c->device, code, message);
}

CUresult new_context(int ordinal, unsigned flags, struct context **out)
{
	static uint64_t ids;
	struct context *c = calloc(1, sizeof *c);
	CUresult rc = c ? occupy(&driver.device[ordinal]) : CUDA_ERROR_OUT_OF_MEMORY;

	if (rc) {
		free(c);
		return rc;
	}
	*c = (struct context){.device = &driver.device[ordinal], .ordinal = ordinal, .flags = flags, .id = ++ids,
	                      .stack = 1024, .printf_fifo = 1 << 20, .heap = 8 << 20, .next = driver.contexts};
	driver.contexts = *out = c;
	return CUDA_SUCCESS;
}

/* driver.lock is held. */
void destroy_context(struct context *c)
{
	for (struct context **at = &driver.contexts; *at; at = &(*at)->next) {
		if (*at == c) {
			*at = c->next;
			break;
		}
	}
	unload_modules(c);
	free_streams(c);
	memory_free_context(c);
	if (c->device->primary == c)
		c->device->primary = NULL;
	vacate(c->device);
	free(c);
}

#define CHECK_FLAGS(flags)                                     \
	if (((flags) & ~0x1ffu) || ((flags) & 7) > 4 || ((flags) & 7) == 3) \
		return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CHECK_FLAGS(flags);
	if (!device_at(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	if (device_lost(device_at(ordinal)))
		return CUDA_ERROR_UNKNOWN;
	if (depth == STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&driver.lock);
	struct context *c;

	rc = new_context(ordinal, flags, &c);
	pthread_mutex_unlock(&driver.lock);
	if (rc)
		return rc;
	*out = stack[depth++] = c;
	return CUDA_SUCCESS;
}

/* Execution affinity is for MPS clients with a share of the multiprocessors. */
EXPORT CUresult cuCtxCreate_v3(CUcontext *out, const void *affinity, int n, unsigned flags, CUdevice ordinal)
{
	return affinity && n ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(out, flags, ordinal);
}

/* CUctxCreateParams holds only execution affinity and CIG, which nothing here has. */
EXPORT CUresult cuCtxCreate_v4(CUcontext *out, const void *params, unsigned flags, CUdevice ordinal)
{
	return params ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, ordinal);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct context *c = find_context(ctx);

	if (!c || c->primary)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else
		destroy_context(c);
	pthread_mutex_unlock(&driver.lock);
	if (!rc && depth && stack[depth - 1] == ctx)
		depth--;
	return rc;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	bool known = find_context(ctx) != NULL;

	pthread_mutex_unlock(&driver.lock);
	if (!known)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!top())
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	bool known = !ctx || find_context(ctx);

	pthread_mutex_unlock(&driver.lock);
	if (!known)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == 0)
		depth = ctx != NULL;
	if (depth)
		stack[depth - 1] = ctx;
	if (!ctx && depth)
		depth--;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = top();
	return CUDA_SUCCESS;
}

static CUresult device_of(CUcontext ctx, CUdevice *out)
{
	pthread_mutex_lock(&driver.lock);
	struct context *c = find_context(ctx);

	if (c && out)
		*out = c->ordinal;
	pthread_mutex_unlock(&driver.lock);
	return !c ? CUDA_ERROR_CONTEXT_IS_DESTROYED : out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* It asks no GPU, and so answers where a kernel has failed. */
EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	return top() ? device_of(top(), out) : CUDA_ERROR_INVALID_CONTEXT;
}

/*
 * CUDA 13's variant, with a context. Clients older than that take any _v2 for the plain
 * function and pass one argument: a context that is none of ours is the current one.
 */
EXPORT CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext ctx)
{
	CUresult rc = check_ready();

	if (!rc)
		rc = device_of(ctx, out);
	return rc == CUDA_ERROR_CONTEXT_IS_DESTROYED ? cuCtxGetDevice(out) : rc;
}

/* Everything is done when the call that asks for it returns: only failures are left to tell. */
EXPORT CUresult cuCtxSynchronize(void)
{
	struct context *c;

	return current_context(&c);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	CUresult rc = check_context(ctx);

	return rc == CUDA_ERROR_CONTEXT_IS_DESTROYED ? cuCtxSynchronize() : rc;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct context *c = find_context(ctx ? ctx : top());

	if (!c || !id)
		rc = c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		*id = c->id;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *version)
{
	unsigned long long id;
	CUresult rc = cuCtxGetId(ctx, &id);

	if (rc || !version)
		return rc ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	struct context *c;
	CUresult rc = current_context(&c);
	int can = 0;

	if (rc)
		return rc;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	struct context *p = find_context(peer);

	if (!p || p == c)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (cuDeviceCanAccessPeer(&can, c->ordinal, p->ordinal) || !can)
		rc = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	else if (c->peer[p->ordinal])
		rc = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else
		c->peer[p->ordinal] = true;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct context *p = find_context(peer);

	if (!p)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (!c->peer[p->ordinal])
		rc = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else
		c->peer[p->ordinal] = false;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

/* Names from before CUDA 4.0 with the same types. */
ALIAS(cuCtxCreate, cuCtxCreate_v2);
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);
