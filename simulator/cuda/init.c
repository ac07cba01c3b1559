/*
 * cuInit: which GPUs this process has. As a driver would, it opens the device
 * nodes; a GPU whose node may not be opened is not there for us.
 */
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT int gpusim_simulated(void) { return 1; }

/* A forked child has no driver (the real one answers the same): it must start a program of its own. */
static void in_child(void) { driver.ready = false; }

/*
 * Minor of the capability file for access to a GPU instance, or a compute
 * instance of it: /proc/driver/nvidia-caps/mig-minors counts 3 for the driver,
 * then 15 GPU instances of 9 files for each GPU.
 */
static void cap_node(char *out, size_t size, unsigned minor, unsigned gi, int ci)
{
	snprintf(out, size, "nvidia-caps/nvidia-cap%u", 3 + minor * 135 + gi * 9 + (unsigned)(ci + 1));
}

static int open_node(const char *name) { return gpusim_node((const void *)&gpusim_simulated, name); }

static CUresult node_error(int e)
{
	return e == 0 ? CUDA_SUCCESS : e == ENOENT ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_OPERATING_SYSTEM;
}

static const struct gpusim_gi *gi_of(const struct gpusim_gpu *g, unsigned id)
{
	for (int i = 0; i < GPUSIM_GIS; i++)
		if (g->gi[i].used && g->gi[i].id == id)
			return &g->gi[i];
	return NULL;
}

/* The compute instance that is MIG device number index, as nvidia-smi counts them. */
static const struct gpusim_ci *ci_at(const struct gpusim_gpu *g, unsigned index)
{
	for (int i = 0; i < GPUSIM_CIS; i++)
		if (g->ci[i].used && g->ci[i].mig_index == index)
			return &g->ci[i];
	return NULL;
}

static void whole_gpu(struct device *d, unsigned index, const struct gpusim_gpu *g)
{
	*d = (struct device){.gpu = index, .info = *g, .sm_count = g->sm_count};
	snprintf(d->uuid, sizeof d->uuid, "%s", g->uuid);
	snprintf(d->name, sizeof d->name, "%s", g->name);
	d->memory = g->memory_total - g->memory_reserved;
}

static void mig_device(struct device *d, unsigned index, const struct gpusim_gpu *g,
                       const struct gpusim_ci *ci, const struct gpusim_gi *gi)
{
	const struct gpusim_gi_profile *p = &g->gi_profile[gi->profile];

	whole_gpu(d, index, g);
	d->mig = true;
	d->gi = gi->id;
	snprintf(d->uuid, sizeof d->uuid, "%s", ci->uuid);
	snprintf(d->name, sizeof d->name, "%s MIG %s", g->name, ci->name);
	d->memory = p->memory_mb << 20;
	d->sm_count = p->slices ? p->sm_count * ci->slices / p->slices : p->sm_count;
}

/* All that this process could see, whole GPUs first. */
static int list_devices(const struct gpusim_state *s, struct device *out, struct candidate *cand)
{
	int n = 0;

	for (int mig = 0; mig < 2; mig++) {
		for (unsigned i = 0; i < s->ngpus && i < GPUSIM_GPUS; i++) {
			const struct gpusim_gpu *g = &s->gpu[i];
			char node[64];

			snprintf(node, sizeof node, "nvidia%u", g->minor);
			if (g->lost || (g->mig_current != 0) != mig || open_node(node) != 0)
				continue;
			if (!mig) {
				whole_gpu(&out[n], i, g);
				cand[n] = (struct candidate){0};
				memcpy(cand[n].uuid, g->uuid, sizeof cand[n].uuid);
				n++;
				continue;
			}
			for (unsigned k = 0; k < GPUSIM_CIS; k++) {
				const struct gpusim_ci *ci = ci_at(g, k);
				const struct gpusim_gi *gi = ci ? gi_of(g, ci->gi) : NULL;

				if (!gi || gi->profile >= GPUSIM_GI_PROFILES)
					continue;
				cap_node(node, sizeof node, g->minor, gi->id, -1);
				if (open_node(node) != 0)
					continue;
				cap_node(node, sizeof node, g->minor, gi->id, (int)ci->id);
				if (open_node(node) != 0)
					continue;
				mig_device(&out[n], i, g, ci, gi);
				cand[n] = (struct candidate){.mig = true, .gi = gi->id, .ci = ci->id};
				memcpy(cand[n].uuid, ci->uuid, sizeof cand[n].uuid);
				memcpy(cand[n].parent, g->uuid, sizeof cand[n].parent);
				n++;
			}
		}
	}
	return n;
}

/* Why there is no device: none at all, or nodes that we may not open. */
static CUresult why_none(const struct gpusim_state *s)
{
	for (unsigned i = 0; i < s->ngpus && i < GPUSIM_GPUS; i++) {
		char node[32];

		snprintf(node, sizeof node, "nvidia%u", s->gpu[i].minor);
		if (node_error(open_node(node)) == CUDA_ERROR_OPERATING_SYSTEM)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_ERROR_NO_DEVICE;
}

#define MAX_CANDIDATES (GPUSIM_GPUS * (GPUSIM_CIS + 1))

static CUresult choose(const struct gpusim_state *s)
{
	struct device *all = calloc(MAX_CANDIDATES, sizeof *all);
	struct candidate *cand = calloc(MAX_CANDIDATES, sizeof *cand);
	int chosen[MAX_CANDIDATES], n;
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

	if (all && cand) {
		n = list_devices(s, all, cand);
		rc = n ? CUDA_SUCCESS : why_none(s);
		n = visible_devices(getenv("CUDA_VISIBLE_DEVICES"), cand, n, chosen);
		if (!rc && !n)
			rc = CUDA_ERROR_NO_DEVICE;
		driver.ndevices = rc ? 0 : n > MAX_DEVICES ? MAX_DEVICES : n;
		for (int i = 0; i < driver.ndevices; i++)
			driver.device[i] = all[chosen[i]];
	}
	free(all);
	free(cand);
	return rc;
}

static CUresult init(void)
{
	char version[64] = "";
	int rc = gpusim_attach((const void *)&gpusim_simulated, &driver.file, version);

	if (rc == GPUSIM_E_VERSION)
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	if (rc == GPUSIM_E_NONE)
		return CUDA_ERROR_NO_DEVICE;
	if (rc)
		return CUDA_ERROR_UNKNOWN;
	CUresult e = node_error(open_node("nvidiactl"));

	if (e)
		return e;
	/* Missing or forbidden, a real driver says no more than this about nvidia-uvm. */
	if (open_node("nvidia-uvm") != 0)
		return CUDA_ERROR_UNKNOWN;
	struct gpusim_state *s = malloc(sizeof *s);

	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	gpusim_read(driver.file, s);
	driver.cuda_version = s->cuda_version;
	e = choose(s);
	free(s);
	if (!e) {
		ptx_reserve_windows();
		pthread_atfork(NULL, NULL, in_child);
	}
	return e;
}

EXPORT CUresult cuInit(unsigned flags)
{
	CUresult rc = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&init_lock);
	if (!driver.ready) {
		rc = init();
		driver.ready = rc == CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&init_lock);
	return rc;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	const struct gpusim_file *file = NULL;
	char library[64] = "";
	unsigned v = 0;

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	/* It is answered before cuInit, and without a driver. */
	if (gpusim_attach((const void *)&gpusim_simulated, &file, library) == 0)
		gpusim_copy(file, offsetof(struct gpusim_state, cuda_version), &v, sizeof v);
	*version = v ? (int)v : 13000;
	return CUDA_SUCCESS;
}

CUresult check_ready(void) { return driver.ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

struct device *device_at(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < driver.ndevices ? &driver.device[ordinal] : NULL;
}

bool device_lost(const struct device *d)
{
	uint32_t lost = 0;

	gpusim_copy(driver.file,
	            offsetof(struct gpusim_state, gpu) + d->gpu * sizeof(struct gpusim_gpu) +
	                offsetof(struct gpusim_gpu, lost),
	            &lost, sizeof lost);
	return lost != GPUSIM_LOST_NO;
}
