/* cuLibrary… and cuKernel…: code without a context; each context loads it when it first needs it. */
#define _GNU_SOURCE /* strnlen, strdup */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct library {
	char *image;
	struct kernel *kernels;
	struct instance {
		uint64_t ctx;
		struct loaded *module;
		struct instance *next;
	} *instances;
	struct library *next;
};

struct kernel {
	struct library *in;
	char *name;
	struct kernel *next;
};

static struct library *libraries; /* driver.lock */

static struct library *find_library(CUlibrary wanted)
{
	struct library *l = libraries;

	while (l && l != wanted)
		l = l->next;
	return l;
}

static struct kernel *find_kernel(CUkernel wanted)
{
	for (struct library *l = libraries; l; l = l->next)
		for (struct kernel *k = l->kernels; k; k = k->next)
			if (k == wanted)
				return k;
	return NULL;
}

/* The library's module in c. */
static CUresult instantiate(struct library *l, struct context *c, struct loaded **out)
{
	pthread_mutex_lock(&driver.lock);
	for (struct instance *i = l->instances; i; i = i->next) {
		if (i->ctx == c->id) {
			*out = i->module;
			pthread_mutex_unlock(&driver.lock);
			return CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&driver.lock);
	struct instance *i = calloc(1, sizeof *i);
	CUresult rc = i ? load_image(c, l->image, 0, NULL, NULL, out) : CUDA_ERROR_OUT_OF_MEMORY;

	if (rc) {
		free(i);
		return rc;
	}
	pthread_mutex_lock(&driver.lock);
	*i = (struct instance){c->id, *out, l->instances};
	l->instances = i;
	pthread_mutex_unlock(&driver.lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *code, const int *jit, void **jit_values, unsigned njit,
                                  const int *options, void **values, unsigned n)
{
	CUresult rc = check_ready();
	struct context *c;
	struct loaded *m = NULL;

	(void)options;
	(void)values;
	(void)n;
	if (rc)
		return rc;
	if (!out || !code)
		return CUDA_ERROR_INVALID_VALUE;
	struct library *l = calloc(1, sizeof *l);

	if (!l || !(l->image = strdup(code))) {
		free(l);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* With a context at hand, wrong code is reported now. */
	struct instance *i = NULL;

	if (current_context(&c) == CUDA_SUCCESS) {
		i = calloc(1, sizeof *i);
		rc = i ? load_image(c, code, njit, jit, jit_values, &m) : CUDA_ERROR_OUT_OF_MEMORY;
		if (rc) {
			free(i);
			free(l->image);
			free(l);
			return rc;
		}
		*i = (struct instance){c->id, m, NULL};
	}
	l->instances = i;
	pthread_mutex_lock(&driver.lock);
	l->next = libraries;
	libraries = l;
	pthread_mutex_unlock(&driver.lock);
	*out = l;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, const int *jit, void **jit_values,
                                      unsigned njit, const int *options, void **values, unsigned n)
{
	char *text = NULL;
	CUresult rc = read_image(path, &text);

	if (!rc)
		rc = cuLibraryLoadData(out, text, jit, jit_values, njit, options, values, n);
	free(text);
	return rc;
}

EXPORT CUresult cuModuleUnload(CUmodule module);

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct library *l = find_library(library);

	for (struct library **at = &libraries; l && *at; at = &(*at)->next) {
		if (*at == l) {
			*at = l->next;
			break;
		}
	}
	pthread_mutex_unlock(&driver.lock);
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	while (l->instances) {
		struct instance *next = l->instances->next;

		cuModuleUnload(l->instances->module); /* gone already with its context, perhaps */
		free(l->instances);
		l->instances = next;
	}
	while (l->kernels) {
		struct kernel *next = l->kernels->next;

		free(l->kernels->name);
		free(l->kernels);
		l->kernels = next;
	}
	free(l->image);
	free(l);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
	CUresult rc = check_ready();
	struct context *c;
	struct loaded *m;

	if (rc)
		return rc;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	struct library *l = find_library(library);

	for (struct kernel *k = l ? l->kernels : NULL; k; k = k->next) {
		if (strcmp(k->name, name) == 0) {
			*out = k;
			pthread_mutex_unlock(&driver.lock);
			return CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&driver.lock);
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (current_context(&c) == CUDA_SUCCESS && !(rc = instantiate(l, c, &m)) && !ptx_entry(m->module, name))
		rc = CUDA_ERROR_NOT_FOUND;
	if (rc)
		return rc;
	struct kernel *k = calloc(1, sizeof *k);

	if (!k || !(k->name = strdup(name))) {
		free(k);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	k->in = l;
	pthread_mutex_lock(&driver.lock);
	k->next = l->kernels;
	l->kernels = k;
	pthread_mutex_unlock(&driver.lock);
	*out = k;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct library *l = find_library(library);

	pthread_mutex_unlock(&driver.lock);
	if (!l || !out)
		return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	return instantiate(l, c, out);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name);

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
	CUmodule m;
	CUresult rc = cuLibraryGetModule(&m, library);

	return rc ? rc : cuModuleGetGlobal_v2(address, size, m, name);
}

CUresult kernel_function(CUkernel kernel, struct function **out)
{
	struct context *c;
	struct loaded *m;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct kernel *k = find_kernel(kernel);

	pthread_mutex_unlock(&driver.lock);
	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	rc = instantiate(k->in, c, &m);
	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	rc = module_function(m, k->name, out);
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	return out ? kernel_function(kernel, out) : CUDA_ERROR_INVALID_VALUE;
}
