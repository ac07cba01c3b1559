/* Making and removing GPU and compute instances. */
#include "internal.h"

#include <stdio.h>

struct edit {
	unsigned gpu, profile; /* profile: its id as the client says it */
	unsigned start, size;  /* the wanted placement; start NONE: any */
	unsigned gi, ci;       /* in: which; out: which was made */
};

static nvmlReturn_t make_gi(struct gpusim_state *next, void *argument)
{
	struct edit *edit = argument;
	struct gpusim_gpu *gpu = &next->gpu[edit->gpu];
	unsigned free_start[GPUSIM_PLACEMENTS];
	int profile = profile_by_id(gpu, edit->profile);
	if (!gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	if (profile < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct gpusim_gi_profile *want = &gpu->gi_profile[profile];
	memset(free_start, 0xff, sizeof free_start);
	if (instance_places(gpu, profile, free_start) == 0)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	unsigned start = free_start[0];
	if (edit->start != NONE) {
		start = NONE;
		for (unsigned i = 0; i < GPUSIM_PLACEMENTS; i++)
			if (free_start[i] == edit->start)
				start = edit->start;
		if (edit->size != want->size)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	if (start == NONE)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;

	/* As the driver numbers them: the one that takes all is 0, halves are 1 and 2, quarters 3 to 6, eighths from 7. */
	uint32_t ids = 0;
	for (unsigned i = 0; i < GPUSIM_GIS; i++)
		if (gpu->gi[i].used)
			ids |= 1u << (gpu->gi[i].id & 31);
	unsigned size = want->size ? want->size : 1;
	unsigned id = gpu->mig_memory_slices / size - 1 + start / size;
	while (id < 32 && ids >> id & 1)
		id++;
	if (id > 14) /* the driver has capabilities for 15 GPU instances */
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	for (unsigned i = 0; i < GPUSIM_GIS; i++) {
		if (gpu->gi[i].used)
			continue;
		gpu->gi[i] = (struct gpusim_gi){.used = 1, .id = id, .profile = (unsigned)profile, .start = start};
		edit->gi = id;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t create_gi(nvmlDevice_t device, struct edit *edit, nvmlGpuInstance_t *out)
{
	struct target target;
	unsigned current, pending;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err == NVML_SUCCESS)
		err = nvmlDeviceGetMigMode(device, &current, &pending);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	edit->gpu = target.gpu;
	err = change_layout(make_gi, edit, edit->gpu);
	return err != NVML_SUCCESS ? err : give_gi(edit->gpu, edit->gi, out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *out)
{
	struct edit edit = {.profile = profile, .start = NONE};
	return create_gi(device, &edit, out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile,
							  const nvmlGpuInstancePlacement_t *placement,
							  nvmlGpuInstance_t *out)
{
	if (!placement)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	struct edit edit = {.profile = profile, .start = placement->start, .size = placement->size};
	return create_gi(device, &edit, out);
}

static int used_by_process(const struct gpusim_gpu *gpu, unsigned gi, unsigned ci)
{
	for (unsigned i = 0; i < GPUSIM_PROCS; i++)
		if (gpu->proc[i].used && gpu->proc[i].gi == gi && (ci == NONE || gpu->proc[i].ci == ci))
			return 1;
	return 0;
}

static nvmlReturn_t remove_gi(struct gpusim_state *next, void *argument)
{
	const struct edit *edit = argument;
	struct gpusim_gpu *gpu = &next->gpu[edit->gpu];
	if (used_by_process(gpu, edit->gi, NONE))
		return NVML_ERROR_IN_USE;
	for (unsigned i = 0; i < GPUSIM_CIS; i++)
		if (gpu->ci[i].used && gpu->ci[i].gi == edit->gi)
			return NVML_ERROR_IN_USE;
	for (unsigned i = 0; i < GPUSIM_GIS; i++) {
		if (gpu->gi[i].used && gpu->gi[i].id == edit->gi) {
			memset(&gpu->gi[i], 0, sizeof gpu->gi[i]);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	struct target target;
	nvmlReturn_t err = gi_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	struct edit edit = {.gpu = target.gpu, .gi = target.gi.id};
	return change_layout(remove_gi, &edit, target.gpu);
}

/* A MIG device's UUID follows from its GPU's and its instances' ids, as in gpusim: the same each time it is made. */
static void make_uuid(const struct gpusim_gpu *gpu, unsigned gi, unsigned ci, char out[80])
{
	unsigned char d[32];
	char text[128] = "gpusim"; /* the parts are separated by NUL */
	size_t n = strlen(text) + 1;
	n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", (int)sizeof gpu->uuid, gpu->uuid) + 1;
	n += (size_t)snprintf(text + n, sizeof text - n, "%u", gi) + 1;
	n += (size_t)snprintf(text + n, sizeof text - n, "%u", ci);
	sha256(text, n, d);
	snprintf(out, 80, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", d[0], d[1], d[2], d[3],
		 d[4], d[5], d[6], d[7], d[8], d[9], d[10], d[11], d[12], d[13], d[14], d[15]);
}

static nvmlReturn_t make_ci(struct gpusim_state *next, void *argument)
{
	struct edit *edit = argument;
	struct gpusim_gpu *gpu = &next->gpu[edit->gpu];
	const struct gpusim_gi_profile *profile = NULL;
	for (unsigned i = 0; i < GPUSIM_GIS; i++)
		if (gpu->gi[i].used && gpu->gi[i].id == edit->gi && gpu->gi[i].profile < GPUSIM_GI_PROFILES)
			profile = &gpu->gi_profile[gpu->gi[i].profile];
	if (!profile)
		return NVML_ERROR_NOT_FOUND;
	unsigned slices = ci_slices(profile, edit->profile);
	if (slices == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (edit->start != NONE && (edit->size != slices || edit->start + slices > profile->slices))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (slices > ci_slices_left(gpu, edit->gi, profile))
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	if (next->mig_error)
		return (nvmlReturn_t)next->mig_error;

	uint32_t ids = 0, indexes = 0;
	struct gpusim_ci *empty = NULL;
	for (unsigned i = GPUSIM_CIS; i-- > 0;) {
		struct gpusim_ci *ci = &gpu->ci[i];
		if (!ci->used) {
			empty = ci;
			continue;
		}
		indexes |= 1u << (ci->mig_index & 31);
		ids |= ci->gi == edit->gi ? 1u << (ci->id & 31) : 0;
	}
	if (!empty)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	unsigned id = 0, index = 0;
	while (ids >> id & 1)
		id++;
	while (indexes >> index & 1)
		index++;
	*empty = (struct gpusim_ci){
		.used = 1,
		.id = id,
		.gi = edit->gi,
		.profile = edit->profile,
		.slices = slices,
		.mig_index = index,
	};
	make_uuid(gpu, edit->gi, id, empty->uuid);
	int fits;
	if (slices == profile->slices)
		fits = snprintf(empty->name, sizeof empty->name, "%s", profile->name);
	else
		fits = snprintf(empty->name, sizeof empty->name, "%uc.%s", slices, profile->name);
	edit->ci = id;
	return fits < (int)sizeof empty->name ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static nvmlReturn_t create_ci(nvmlGpuInstance_t instance, struct edit *edit, nvmlComputeInstance_t *out)
{
	struct target target;
	nvmlReturn_t err = gi_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	edit->gpu = target.gpu;
	edit->gi = target.gi.id;
	err = change_layout(make_ci, edit, edit->gpu);
	if (err != NVML_SUCCESS)
		return err;
	mig_make_nodes(edit->gpu, edit->gi, edit->ci);
	return give_ci(edit->gpu, edit->gi, edit->ci, out);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
						      nvmlComputeInstance_t *out)
{
	struct edit edit = {.profile = profile, .start = NONE};
	return create_ci(instance, &edit, out);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile,
								   const nvmlComputeInstancePlacement_t *placement,
								   nvmlComputeInstance_t *out)
{
	if (!placement)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	struct edit edit = {.profile = profile, .start = placement->start, .size = placement->size};
	return create_ci(instance, &edit, out);
}

static nvmlReturn_t remove_ci(struct gpusim_state *next, void *argument)
{
	const struct edit *edit = argument;
	struct gpusim_gpu *gpu = &next->gpu[edit->gpu];
	if (used_by_process(gpu, edit->gi, edit->ci))
		return NVML_ERROR_IN_USE;
	for (unsigned i = 0; i < GPUSIM_CIS; i++) {
		struct gpusim_ci *ci = &gpu->ci[i];
		if (ci->used && ci->gi == edit->gi && ci->id == edit->ci) {
			memset(ci, 0, sizeof *ci);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
	struct target target;
	nvmlReturn_t err = ci_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	struct edit edit = {.gpu = target.gpu, .gi = target.gi.id, .ci = target.ci.id};
	return change_layout(remove_ci, &edit, target.gpu);
}
