/* cuModule…: PTX is read when it is loaded, in the context that is current. */
#define _GNU_SOURCE /* strnlen, strdup */
#include "driver.h"

#include "lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_LIMIT ((size_t)256 << 20)

static int host_alloc(void *owner, uint64_t size, uint32_t align, bool readonly, uint64_t *address, uint8_t **host)
{
	struct alloc a;
	CUresult rc = memory_alloc(owner, size, ALLOC_DEVICE, align, &a);

	if (rc)
		return rc;
	memory_set_internal(a.address, readonly);
	*address = a.address;
	*host = a.host;
	return 0;
}

static void host_free(void *owner, uint64_t address)
{
	(void)owner;
	memory_free(address, 1 << ALLOC_DEVICE);
}

/* The newest PTX that the toolkit of that version wrote (PTX ISA, release notes). */
static uint32_t ptx_version(unsigned cuda)
{
	static const struct { unsigned cuda; uint32_t ptx; } known[] = {
		{13020, 92}, {13010, 91}, {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85},
		{12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77},
		{11060, 76}, {11050, 75}, {11040, 74}, {11030, 73}, {11020, 72}, {11010, 71}, {11000, 70},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (cuda >= known[i].cuda)
			return known[i].ptx;
	return 65;
}

/* Where the caller wants log text: option numbers 3 … 6 of CUjit_option. */
struct jit { char *info, *error; size_t info_size, error_size; int info_at, error_at; };

static CUresult read_options(unsigned n, const int *options, void **values, struct jit *j)
{
	*j = (struct jit){.info_at = -1, .error_at = -1};
	if (n && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++) {
		uintptr_t v = (uintptr_t)values[i];

		switch (options[i]) {
		case 3: j->info = values[i]; break;
		case 4: j->info_size = v & 0xffffffffu; j->info_at = (int)i; break;
		case 5: j->error = values[i]; break;
		case 6: j->error_size = v & 0xffffffffu; j->error_at = (int)i; break;
		default:
			if (options[i] < 0 || options[i] > 40)
				return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

static void write_log(char *to, size_t size, const char *text, void **values, int at)
{
	size_t n = 0;

	if (to && size) {
		snprintf(to, size, "%s", text);
		n = strlen(to);
	}
	if (at >= 0)
		values[at] = (void *)(uintptr_t)n;
}

/* PTX, and not the ELF of a cubin or a fat binary, which hold code for a real GPU. */
static CUresult kind_of_image(const char *text, size_t *len)
{
	uint32_t magic;

	memcpy(&magic, text, sizeof magic);
	if (magic == 0x464c457fu || magic == 0xba55ed50u || magic == 0x466243b1u)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	*len = strnlen(text, IMAGE_LIMIT);
	struct lexer lx = {text, text + *len, 1};
	struct token t = lex_next(&lx);

	return token_is(&t, ".version") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

/* Reads an image. partial: what it declares as .extern may be in another one. */
static CUresult compile(struct context *c, const void *image, bool partial, unsigned n, const int *options,
                        void **values, struct module **out)
{
	const struct device *d = c->device;
	struct ptx_host host = {
		.owner = c, .alloc = host_alloc, .free = host_free,
		.cc = d->info.cc_major * 10 + d->info.cc_minor,
		.ptx_version = ptx_version(driver.cuda_version), .shared_limit = shared_limit(d, false),
		.partial = partial,
	};
	char log[700] = "";
	struct jit j;
	size_t len = 0;
	CUresult rc = image ? read_options(n, options, values, &j) : CUDA_ERROR_INVALID_VALUE;

	if (!rc)
		rc = kind_of_image(image, &len);
	if (rc)
		return rc;
	rc = ptx_load(image, len, &host, out, log, sizeof log);
	write_log(j.error, j.error_size, log, values, j.error_at);
	write_log(j.info, j.info_size, "", values, j.info_at);
	if (rc)
		report(d, rc, log);
	return rc;
}

CUresult check_image(struct context *c, const void *image, unsigned n, const int *options, void **values)
{
	struct module *m;
	CUresult rc = compile(c, image, true, n, options, values, &m);

	if (!rc)
		ptx_unload(m);
	return rc;
}

CUresult load_image(struct context *c, const void *image, unsigned n, const int *options, void **values,
                    struct loaded **out)
{
	struct loaded *m = calloc(1, sizeof *m);
	CUresult rc = m ? compile(c, image, false, n, options, values, &m->module) : CUDA_ERROR_OUT_OF_MEMORY;

	if (rc) {
		free(m);
		return rc;
	}
	m->ctx = c;
	pthread_mutex_lock(&driver.lock);
	m->next = c->modules;
	c->modules = m;
	pthread_mutex_unlock(&driver.lock);
	*out = m;
	return CUDA_SUCCESS;
}

static void free_module(struct loaded *m)
{
	while (m->functions) {
		struct function *next = m->functions->next;

		free(m->functions->legacy);
		free(m->functions);
		m->functions = next;
	}
	ptx_unload(m->module);
	free(m);
}

void unload_modules(struct context *c)
{
	while (c->modules) {
		struct loaded *next = c->modules->next;

		free_module(c->modules);
		c->modules = next;
	}
}

struct loaded *find_module(CUmodule wanted)
{
	for (struct context *c = driver.contexts; c; c = c->next)
		for (struct loaded *m = c->modules; m; m = m->next)
			if (m == wanted)
				return m;
	return NULL;
}

struct function *find_function(CUfunction wanted)
{
	for (struct context *c = driver.contexts; c; c = c->next)
		for (struct loaded *m = c->modules; m; m = m->next)
			for (struct function *f = m->functions; f; f = f->next)
				if (f == wanted)
					return f;
	return NULL;
}

CUresult module_function(struct loaded *m, const char *name, struct function **out)
{
	struct func *func = ptx_entry(m->module, name);
	struct function *f;

	if (!func)
		return CUDA_ERROR_NOT_FOUND;
	for (f = m->functions; f && f->func != func; f = f->next)
		;
	if (!f) {
		f = calloc(1, sizeof *f);
		if (!f)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*f = (struct function){.func = func, .in = m, .carveout = -1, .next = m->functions};
		f->max_dynamic = (int)(shared_limit(m->ctx->device, false) - ptx_static_shared(m->module, func));
		m->functions = f;
	}
	*out = f;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, const int *options, void **values)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	return out ? load_image(c, image, n, options, values, out) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return cuModuleLoadData(out, image); }

/* The whole file, with a NUL behind it; the caller frees it. */
CUresult read_image(const char *path, char **out)
{
	FILE *f = path ? fopen(path, "rbe") : NULL;
	size_t n = 0, cap = 65536;
	char *text = f ? malloc(cap) : NULL;

	if (!f)
		return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	while (text && cap < IMAGE_LIMIT) {
		n += fread(text + n, 1, cap - n - 4, f);
		if (n < cap - 4)
			break;
		char *grown = realloc(text, cap *= 2);

		if (!grown)
			free(text);
		text = grown;
	}
	fclose(f);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(text + n, 0, 4);
	*out = text;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *text = NULL;
	CUresult rc = read_image(path, &text);

	if (!rc)
		rc = cuModuleLoadData(out, text);
	free(text);
	return rc;
}

CUresult unload_module(CUmodule module)
{
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&driver.lock);
	struct loaded *m = find_module(module);

	if (m) {
		struct loaded **at = &m->ctx->modules;

		while (*at != m)
			at = &(*at)->next;
		*at = m->next;
		free_module(m);
	} else {
		rc = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
	CUresult rc = check_ready();

	return rc ? rc : unload_module(module);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	struct loaded *m = find_module(module);

	rc = m ? module_function(m, name, out) : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	struct loaded *m = find_module(module);
	struct var *v = m ? ptx_global(m->module, name) : NULL;

	if (v && address)
		*address = v->address;
	if (v && size)
		*size = v->size;
	pthread_mutex_unlock(&driver.lock);
	return v ? CUDA_SUCCESS : m ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
	CUresult rc = check_ready();

	if (!rc && !mode)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		*mode = 1; /* eager */
	return rc;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	struct loaded *m = find_module(module);

	*count = 0;
	for (struct func *f = m ? m->module->funcs : NULL; f; f = f->next)
		*count += f->entry && f->defined;
	pthread_mutex_unlock(&driver.lock);
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
