/* Handles: what they are made of, and what they mean at the moment of a call. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

/* Handles are made when first asked for and kept for the life of the process. */
#define CHUNK 64
struct chunk {
	struct handle handle[CHUNK];
	unsigned used;
	struct chunk *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct chunk *chunks;

static struct handle *find(enum kind kind, unsigned gpu, unsigned gi, unsigned ci, const char *uuid)
{
	for (struct chunk *chunk = chunks; chunk; chunk = chunk->next) {
		for (unsigned i = 0; i < chunk->used; i++) {
			struct handle *handle = &chunk->handle[i];
			if (handle->kind == kind && handle->gpu == gpu && handle->gi == gi && handle->ci == ci &&
			    strcmp(handle->uuid, uuid) == 0)
				return handle;
		}
	}
	return NULL;
}

struct handle *handle_of(enum kind kind, unsigned gpu, unsigned gi, unsigned ci, const char *uuid)
{
	pthread_mutex_lock(&lock);
	struct handle *handle = find(kind, gpu, gi, ci, uuid);
	if (!handle) {
		if (!chunks || chunks->used == CHUNK) {
			struct chunk *chunk = calloc(1, sizeof *chunk);
			if (chunk) {
				chunk->next = chunks;
				chunks = chunk;
			}
		}
		if (chunks && chunks->used < CHUNK) {
			handle = &chunks->handle[chunks->used++];
			handle->kind = kind;
			handle->gpu = gpu;
			handle->gi = gi;
			handle->ci = ci;
			strncpy(handle->uuid, uuid, sizeof handle->uuid - 1);
		}
	}
	pthread_mutex_unlock(&lock);
	return handle;
}

/* given tells a handle that was given out from any other pointer, without following it; else NULL. */
static const struct handle *given(const void *pointer)
{
	const struct handle *found = NULL;
	pthread_mutex_lock(&lock);
	for (struct chunk *chunk = chunks; chunk && !found; chunk = chunk->next) {
		const struct handle *handle = pointer;
		if (handle >= chunk->handle && handle < chunk->handle + chunk->used &&
		    ((const char *)handle - (const char *)chunk->handle) % sizeof *handle == 0)
			found = handle;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

int handle_known(const void *pointer, enum kind kind)
{
	const struct handle *handle = given(pointer);
	return handle && handle->kind == kind;
}

int handle_is_of(const void *pointer, unsigned gpu)
{
	const struct handle *handle = given(pointer);
	return handle && handle->gpu == gpu;
}

nvmlReturn_t gpu_usable(const struct gpusim_file *file, unsigned gpu)
{
	uint32_t lost;
	if (gpu >= gpu_count(file))
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(file, gpu, lost, &lost);
	switch (lost) {
	case GPUSIM_LOST_NO:
		return NVML_SUCCESS;
	case GPUSIM_LOST_UNKNOWN:
		return NVML_ERROR_UNKNOWN;
	default:
		return NVML_ERROR_GPU_IS_LOST;
	}
}

/* instances looks up the GPU instance gi and, unless ci is NONE, its compute instance. */
static nvmlReturn_t instances(struct target *target, unsigned gi, unsigned ci, const char *uuid)
{
	struct gpusim_gpu gpu;
	gpusim_read_gpu(target->file, target->gpu, &gpu);

	nvmlReturn_t err = NVML_ERROR_NOT_FOUND;
	for (unsigned i = 0; i < GPUSIM_GIS; i++) {
		if (gpu.gi[i].used && gpu.gi[i].id == gi && gpu.gi[i].profile < GPUSIM_GI_PROFILES) {
			target->gi = gpu.gi[i];
			target->profile = gpu.gi_profile[gpu.gi[i].profile];
			err = ci == NONE ? NVML_SUCCESS : err;
		}
	}
	for (unsigned i = 0; ci != NONE && i < GPUSIM_CIS; i++) {
		const struct gpusim_ci *found = &gpu.ci[i];
		if (found->used && found->gi == gi && found->id == ci && (!uuid || strcmp(found->uuid, uuid) == 0)) {
			target->ci = *found;
			err = NVML_SUCCESS;
		}
	}
	if (!gpu.mig_current)
		err = NVML_ERROR_NOT_FOUND;
	return err;
}

static nvmlReturn_t start(const struct handle *handle, enum kind kind, struct target *target)
{
	memset(target, 0, sizeof *target);
	target->file = state();
	if (!target->file)
		return NVML_ERROR_UNINITIALIZED;
	if (!handle_known(handle, kind))
		return NVML_ERROR_INVALID_ARGUMENT;
	target->gpu = handle->gpu;
	return gpu_usable(target->file, target->gpu);
}

nvmlReturn_t gpu_target(nvmlDevice_t device, struct target *target)
{
	return start((struct handle *)device.handle, KIND_GPU, target);
}

nvmlReturn_t any_target(nvmlDevice_t device, struct target *target)
{
	const struct handle *handle = (struct handle *)device.handle;
	if (!state() || !handle_known(handle, KIND_MIG))
		return gpu_target(device, target);
	nvmlReturn_t err = start(handle, KIND_MIG, target);
	if (err != NVML_SUCCESS)
		return err;
	target->mig = 1;
	return instances(target, handle->gi, handle->ci, handle->uuid);
}

nvmlReturn_t gi_target(nvmlGpuInstance_t instance, struct target *target)
{
	const struct handle *handle = (struct handle *)instance.handle;
	nvmlReturn_t err = start(handle, KIND_GI, target);
	return err != NVML_SUCCESS ? err : instances(target, handle->gi, NONE, NULL);
}

nvmlReturn_t ci_target(nvmlComputeInstance_t instance, struct target *target)
{
	const struct handle *handle = (struct handle *)instance.handle;
	nvmlReturn_t err = start(handle, KIND_CI, target);
	return err != NVML_SUCCESS ? err : instances(target, handle->gi, handle->ci, NULL);
}

nvmlReturn_t get_u32(nvmlDevice_t device, size_t offset, void *out)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	size_t gpu = offsetof(struct gpusim_state, gpu) + target.gpu * sizeof(struct gpusim_gpu);
	gpusim_copy(target.file, gpu + offset, out, sizeof(uint32_t));
	return NVML_SUCCESS;
}

nvmlReturn_t get_known(nvmlDevice_t device, size_t offset, unsigned *out)
{
	nvmlReturn_t err = get_u32(device, offset, out);
	return err == NVML_SUCCESS && *out == 0 ? NVML_ERROR_NOT_SUPPORTED : err;
}

nvmlReturn_t put_string(const char *text, char *out, unsigned length)
{
	if (!out || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

nvmlReturn_t get_string(nvmlDevice_t device, size_t offset, size_t size, char *out, unsigned length)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	char text[128];
	if (size > sizeof text)
		size = sizeof text;
	gpusim_copy(target.file, offsetof(struct gpusim_state, gpu) + target.gpu * sizeof(struct gpusim_gpu) + offset,
		    text, size);
	text[size - 1] = '\0';
	/* A board without a serial number has no such field. */
	return text[0] ? put_string(text, out, length) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t put_list(unsigned *count, void *out, const void *list, unsigned n, size_t size)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned room = *count;
	*count = n;
	if (n == 0)
		return NVML_SUCCESS;
	if (room < n || !out)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, list, n * size);
	return NVML_SUCCESS;
}
