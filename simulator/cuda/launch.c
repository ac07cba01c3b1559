/* cuLaunch…, cuFunc… and occupancy. */
#include "driver.h"

#include <stdlib.h>
#include <stdatomic.h>
#include <string.h>

struct function *find_function(CUfunction wanted);
CUresult kernel_function(CUkernel kernel, struct function **out);
CUresult cuDeviceGetAttribute(int *value, int which, CUdevice ordinal);

static atomic_uint_fast64_t executed;

/* PTX instructions that threads of this process have executed: what a benchmark counts. */
EXPORT uint64_t gpusim_instructions(void);
EXPORT uint64_t gpusim_instructions(void) { return atomic_load(&executed); }

CUresult resolve_function(CUfunction handle, struct function **out)
{
	pthread_mutex_lock(&driver.lock);
	*out = find_function(handle);
	pthread_mutex_unlock(&driver.lock);
	return *out ? CUDA_SUCCESS : kernel_function((CUkernel)(void *)handle, out);
}

static uint64_t number(const char *name)
{
	const char *v = getenv(name);

	return v ? strtoull(v, NULL, 10) : 0;
}

/* The parameters, each where the kernel expects it. */
static CUresult gather(const struct func *f, void **params, void **extra, uint8_t *out)
{
	const void *buffer = NULL;
	size_t size = 0;

	if (params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (params) {
		size_t i = 0;

		for (const struct var *v = f->params; v; v = v->next, i++) {
			if (!params[i])
				return CUDA_ERROR_INVALID_VALUE;
			memcpy(out + v->address, params[i], v->size);
		}
		return CUDA_SUCCESS;
	}
	for (; extra && *extra; extra += 2) {
		if (extra[0] == (void *)1)
			buffer = extra[1];
		else if (extra[0] == (void *)2 && extra[1])
			size = *(const size_t *)extra[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (f->param_size && (!buffer || size < f->param_size))
		return CUDA_ERROR_INVALID_VALUE;
	if (f->param_size)
		memcpy(out, buffer, f->param_size);
	return CUDA_SUCCESS;
}

static CUresult check_shape(const struct function *f, const unsigned grid[3], const unsigned block[3], unsigned shared)
{
	static const unsigned most_block[3] = {1024, 1024, 64}, most_grid[3] = {2147483647, 65535, 65535};
	const struct func *func = f->func;
	uint64_t threads = 1, most = 1;

	for (int i = 0; i < 3; i++) {
		if (!grid[i] || !block[i] || block[i] > most_block[i] || grid[i] > most_grid[i])
			return CUDA_ERROR_INVALID_VALUE;
		threads *= block[i];
		most *= func->maxntid[i] ? func->maxntid[i] : 1;
	}
	if (threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (func->maxntid[0] && threads > most)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (func->reqntid[0] && memcmp(func->reqntid, block, sizeof func->reqntid) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return shared > (unsigned)(f->max_dynamic < 0 ? 0 : f->max_dynamic) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult run(struct context *c, const struct function *f, const unsigned grid[3], const unsigned block[3],
                    unsigned shared, const uint8_t *params)
{
	struct extent *view;
	struct ptx_launch launch = {
		.func = f->func, .module = f->in->module, .shared = shared, .params = params, .stack = c->stack,
		.sm_count = c->device->sm_count, .instruction_limit = number("GPUSIM_INSTRUCTION_LIMIT"),
		.watchdog_ms = (int64_t)number("GPUSIM_WATCHDOG_MS"),
	};
	struct ptx_result result;

	memcpy(launch.grid, grid, sizeof launch.grid);
	memcpy(launch.block, block, sizeof launch.block);
	CUresult rc = memory_view(c, &view, &launch.nextents);

	if (rc)
		return rc;
	launch.extents = view;
	fault_wrong(c->device, &launch.wrong);
	fault_apply(c);
	ptx_run(&launch, &result);
	fault_apply(c);
	fault_stick();
	memory_done(view);
	atomic_fetch_add(&executed, result.instructions);
	if (result.code == PTX_OUT_OF_MEMORY)
		return result.code; /* of the host: the context is as good as before */
	/* What a kernel does wrong shows when the host next waits, and from then on. */
	if (result.code)
		context_fail(c, result.code, result.message);
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3], unsigned shared,
                       CUstream stream, void **params, void **extra)
{
	struct context *c;
	struct function *f;
	CUresult rc = current_context(&c);

	if (!rc)
		rc = check_stream(stream);
	if (!rc)
		rc = resolve_function(handle, &f);
	if (!rc && f->in->ctx != c)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	if (!rc)
		rc = check_shape(f, grid, block, shared);
	if (rc)
		return rc;
	uint8_t *buffer = calloc(1, f->func->param_size + 16u);

	if (!buffer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = gather(f->func, params, extra, buffer);
	if (!rc)
		rc = run(c, f, grid, block, shared, buffer);
	free(buffer);
	return rc;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra);
}
ALIAS(cuLaunchKernel_ptsz, cuLaunchKernel);

EXPORT CUresult cuLaunchKernelEx(const struct launch_config *config, CUfunction f, void **params, void **extra)
{
	if (!config || (config->count && !config->attributes))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < config->count; i++) {
		const struct launch_attribute *a = &config->attributes[i];
		bool cluster = a->id == 4 && (a->value.cluster.x | a->value.cluster.y | a->value.cluster.z) > 1;

		/* Blocks of one grid do not wait for each other here. */
		if ((a->id == 2 && a->value.cooperative) || cluster)
			return CUDA_ERROR_NOT_SUPPORTED;
	}
	return launch(f, config->grid, config->block, config->shared, config->stream, params, extra);
}
ALIAS(cuLaunchKernelEx_ptsz, cuLaunchKernelEx);

/* Registers of a thread: what the code names, within what it allows and hardware has. */
static int registers(const struct func *f, const struct module *m)
{
	uint64_t n = f->n32 + 2ull * f->n64;
	uint32_t most = f->max_registers ? f->max_registers : m->max_registers;

	most = most && most < 255 ? most : 255;
	return n > most ? (int)most : n < 16 ? 16 : (int)n;
}

static int max_threads(const struct func *f)
{
	uint64_t n = 1;

	for (int i = 0; i < 3; i++)
		n *= f->maxntid[i] ? f->maxntid[i] : 1;
	return f->maxntid[0] && n < 1024 ? (int)n : 1024;
}

static CUresult attribute(int *out, int which, const struct function *f)
{
	const struct module *m = f->in->module;

	switch (which) {
	case 0: *out = max_threads(f->func); break;
	case 1: *out = (int)ptx_static_shared(m, f->func); break;
	case 2: *out = (int)ptx_const_size(m); break;
	case 3: *out = (int)f->func->local_size; break;
	case 4: *out = registers(f->func, m); break;
	case 5: *out = (int)m->version; break;
	case 6: *out = (int)m->host.cc; break;
	case 7: *out = 0; break;
	case 8: *out = f->max_dynamic; break;
	case 9: *out = f->carveout; break;
	case 10: case 11: case 12: case 13: case 14: case 15: *out = 0; break; /* clusters */
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *out, int which, CUfunction handle)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);

	return rc ? rc : out ? attribute(out, which, f) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int which, int value)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);

	if (rc)
		return rc;
	if (which == 8) {
		int64_t most = (int64_t)shared_limit(f->in->ctx->device, true) - (int64_t)ptx_static_shared(f->in->module, f->func);

		if (value < 0 || value > most)
			return CUDA_ERROR_INVALID_VALUE;
		f->max_dynamic = value;
		return CUDA_SUCCESS;
	}
	if (which == 9 && value >= -1 && value <= 100) {
		f->carveout = value;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuKernelGetAttribute(int *out, int which, CUkernel kernel, CUdevice device)
{
	(void)device;
	return cuFuncGetAttribute(out, which, (CUfunction)(void *)kernel);
}

EXPORT CUresult cuKernelSetAttribute(int which, int value, CUkernel kernel, CUdevice device)
{
	(void)device;
	return cuFuncSetAttribute((CUfunction)(void *)kernel, which, value);
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int config)
{
	struct function *f;

	(void)config; /* a preference */
	return resolve_function(handle, &f);
}

EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction handle)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);

	if (!rc && !out)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		*out = f->in;
	return rc;
}

EXPORT CUresult cuFuncGetName(const char **out, CUfunction handle)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);

	if (!rc && !out)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		*out = f->func->name;
	return rc;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction handle, int block,
                                                                     size_t dynamic, unsigned flags)
{
	struct function *f;
	int threads = 0, blocks = 0, shared = 0;
	CUresult rc = resolve_function(handle, &f);

	if (rc)
		return rc;
	if (!out || block <= 0 || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	CUdevice d = f->in->ctx->ordinal;

	cuDeviceGetAttribute(&threads, 39, d);
	cuDeviceGetAttribute(&blocks, 106, d);
	cuDeviceGetAttribute(&shared, 81, d);
	int whole = (block + LANES - 1) / LANES * LANES, n = block > max_threads(f->func) ? 0 : threads / whole;
	uint64_t each = ptx_static_shared(f->in->module, f->func) + dynamic;
	int by_registers = 65536 / (registers(f->func, f->in->module) * whole);

	n = n < blocks ? n : blocks;
	n = n < by_registers ? n : by_registers;
	if (each && (uint64_t)n > (uint64_t)shared / each)
		n = (int)((uint64_t)shared / each);
	*out = n;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int block, size_t dynamic)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, dynamic, 0);
}

/* The block size with the most threads at once, and the grid that fills the device with it. */
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle,
                                                          size_t (*shared_of)(int), size_t dynamic, int limit,
                                                          unsigned flags)
{
	struct function *f;
	CUresult rc = resolve_function(handle, &f);
	int best = 0;

	if (rc)
		return rc;
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	int most = max_threads(f->func);

	*grid = *block = 0;
	for (int b = limit > 0 && limit < most ? limit : most; b > 0; b -= b % LANES ? b % LANES : LANES) {
		int n = 0;

		rc = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&n, handle, b, shared_of ? shared_of(b) : dynamic,
		                                                          flags);
		if (rc)
			return rc;
		if (n * b > best) {
			best = n * b;
			*block = b;
			*grid = n * (int)f->in->ctx->device->sm_count;
		}
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                                 size_t dynamic, int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, shared_of, dynamic, limit, 0);
}
