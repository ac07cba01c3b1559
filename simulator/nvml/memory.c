/* Device memory and its window on the bus. */
#include "internal.h"

struct memory {
	uint64_t total, reserved, used;
};

/* A MIG device has its GPU instance's share. Its processes use some of it, and its part of the load. */
static nvmlReturn_t memory_of(nvmlDevice_t device, struct memory *out)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	uint64_t load, total;
	uint32_t unified;
	FIELD(target.file, target.gpu, unified, &unified);
	if (unified)
		return NVML_ERROR_NOT_SUPPORTED;
	FIELD(target.file, target.gpu, load_memory, &load);
	FIELD(target.file, target.gpu, memory_total, &total);
	if (!target.mig) {
		out->total = total;
		FIELD(target.file, target.gpu, memory_reserved, &out->reserved);
		FIELD(target.file, target.gpu, memory_used, &out->used);
		out->used += load;
		return NVML_SUCCESS;
	}
	struct gpusim_proc proc[GPUSIM_PROCS];
	FIELD(target.file, target.gpu, proc, proc);
	*out = (struct memory){.total = target.profile.memory_mb << 20};
	if (total) /* in MiB: the product of bytes overflows */
		out->used = (load >> 20) * target.profile.memory_mb / (total >> 20) << 20;
	for (unsigned i = 0; i < GPUSIM_PROCS; i++)
		if (proc[i].used && proc[i].gi == target.gi.id)
			out->used += proc[i].memory;
	return NVML_SUCCESS;
}

static uint64_t left(uint64_t total, uint64_t taken)
{
	return taken < total ? total - taken : 0;
}

/* The first version knows no reserved memory: it counts as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	struct memory memory;
	nvmlReturn_t err = memory_of(device, &memory);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	out->total = memory.total;
	out->used = memory.used + memory.reserved;
	out->free = left(out->total, out->used);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	struct memory memory;
	nvmlReturn_t err = memory_of(device, &memory);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->total = memory.total;
	out->reserved = memory.reserved;
	out->used = memory.used;
	out->free = left(out->total, out->used + out->reserved);
	return NVML_SUCCESS;
}

/* A GPU whose memory the CPU addresses by itself has no window. */
API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t total, used;
	FIELD(target.file, target.gpu, bar1_total, &total);
	FIELD(target.file, target.gpu, bar1_used, &used);
	if (!total)
		return NVML_ERROR_NOT_SUPPORTED;
	out->bar1Total = total;
	out->bar1Used = used;
	out->bar1Free = left(total, used);
	return NVML_SUCCESS;
}
