/* cuDevice…: what a device is. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = driver.ndevices;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", d->name);
	return CUDA_SUCCESS;
}

/* The 16 bytes of "GPU-…" or "MIG-…". */
static CUresult uuid_bytes(const char *text, CUuuid *out)
{
	int n = 0;
	unsigned byte;

	for (text += 4; *text && n < 16; ) {
		if (*text == '-') {
			text++;
			continue;
		}
		if (sscanf(text, "%2x", &byte) != 1)
			return CUDA_ERROR_UNKNOWN;
		out->bytes[n++] = (char)byte;
		text += 2;
	}
	return n == 16 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	return uuid ? uuid_bytes(d->info.uuid, uuid) : CUDA_ERROR_INVALID_VALUE;
}

/* Unlike the first version, this one tells the MIG device's own. */
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	return uuid ? uuid_bytes(d->uuid, uuid) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice ordinal)
{
	(void)luid;
	(void)mask;
	(void)ordinal;
	return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = d->memory;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = (int)d->info.cc_major;
	*minor = (int)d->info.cc_minor;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, (size_t)len, "%04X:%02X:%02X.%X", d->info.pci.domain, d->info.pci.bus, d->info.pci.device,
	         d->info.pci.function);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	unsigned domain = 0, bus, slot, function = 0;
	CUresult rc = check_ready();

	if (rc)
		return rc;
	if (!device || !id)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
		domain = 0;
		if (sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (int i = 0; i < driver.ndevices; i++) {
		const struct gpusim_pci *p = &driver.device[i].info.pci;

		if (p->domain == domain && p->bus == bus && p->device == slot && p->function == function) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* What differs between architectures (CUDA C++ programming guide, "Compute capabilities"). */
struct capability { unsigned cc, threads_per_sm, blocks_per_sm, shared_per_sm_kb, optin_kb, single_to_double; };
static const struct capability capabilities[] = {
	{50, 2048, 32, 64, 48, 32}, {52, 2048, 32, 96, 48, 32}, {60, 2048, 32, 64, 48, 2}, {61, 2048, 32, 96, 48, 32},
	{70, 2048, 32, 96, 96, 2}, {75, 1024, 16, 64, 64, 32}, {80, 2048, 32, 164, 163, 2}, {86, 1536, 16, 100, 99, 64},
	{87, 1536, 16, 164, 163, 64}, {89, 1536, 24, 100, 99, 64}, {90, 2048, 32, 228, 227, 2}, {100, 2048, 32, 228, 227, 2},
	{120, 1536, 24, 100, 99, 64},
};

static const struct capability *capability(const struct device *d)
{
	unsigned cc = d->info.cc_major * 10 + d->info.cc_minor;
	const struct capability *best = &capabilities[0];

	for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
		if (capabilities[i].cc <= cc)
			best = &capabilities[i];
	return best;
}

uint64_t shared_limit(const struct device *d, bool optin)
{
	return (optin ? capability(d)->optin_kb : 48) * 1024ull;
}

static int attribute(const struct device *d, int which, int *out)
{
	const struct gpusim_gpu *g = &d->info;
	const struct capability *c = capability(d);
	int yes_sm70 = g->cc_major >= 7, yes_sm60 = g->cc_major >= 6;

	switch (which) {
	case 1: case 2: case 3: *out = 1024; break;      /* threads per block, block x, y */
	case 4: *out = 64; break;                        /* block z */
	case 5: *out = 2147483647; break;                /* grid x */
	case 6: case 7: *out = 65535; break;             /* grid y, z */
	case 8: *out = 48 << 10; break;                  /* shared memory per block */
	case 9: *out = 64 << 10; break;                  /* constant memory */
	case 10: *out = LANES; break;                    /* warp size */
	case 11: *out = 2147483647; break;               /* pitch */
	case 12: case 82: *out = 65536; break;           /* registers per block, multiprocessor */
	case 13: *out = (int)(g->clock_max[1] ? g->clock_max[1] : g->clock[1]) * 1000; break; /* kHz; a vGPU knows no highest */
	case 14: *out = 512; break;                      /* texture alignment */
	case 15: *out = 1; break;                        /* copy while a kernel runs */
	case 16: *out = (int)d->sm_count; break;
	case 17: *out = 0; break;                        /* watchdog */
	case 18: *out = (int)g->unified; break;          /* integrated */
	case 19: *out = 1; break;                        /* can map host memory */
	case 20: *out = (int)g->compute_mode; break;
	case 30: *out = 512; break;                      /* surface alignment */
	case 31: *out = 1; break;                        /* concurrent kernels */
	case 32: *out = g->ecc_supported && g->ecc_current; break;
	case 33: *out = (int)g->pci.bus; break;
	case 34: *out = (int)g->pci.device; break;
	case 35: *out = 0; break;                        /* TCC: Windows */
	case 36: *out = (int)(g->clock_max[2] ? g->clock_max[2] : g->clock[2]) * 1000; break; /* memory, kHz */
	case 37: *out = (int)g->bus_width; break;
	case 38: *out = (int)g->l2_bytes; break;
	case 39: *out = (int)c->threads_per_sm; break;
	case 40: *out = 2; break;                        /* copy engines */
	case 41: *out = 1; break;                        /* unified addressing */
	case 50: *out = (int)g->pci.domain; break;
	case 51: *out = 32; break;                       /* texture pitch alignment */
	case 75: *out = (int)g->cc_major; break;
	case 76: *out = (int)g->cc_minor; break;
	case 78: case 79: case 80: *out = 1; break;      /* stream priorities, L1 caches */
	case 81: *out = (int)(c->shared_per_sm_kb << 10); break;
	case 83: *out = 1; break;                        /* managed memory */
	case 84: *out = (int)g->multi_gpu_board; break;
	case 87: *out = (int)c->single_to_double; break;
	case 89: *out = yes_sm60; break;                 /* concurrent managed access */
	case 90: *out = yes_sm60; break;                 /* compute preemption */
	case 91: *out = 1; break;                        /* host pointer of registered memory */
	case 97: *out = (int)(c->optin_kb << 10); break;
	case 99: *out = 1; break;                        /* host register */
	case 106: *out = (int)c->blocks_per_sm; break;
	case 111: *out = g->cc_major >= 8 ? 1024 : 0; break; /* shared memory that the system takes */
	case 113: *out = yes_sm70; break;                /* read-only host register */
	/*
	 * Not served here, so they answer 0 as on a GPU that lacks them: cooperative and
	 * cluster launches, memory pools, virtual memory management, RDMA, textures, …
	 */
	default:
		if (which < 1 || which > 145)
			return CUDA_ERROR_INVALID_VALUE;
		*out = 0;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int which, CUdevice ordinal)
{
	DEVICE_OR_RETURN(ordinal);
	return value ? attribute(d, which, value) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetProperties(int *properties, CUdevice ordinal)
{
	/* CUdevprop: these attributes, in this order. */
	static const int which[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

	DEVICE_OR_RETURN(ordinal);
	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof which / sizeof *which; i++)
		attribute(d, which[i], &properties[i]);
	return CUDA_SUCCESS;
}
