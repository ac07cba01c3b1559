/* What the files of the simulated libnvidia-ml share. */
#ifndef GPUSIM_NVML_INTERNAL_H
#define GPUSIM_NVML_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

/* The old names (nvmlInit beside nvmlInit_v2) are functions here, not macros. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "reader.h"

#include "names.h" /* bodies are named real_nvml… here: entry.c has the names that programs know */
#include <nvml.h> /* of the go-nvml module, which the clients are compiled with: see the Makefile */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A line that begins with API, or with GET_U32 and its kin, is a real body to nvmltest's generator of entry.c. */
#define API
#define EXPORT __attribute__((visibility("default")))

#define NONE 0xffffffffu /* no GPU or compute instance */

/*
 * Handles. One struct serves for GPUs, MIG devices, GPU instances and compute
 * instances: a handle says what is meant and holds no data, so it stays valid for
 * the life of the process, across shutdown and init, and is compared by address.
 */
enum kind { KIND_GPU, KIND_MIG, KIND_GI, KIND_CI };

struct handle {
	enum kind kind;
	unsigned gpu;    /* index in gpusim_state.gpu */
	unsigned gi, ci; /* ids, for all but KIND_GPU */
	char uuid[80];   /* of a MIG device: ids are given again, UUIDs are not */
};

/* handle.c */
struct handle *handle_of(enum kind kind, unsigned gpu, unsigned gi, unsigned ci, const char *uuid);
int handle_known(const void *pointer, enum kind kind);
/* The pointer, which may be anything, is a handle of the GPU or of a part of it. */
int handle_is_of(const void *pointer, unsigned gpu);

/* init.c: the state while the library is initialised, else NULL. */
const struct gpusim_file *state(void);
/* visible: the GPU's device node may be used by this process. */
int gpu_permitted(unsigned gpu);
/* The number of state.gpu[] entries in use. */
unsigned gpu_count(const struct gpusim_file *file);
const char *library_version(void);

/*
 * What a device handle means now. gpu_target accepts GPUs only, any_target MIG
 * devices too (mig is then set, with its instances). Both answer what every call
 * answers first: not initialised, bad handle, lost.
 */
struct target {
	const struct gpusim_file *file;
	unsigned gpu;
	int mig;
	struct gpusim_gi gi;
	struct gpusim_ci ci;
	struct gpusim_gi_profile profile;
};
nvmlReturn_t gpu_target(nvmlDevice_t device, struct target *target);
nvmlReturn_t any_target(nvmlDevice_t device, struct target *target);
nvmlReturn_t gi_target(nvmlGpuInstance_t instance, struct target *target);
nvmlReturn_t ci_target(nvmlComputeInstance_t instance, struct target *target);
/* gpu_usable: 0, or what calls on a lost GPU answer. */
nvmlReturn_t gpu_usable(const struct gpusim_file *file, unsigned gpu);

/* Copies one field of one GPU: FIELD(target, uuid, buffer). */
#define GPU_OFFSET(index, field) \
	(offsetof(struct gpusim_state, gpu) + (index) * sizeof(struct gpusim_gpu) + offsetof(struct gpusim_gpu, field))
#define FIELD(file, index, field, out) \
	gpusim_copy(file, GPU_OFFSET(index, field), out, sizeof(((struct gpusim_gpu *)0)->field))

/*
 * The common getters: one 32-bit field of a GPU, and one string. A string that
 * does not fit answers INSUFFICIENT_SIZE, as the real ones do.
 */
nvmlReturn_t get_u32(nvmlDevice_t device, size_t offset, void *out);
/* get_known answers NOT_SUPPORTED for a 0: the GPU does not have such a number. */
nvmlReturn_t get_known(nvmlDevice_t device, size_t offset, unsigned *out);
nvmlReturn_t get_string(nvmlDevice_t device, size_t offset, size_t size, char *out, unsigned length);
nvmlReturn_t put_string(const char *text, char *out, unsigned length);

#define GET_U32(function, type, field) \
	API nvmlReturn_t function(nvmlDevice_t device, type *out) \
	{ \
		_Static_assert(sizeof(type) == sizeof(uint32_t), "32-bit field"); \
		return get_u32(device, offsetof(struct gpusim_gpu, field), out); \
	}
#define GET_KNOWN(function, field) \
	API nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) \
	{ \
		return get_known(device, offsetof(struct gpusim_gpu, field), out); \
	}
#define GET_STRING(function, field) \
	API nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) \
	{ \
		return get_string(device, offsetof(struct gpusim_gpu, field), \
				  sizeof(((struct gpusim_gpu *)0)->field), out, length); \
	}

/*
 * put_list answers a list in NVML's way: *count is the room on the way in and the
 * number on the way out; too little room is INSUFFICIENT_SIZE.
 */
nvmlReturn_t put_list(unsigned *count, void *out, const void *list, unsigned n, size_t size);

/* telemetry.c: the percentage to which the GPU is busy at this moment. */
unsigned gpu_load(const struct gpusim_file *file, unsigned gpu);

/* device.c */
void fill_pci(const struct gpusim_pci *pci, nvmlPciInfo_t *out);

/* hold.c: the GPU is open from its first handle to the last nvmlShutdown, and cannot be reset meanwhile. */
void hold_gpu(unsigned gpu);
void hold_none(void);

/* topology.c: GPUs joined by NVLink, directly or through switches. */
int linked(const struct gpusim_file *file, unsigned a, unsigned b);

/* mig.c: this process may use the capability nodes of the MIG device. */
int mig_visible(unsigned minor, unsigned gi, unsigned ci);
void mig_make_nodes(unsigned gpu, unsigned gi, unsigned ci);
/* This process may use the capability mig/config. */
int mig_may_configure(void);

/* instance.c: what may be made of a GPU in MIG mode, and what has been. */
unsigned profile_id(unsigned profile);                                    /* what NVML calls a GI profile's ID */
int profile_by_id(const struct gpusim_gpu *gpu, unsigned id);             /* index in gi_profile, or -1 */
unsigned instance_places(const struct gpusim_gpu *gpu, int profile, unsigned free_start[GPUSIM_PLACEMENTS]);
nvmlReturn_t give_gi(unsigned gpu, unsigned gi, nvmlGpuInstance_t *out);

/* compute.c: the same of a GPU instance. Slices of a CI profile, 0 if the GPU instance cannot have it. */
unsigned ci_slices(const struct gpusim_gi_profile *profile, unsigned ci_profile);
unsigned ci_slices_left(const struct gpusim_gpu *gpu, unsigned gi, const struct gpusim_gi_profile *profile);
nvmlReturn_t give_ci(unsigned gpu, unsigned gi, unsigned ci, nvmlComputeInstance_t *out);

/* enter.c: takes as long as gpusim says that nvmlInit takes; what is done first in every function. */
void init_cost(const struct gpusim_file *file);
int gpusim_enter(const char *name, const void *first);

/* sha256.c */
void sha256(const void *message, size_t size, unsigned char out[32]);

/*
 * write.c: changes the state as gpusim would, if this process may write the file.
 * edit sees the slot that comes into force if it returns NVML_SUCCESS; an event of
 * the given type is then added to the ring (0: none).
 */
typedef nvmlReturn_t (*edit_fn)(struct gpusim_state *next, void *argument);
nvmlReturn_t change(edit_fn edit, void *argument, unsigned gpu, uint64_t event);

/* change_layout changes the MIG layout: also for a process that only has the capability mig/config. */
nvmlReturn_t change_layout(edit_fn edit, void *argument, unsigned gpu);

#endif
