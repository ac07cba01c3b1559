/* GPU instances: their profiles, where they fit, and which there are. */
#include "internal.h"

#include <stdio.h>

/*
 * The number that clients pass to nvmlGpuInstanceProfileInfo_t.id's users is not
 * the constant that they asked with; these are the ones of A100, H100, B200 and RTX PRO 6000
 * (nvidia-smi mig -lgip shows them; the last one's slices count in quarters).
 */
unsigned profile_id(unsigned profile)
{
	static const unsigned char id[NVML_GPU_INSTANCE_PROFILE_COUNT] = {
		[NVML_GPU_INSTANCE_PROFILE_7_SLICE] = 0,
		[NVML_GPU_INSTANCE_PROFILE_4_SLICE] = 5,
		[NVML_GPU_INSTANCE_PROFILE_3_SLICE] = 9,
		[NVML_GPU_INSTANCE_PROFILE_2_SLICE] = 14,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2] = 15,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE] = 19,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1] = 20,
		[NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX] = 32,
		[NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX] = 35,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX] = 47,
		[NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME] = 64,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME] = 65,
		[NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME] = 66,
		[NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME] = 67,
	};
	if (profile < sizeof id && (id[profile] || profile == NVML_GPU_INSTANCE_PROFILE_7_SLICE))
		return id[profile];
	return 128 + profile; /* none of these GPUs has them: only unlike the others */
}

static unsigned profile_count(const struct gpusim_gpu *gpu)
{
	return gpu->n_gi_profiles < GPUSIM_GI_PROFILES ? gpu->n_gi_profiles : GPUSIM_GI_PROFILES;
}

static int profile_by_constant(const struct gpusim_gpu *gpu, unsigned constant)
{
	for (unsigned i = 0; i < profile_count(gpu); i++)
		if (gpu->gi_profile[i].id == constant)
			return (int)i;
	return -1;
}

int profile_by_id(const struct gpusim_gpu *gpu, unsigned id)
{
	for (unsigned i = 0; i < profile_count(gpu); i++)
		if (profile_id(gpu->gi_profile[i].id) == id)
			return (int)i;
	return -1;
}

/* mig_gpu reads a GPU that can do MIG. */
static nvmlReturn_t mig_gpu(nvmlDevice_t device, struct target *target, struct gpusim_gpu *gpu)
{
	nvmlReturn_t err = gpu_target(device, target);
	if (err != NVML_SUCCESS)
		return err;
	gpusim_read_gpu(target->file, target->gpu, gpu);
	return gpu->mig_supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* mig_profile also finds the profile that a client names by its id. */
static nvmlReturn_t mig_profile(nvmlDevice_t device, unsigned id, struct target *target, struct gpusim_gpu *gpu,
				int *profile)
{
	nvmlReturn_t err = mig_gpu(device, target, gpu);
	if (err != NVML_SUCCESS)
		return err;
	*profile = profile_by_id(gpu, id);
	return *profile < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static void fill_v3(const struct gpusim_gi_profile *profile, nvmlGpuInstanceProfileInfo_v3_t *out)
{
	*out = (nvmlGpuInstanceProfileInfo_v3_t){
		.version = nvmlGpuInstanceProfileInfo_v3,
		.id = profile_id(profile->id),
		.sliceCount = profile->slices,
		.instanceCount = profile->instances,
		.multiprocessorCount = profile->sm_count,
		.copyEngineCount = profile->copy_engines,
		.decoderCount = profile->decoders,
		.encoderCount = profile->encoders,
		.jpegCount = profile->jpegs,
		.ofaCount = profile->ofas,
		.memorySizeMB = profile->memory_mb,
	};
	snprintf(out->name, sizeof out->name, "MIG %.*s", (int)sizeof profile->name, profile->name);
}

static void fill_v2(const struct gpusim_gi_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
	nvmlGpuInstanceProfileInfo_v3_t v3;
	fill_v3(profile, &v3);
	out->version = nvmlGpuInstanceProfileInfo_v2;
	out->id = v3.id;
	out->isP2pSupported = 0;
	/* From sliceCount to the name the two are alike. */
	memcpy(&out->sliceCount, &v3.sliceCount, offsetof(nvmlGpuInstanceProfileInfo_v3_t, memorySizeMB) -
						  offsetof(nvmlGpuInstanceProfileInfo_v3_t, sliceCount));
	out->memorySizeMB = v3.memorySizeMB;
	memcpy(out->name, v3.name, sizeof out->name);
}

/* fill_versioned answers in the version that the client says its struct is of. */
static nvmlReturn_t fill_versioned(const struct gpusim_gi_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
	switch (out->version) {
	case nvmlGpuInstanceProfileInfo_v2:
		fill_v2(profile, out);
		return NVML_SUCCESS;
	case nvmlGpuInstanceProfileInfo_v3:
		fill_v3(profile, (nvmlGpuInstanceProfileInfo_v3_t *)out);
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	}
}

static nvmlReturn_t profile_asked(nvmlDevice_t device, unsigned constant, const void *out,
				  struct gpusim_gi_profile *profile)
{
	struct target target;
	struct gpusim_gpu gpu;
	nvmlReturn_t err = mig_gpu(device, &target, &gpu);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || constant >= NVML_GPU_INSTANCE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	int index = profile_by_constant(&gpu, constant);
	if (index < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*profile = gpu.gi_profile[index];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int constant,
						     nvmlGpuInstanceProfileInfo_t *out)
{
	struct gpusim_gi_profile profile;
	nvmlGpuInstanceProfileInfo_v2_t info;
	nvmlReturn_t err = profile_asked(device, constant, out, &profile);
	if (err != NVML_SUCCESS)
		return err;
	fill_v2(&profile, &info);
	/* The first version is the second without the version before and the name after it. */
	memcpy(out, &info.id, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
	out->memorySizeMB = info.memorySizeMB;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int constant,
						      nvmlGpuInstanceProfileInfo_v2_t *out)
{
	struct gpusim_gi_profile profile;
	nvmlReturn_t err = profile_asked(device, constant, out, &profile);
	return err != NVML_SUCCESS ? err : fill_versioned(&profile, out);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
							  nvmlGpuInstanceProfileInfo_v2_t *out)
{
	struct target target;
	struct gpusim_gpu gpu;
	int profile;
	nvmlReturn_t err = mig_profile(device, id, &target, &gpu, &profile);
	if (err != NVML_SUCCESS)
		return err;
	return out ? fill_versioned(&gpu.gi_profile[profile], out) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t placements(nvmlDevice_t device, unsigned id, nvmlGpuInstancePlacement_t *out, unsigned *count)
{
	struct target target;
	struct gpusim_gpu gpu;
	int index;
	nvmlReturn_t err = mig_profile(device, id, &target, &gpu, &index);
	if (err != NVML_SUCCESS)
		return err;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct gpusim_gi_profile *profile = &gpu.gi_profile[index];
	*count = 0;
	for (unsigned i = 0; i < profile->nplacements && i < GPUSIM_PLACEMENTS; i++, ++*count)
		if (out)
			out[i] = (nvmlGpuInstancePlacement_t){profile->start[i], profile->size};
	return NVML_SUCCESS;
}

/* out may be null: then only the number is asked for. The buffer has no size: nvml.h says how large it must be. */
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
							       nvmlGpuInstancePlacement_t *out, unsigned int *count)
{
	return placements(device, id, out, count);
}

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
							    nvmlGpuInstancePlacement_t *out, unsigned int *count)
{
	return out ? placements(device, id, out, count) : NVML_ERROR_INVALID_ARGUMENT;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

enum { ENGINE_KINDS = 4 };

/* media_engines answers how many engines of a kind each instance of a profile has. */
static unsigned media_engines(const struct gpusim_gi_profile *profile, unsigned kind)
{
	const uint32_t engines[ENGINE_KINDS] = {profile->decoders, profile->encoders, profile->jpegs, profile->ofas};
	return engines[kind];
}

/*
 * fit_by_engines answers how many instances more of a profile the GPU's media engines allow. It has of
 * each kind what all instances of the profile with most of them have together.
 */
static unsigned fit_by_engines(const struct gpusim_gpu *gpu, const struct gpusim_gi_profile *profile)
{
	unsigned fit = GPUSIM_GIS;
	for (unsigned kind = 0; kind < ENGINE_KINDS; kind++) {
		unsigned each = media_engines(profile, kind), total = 0, taken = 0;
		for (unsigned i = 0; i < profile_count(gpu); i++) {
			unsigned all = media_engines(&gpu->gi_profile[i], kind) * gpu->gi_profile[i].instances;
			total = total > all ? total : all;
		}
		for (unsigned i = 0; i < GPUSIM_GIS; i++)
			if (gpu->gi[i].used && gpu->gi[i].profile < profile_count(gpu))
				taken += media_engines(&gpu->gi_profile[gpu->gi[i].profile], kind);
		if (each)
			fit = least(fit, (total > taken ? total - taken : 0) / each);
	}
	return fit;
}

/*
 * instance_places lists the placements of a profile that are free, and answers how
 * many instances more of it fit: limited by memory slices (placements), compute
 * slices, media engines, and how many the profile allows.
 */
unsigned instance_places(const struct gpusim_gpu *gpu, int index, unsigned free_start[GPUSIM_PLACEMENTS])
{
	const struct gpusim_gi_profile *profile = &gpu->gi_profile[index];
	unsigned taken_slices = 0, same = 0, nfree = 0, fit = 0, next_start = 0;
	uint64_t memory = 0; /* bit per memory slice in use */

	for (unsigned i = 0; i < GPUSIM_GIS; i++) {
		const struct gpusim_gi *gi = &gpu->gi[i];
		if (!gi->used || gi->profile >= profile_count(gpu))
			continue;
		const struct gpusim_gi_profile *other = &gpu->gi_profile[gi->profile];
		taken_slices += other->slices;
		same += gi->profile == (unsigned)index;
		memory |= ((1ull << (other->size & 63)) - 1) << (gi->start & 63);
	}
	uint64_t mask = (1ull << (profile->size & 63)) - 1;
	for (unsigned i = 0; i < profile->nplacements && i < GPUSIM_PLACEMENTS; i++) {
		if (memory & mask << (profile->start[i] & 63))
			continue;
		free_start[nfree++] = profile->start[i];
		if (fit == 0 || profile->start[i] >= next_start) {
			fit++;
			next_start = profile->start[i] + profile->size;
		}
	}
	unsigned slices = gpu->mig_slices > taken_slices ? gpu->mig_slices - taken_slices : 0;
	unsigned by_slices = profile->slices ? slices / profile->slices : 0;
	unsigned by_limit = profile->instances > same ? profile->instances - same : 0;
	return least(least(fit, by_slices), least(by_limit, fit_by_engines(gpu, profile)));
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
	struct target target;
	struct gpusim_gpu gpu;
	unsigned start[GPUSIM_PLACEMENTS];
	int profile;
	nvmlReturn_t err = mig_profile(device, id, &target, &gpu, &profile);
	if (err != NVML_SUCCESS)
		return err;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!gpu.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = instance_places(&gpu, profile, start);
	return NVML_SUCCESS;
}

nvmlReturn_t give_gi(unsigned gpu, unsigned gi, nvmlGpuInstance_t *out)
{
	out->handle = (void *)handle_of(KIND_GI, gpu, gi, NONE, "");
	return out->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out,
					   unsigned int *count)
{
	struct target target;
	struct gpusim_gpu gpu;
	int profile;
	nvmlReturn_t err = mig_profile(device, id, &target, &gpu, &profile);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!gpu.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	for (unsigned i = 0; i < GPUSIM_GIS && err == NVML_SUCCESS; i++)
		if (gpu.gi[i].used && gpu.gi[i].profile == (unsigned)profile)
			err = give_gi(target.gpu, gpu.gi[i].id, &out[(*count)++]);
	return err;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
	struct target target;
	struct gpusim_gpu gpu;
	nvmlReturn_t err = mig_gpu(device, &target, &gpu);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!gpu.mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; i < GPUSIM_GIS; i++)
		if (gpu.gi[i].used && gpu.gi[i].id == id)
			return give_gi(target.gpu, id, out);
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
	struct target target;
	nvmlReturn_t err = gi_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (nvmlGpuInstanceInfo_t){
		.device.handle = (void *)handle_of(KIND_GPU, target.gpu, NONE, NONE, ""),
		.id = target.gi.id,
		.profileId = profile_id(target.profile.id),
		.placement = {target.gi.start, target.profile.size},
	};
	return out->device.handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}
