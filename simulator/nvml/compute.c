/* Compute instances: their profiles, what is left of a GPU instance, and which there are. */
#include "internal.h"

#include <stdio.h>

/* Which parts of a GPU instance may become a compute instance: those that nvidia-smi mig -lcip lists. */
unsigned ci_slices(const struct gpusim_gi_profile *profile, unsigned ci_profile)
{
	static const unsigned char slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {
		[NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
		[NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
		[NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7, [NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE] = 8,
		[NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE] = 6,
	};
	if (ci_profile >= sizeof slices)
		return 0;
	unsigned n = slices[ci_profile];
	/* Three of four slices is no profile. */
	return n <= profile->slices && !(n == 3 && profile->slices == 4) ? n : 0;
}

unsigned ci_slices_left(const struct gpusim_gpu *gpu, unsigned gi, const struct gpusim_gi_profile *profile)
{
	unsigned taken = 0;
	for (unsigned i = 0; i < GPUSIM_CIS; i++)
		if (gpu->ci[i].used && gpu->ci[i].gi == gi)
			taken += gpu->ci[i].slices;
	return profile->slices > taken ? profile->slices - taken : 0;
}

static void fill_v3(const struct gpusim_gi_profile *profile, unsigned ci_profile,
		    nvmlComputeInstanceProfileInfo_v3_t *out)
{
	unsigned n = ci_slices(profile, ci_profile);
	*out = (nvmlComputeInstanceProfileInfo_v3_t){
		.version = nvmlComputeInstanceProfileInfo_v3,
		.id = ci_profile, /* of compute instances, the constant is the id */
		.sliceCount = n,
		.instanceCount = profile->slices / n,
		.multiprocessorCount = profile->sm_count * n / profile->slices,
		.sharedCopyEngineCount = profile->copy_engines,
		.sharedDecoderCount = profile->decoders,
		.sharedEncoderCount = profile->encoders,
		.sharedJpegCount = profile->jpegs,
		.sharedOfaCount = profile->ofas,
	};
	if (n == profile->slices)
		snprintf(out->name, sizeof out->name, "MIG %.*s", (int)sizeof profile->name, profile->name);
	else
		snprintf(out->name, sizeof out->name, "MIG %uc.%.*s", n, (int)sizeof profile->name, profile->name);
}

/* The members from id to sharedOfaCount are alike in every version. */
#define COMMON sizeof(nvmlComputeInstanceProfileInfo_t)
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v2_t, name) ==
		       offsetof(nvmlComputeInstanceProfileInfo_v2_t, id) + COMMON, "common members");
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, name) ==
		       offsetof(nvmlComputeInstanceProfileInfo_v2_t, name), "common members");

static nvmlReturn_t asked(nvmlGpuInstance_t instance, unsigned ci_profile, unsigned engine, const void *out,
			  nvmlComputeInstanceProfileInfo_v3_t *info)
{
	struct target target;
	nvmlReturn_t err = gi_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || ci_profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (ci_slices(&target.profile, ci_profile) == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	fill_v3(&target.profile, ci_profile, info);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
							      unsigned int engine,
							      nvmlComputeInstanceProfileInfo_t *out)
{
	nvmlComputeInstanceProfileInfo_v3_t info;
	nvmlReturn_t err = asked(instance, profile, engine, out, &info);
	if (err == NVML_SUCCESS)
		memcpy(out, &info.id, COMMON);
	return err;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
							       unsigned int engine,
							       nvmlComputeInstanceProfileInfo_v2_t *out)
{
	nvmlComputeInstanceProfileInfo_v3_t info;
	nvmlReturn_t err = asked(instance, profile, engine, out, &info);
	if (err != NVML_SUCCESS)
		return err;
	if (out->version == nvmlComputeInstanceProfileInfo_v3) {
		memcpy(out, &info, sizeof info);
		return NVML_SUCCESS;
	}
	if (out->version != nvmlComputeInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memcpy(&out->id, &info.id, COMMON);
	memcpy(out->name, info.name, sizeof out->name);
	return NVML_SUCCESS;
}

/* left reads the GPU and how many slices the instance has left. */
static nvmlReturn_t left(nvmlGpuInstance_t instance, unsigned ci_profile, struct target *target, unsigned *slices)
{
	struct gpusim_gpu gpu;
	nvmlReturn_t err = gi_target(instance, target);
	if (err != NVML_SUCCESS)
		return err;
	if (ci_profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (ci_slices(&target->profile, ci_profile) == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	gpusim_read_gpu(target->file, target->gpu, &gpu);
	*slices = ci_slices_left(&gpu, target->gi.id, &target->profile);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile,
								    unsigned int *count)
{
	struct target target;
	unsigned slices;
	nvmlReturn_t err = left(instance, profile, &target, &slices);
	if (err != NVML_SUCCESS)
		return err;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = slices / ci_slices(&target.profile, profile);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile,
								     nvmlComputeInstancePlacement_t *out,
								     unsigned int *count)
{
	struct target target;
	unsigned slices;
	nvmlReturn_t err = left(instance, profile, &target, &slices);
	if (err != NVML_SUCCESS)
		return err;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned size = ci_slices(&target.profile, profile);
	*count = 0;
	for (unsigned start = 0; start + size <= target.profile.slices; start += size, ++*count)
		if (out)
			out[*count] = (nvmlComputeInstancePlacement_t){start, size};
	return NVML_SUCCESS;
}

nvmlReturn_t give_ci(unsigned gpu, unsigned gi, unsigned ci, nvmlComputeInstance_t *out)
{
	out->handle = (void *)handle_of(KIND_CI, gpu, gi, ci, "");
	return out->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
						    nvmlComputeInstance_t *out, unsigned int *count)
{
	struct target target;
	struct gpusim_ci ci[GPUSIM_CIS];
	unsigned slices;
	nvmlReturn_t err = left(instance, profile, &target, &slices);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, ci, ci);
	*count = 0;
	for (unsigned i = 0; i < GPUSIM_CIS && err == NVML_SUCCESS; i++)
		if (ci[i].used && ci[i].gi == target.gi.id && ci[i].profile == profile)
			err = give_ci(target.gpu, ci[i].gi, ci[i].id, &out[(*count)++]);
	return err;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
						       nvmlComputeInstance_t *out)
{
	struct target target;
	struct gpusim_ci ci[GPUSIM_CIS];
	nvmlReturn_t err = gi_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, ci, ci);
	for (unsigned i = 0; i < GPUSIM_CIS; i++)
		if (ci[i].used && ci[i].gi == target.gi.id && ci[i].id == id)
			return give_ci(target.gpu, target.gi.id, id, out);
	return NVML_ERROR_NOT_FOUND;
}

/* start_of: the compute instances of a GPU instance lie one after another, in the order of the state. */
static unsigned start_of(const struct target *target)
{
	struct gpusim_ci ci[GPUSIM_CIS];
	unsigned start = 0;
	FIELD(target->file, target->gpu, ci, ci);
	for (unsigned i = 0; i < GPUSIM_CIS; i++) {
		if (!ci[i].used || ci[i].gi != target->gi.id)
			continue;
		if (ci[i].id == target->ci.id)
			break;
		start += ci[i].slices;
	}
	return start;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
	struct target target;
	nvmlReturn_t err = ci_target(instance, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (nvmlComputeInstanceInfo_t){
		.device.handle = (void *)handle_of(KIND_GPU, target.gpu, NONE, NONE, ""),
		.id = target.ci.id,
		.profileId = target.ci.profile,
		.placement = {start_of(&target), target.ci.slices},
	};
	return out->device.handle ? give_gi(target.gpu, target.gi.id, &out->gpuInstance) : NVML_ERROR_MEMORY;
}

/* The first version ended before the placement. */
API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
	nvmlComputeInstanceInfo_t info;
	nvmlReturn_t err = nvmlComputeInstanceGetInfo_v2(instance, &info);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(out, &info, offsetof(nvmlComputeInstanceInfo_t, placement));
	return NVML_SUCCESS;
}
