/* cuGetProcAddress: a function by its name without suffix, as of a CUDA version. */
#define _GNU_SOURCE /* dladdr */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int gpusim_simulated(void);

/*
 * From which CUDA version on a name means a later variant than the plain one
 * (cudaTypedefs.h); all other variants came with 3.2, before what is asked for today.
 */
static const struct { const char *name; int version; const char *suffix; } variants[] = {
	{"cuCtxCreate", 12050, "_v4"}, {"cuCtxCreate", 11040, "_v3"}, {"cuCtxCreate", 3020, "_v2"},
	{"cuDeviceGetUuid", 11040, "_v2"}, {"cuDevicePrimaryCtxRelease", 11000, "_v2"},
	{"cuDevicePrimaryCtxReset", 11000, "_v2"}, {"cuDevicePrimaryCtxSetFlags", 11000, "_v2"},
	{"cuGetProcAddress", 12000, "_v2"}, {"cuEventElapsedTime", 12080, "_v2"},
	{"cuStreamBeginCapture", 10010, "_v2"}, {"cuStreamGetCaptureInfo", 11030, "_v2"},
	{"cuMemPrefetchAsync", 12020, "_v2"}, {"cuMemAdvise", 12020, "_v2"},
	{"cuMemHostRegister", 6050, "_v2"}, {"cuIpcOpenMemHandle", 11000, "_v2"},
	{"cuStreamWaitValue32", 11070, "_v2"}, {"cuStreamWaitValue64", 11070, "_v2"},
	{"cuStreamWriteValue32", 11070, "_v2"}, {"cuStreamWriteValue64", 11070, "_v2"},
	{"cuStreamBatchMemOp", 11070, "_v2"}, {"cuTexRefSetAddress2D", 4010, "_v3"},
	{"cuMemGetAttribute", 0, ""},
};

static const char *suffix_of(const char *name, int version)
{
	bool listed = false;

	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
		if (strcmp(variants[i].name, name) != 0)
			continue;
		listed = true;
		if (version >= variants[i].version)
			return variants[i].suffix;
	}
	return listed ? "" : "_v2";
}

static void *own_handle(void)
{
	static void *handle;
	Dl_info info;

	if (!handle && dladdr((const void *)(uintptr_t)&gpusim_simulated, &info))
		handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	return handle;
}

static void *find(const char *name, const char *suffix, const char *stream)
{
	char full[160];

	snprintf(full, sizeof full, "%s%s%s", name, suffix, stream);
	return own_handle() ? dlsym(own_handle(), full) : NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
	/* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
	bool per_thread = flags & 2;

	if (!name || !out || strncmp(name, "cu", 2) != 0 || strlen(name) > 100)
		return CUDA_ERROR_INVALID_VALUE;
	const char *suffix = suffix_of(name, version);

	*out = NULL;
	if (per_thread) {
		*out = find(name, suffix, "_ptsz");
		if (!*out)
			*out = find(name, suffix, "_ptds");
	}
	if (!*out)
		*out = find(name, suffix, "");
	if (!*out)
		*out = find(name, "", "");
	if (status)
		*status = *out ? 0 : 1; /* SUCCESS, SYMBOL_NOT_FOUND */
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* Private interfaces of NVIDIA's own libraries. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	(void)id;
	if (table)
		*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
