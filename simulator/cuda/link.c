/*
 * cuLink…: PTX of several inputs becomes one image. There is no machine code here:
 * the image is the inputs' PTX, one behind the other, which cuModuleLoadData takes
 * where a driver would take a cubin.
 */
#define _GNU_SOURCE /* strnlen */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct link *CUlinkState;

struct link {
	struct context *ctx;
	unsigned n;
	const int *options;  /* the caller keeps both until cuLinkDestroy */
	void **values;       /* each call leaves the lengths of its logs there */
	void **given;        /* the values as they were: the sizes of the logs' buffers */
	char *image;
	size_t size; /* without the NUL behind it */
	struct link *next;
};

static struct link *links; /* driver.lock */

enum { INPUT_KINDS = 6, JIT_MAX_REGISTERS = 0 };

static struct link *find_link(CUlinkState wanted)
{
	struct link *l;

	pthread_mutex_lock(&driver.lock);
	for (l = links; l && l != wanted; l = l->next)
		;
	pthread_mutex_unlock(&driver.lock);
	return l;
}

EXPORT CUresult cuLinkCreate_v2(unsigned n, int *options, void **values, CUlinkState *out)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!out || (n && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	struct link *l = calloc(1, sizeof *l);
	void **given = calloc(n + 1, sizeof *given);

	if (!l || !given) {
		free(l);
		free(given);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (n)
		memcpy(given, values, n * sizeof *given);
	pthread_mutex_lock(&driver.lock);
	*l = (struct link){.ctx = c, .n = n, .options = options, .values = values, .given = given, .next = links};
	links = l;
	pthread_mutex_unlock(&driver.lock);
	*out = l;
	return CUDA_SUCCESS;
}
ALIAS(cuLinkCreate, cuLinkCreate_v2);

static void reset_values(struct link *l)
{
	if (l->n)
		memcpy(l->values, l->given, l->n * sizeof *l->given);
}

/* Each input is read on its own, so that an error names a line of it. */
static CUresult add(struct link *l, const char *text, size_t size)
{
	size_t len = strnlen(text, size);
	char *one = calloc(1, len + 4), *all = realloc(l->image, l->size + len + 2);
	CUresult rc = one && all ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	l->image = all ? all : l->image;
	if (!rc) {
		memcpy(one, text, len);
		reset_values(l);
		rc = check_image(l->ctx, one, l->n, l->options, l->values);
	}
	free(one);
	if (rc)
		return rc;
	memcpy(l->image + l->size, text, len);
	l->size += len;
	l->image[l->size++] = '\n';
	l->image[l->size] = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState state, int kind, void *data, size_t size, const char *name, unsigned n,
                                 int *options, void **values)
{
	struct context *c;
	CUresult rc = current_context(&c);
	struct link *l = find_link(state);

	(void)name;
	if (rc)
		return rc;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || !size || kind < 0 || kind >= INPUT_KINDS || (n && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	return add(l, data, size);
}
ALIAS(cuLinkAddData, cuLinkAddData_v2);

EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, int kind, const char *path, unsigned n, int *options, void **values)
{
	char *text = NULL;
	CUresult rc = read_image(path, &text);

	if (!rc)
		rc = cuLinkAddData_v2(state, kind, text, strlen(text) + 1, path, n, options, values);
	free(text);
	return rc;
}
ALIAS(cuLinkAddFile, cuLinkAddFile_v2);

/* The options are the link's, and the image is loaded without: it says itself how many registers. */
static CUresult limit_registers(struct link *l)
{
	for (unsigned i = 0; i < l->n; i++) {
		if (l->options[i] != JIT_MAX_REGISTERS)
			continue;
		char *all = realloc(l->image, l->size + 64);

		if (!all)
			return CUDA_ERROR_OUT_OF_MEMORY;
		l->image = all;
		l->size += (size_t)sprintf(all + l->size, ".pragma \"maxnreg %u\";\n", (unsigned)(uintptr_t)l->given[i]);
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
	struct context *c;
	struct loaded *m;
	CUresult rc = current_context(&c);
	struct link *l = find_link(state);

	if (rc)
		return rc;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!image || !l->size)
		return CUDA_ERROR_INVALID_VALUE;
	reset_values(l);
	rc = limit_registers(l);
	if (!rc)
		rc = load_image(l->ctx, l->image, l->n, l->options, l->values, &m);
	if (rc)
		return rc;
	unload_module(m);
	*image = l->image;
	if (size)
		*size = l->size + 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	struct link *l = find_link(state);

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&driver.lock);
	struct link **at = &links;

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	pthread_mutex_unlock(&driver.lock);
	free(l->given);
	free(l->image);
	free(l);
	return CUDA_SUCCESS;
}
