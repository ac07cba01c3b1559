/* How GPUs lie to each other and to the processors. */
#include "internal.h"

#include <limits.h>

static nvmlReturn_t pair(nvmlDevice_t a, nvmlDevice_t b, struct target *first, struct target *second)
{
	nvmlReturn_t err = gpu_target(a, first);
	return err != NVML_SUCCESS ? err : gpu_target(b, second);
}

static uint32_t level_between(const struct gpusim_file *file, unsigned a, unsigned b)
{
	uint32_t level;
	size_t cell = (a * GPUSIM_GPUS + b) * sizeof level;
	gpusim_copy(file, offsetof(struct gpusim_state, topology) + cell, &level, sizeof level);
	return level;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
	struct target first, second;
	nvmlReturn_t err = pair(a, b, &first, &second);
	if (err != NVML_SUCCESS)
		return err;
	if (!level)
		return NVML_ERROR_INVALID_ARGUMENT;
	*level = (nvmlGpuTopologyLevel_t)level_between(first.file, first.gpu, second.gpu);
	return NVML_SUCCESS;
}

/* list_gpus answers those GPUs of a bit mask that this process sees. */
static nvmlReturn_t list_gpus(const struct gpusim_file *file, uint32_t mask, unsigned *count, nvmlDevice_t *devices)
{
	nvmlDevice_t list[GPUSIM_GPUS];
	unsigned n = 0;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		if (!(mask >> i & 1) || !gpu_permitted(i) || gpu_usable(file, i) != NVML_SUCCESS)
			continue;
		list[n].handle = (void *)handle_of(KIND_GPU, i, NONE, NONE, "");
		if (!list[n++].handle)
			return NVML_ERROR_MEMORY;
	}
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (*count == 0) { /* nvml.h: a count of 0 asks how many there are */
		*count = n;
		return NVML_SUCCESS;
	}
	return put_list(count, devices, list, n, sizeof *list);
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
						  unsigned int *count, nvmlDevice_t *devices)
{
	struct target target;
	uint32_t mask = 0;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	for (unsigned i = 0; i < gpu_count(target.file); i++)
		if (i != target.gpu && level_between(target.file, target.gpu, i) == (uint32_t)level)
			mask |= 1u << i;
	return list_gpus(target.file, mask, count, devices);
}

API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
	const struct gpusim_file *file = state();
	uint32_t mask = 0;
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		uint64_t cpus[4];
		FIELD(file, i, cpu_affinity, cpus);
		if (cpu < 256 && (cpus[cpu / 64] >> cpu % 64 & 1))
			mask |= 1u << i;
	}
	return list_gpus(file, mask, count, devices);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *set,
						     nvmlAffinityScope_t scope)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!set || size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t cpus[4];
	FIELD(target.file, target.gpu, cpu_affinity, cpus);
	const unsigned bits = sizeof *set * CHAR_BIT;
	memset(set, 0, size * sizeof *set);
	for (unsigned cpu = 0; cpu < 256; cpu++) {
		if (!(cpus[cpu / 64] >> cpu % 64 & 1))
			continue;
		if (cpu / bits >= size)
			return NVML_ERROR_INSUFFICIENT_SIZE;
		set[cpu / bits] |= 1ul << cpu % bits;
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
	return nvmlDeviceGetCpuAffinityWithinScope(device, size, set, NVML_AFFINITY_SCOPE_NODE);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
					     nvmlAffinityScope_t scope)
{
	struct target target;
	int32_t node;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!set || size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, numa_node, &node);
	if (node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const unsigned bits = sizeof *set * CHAR_BIT;
	memset(set, 0, size * sizeof *set);
	if ((unsigned)node / bits >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	set[(unsigned)node / bits] |= 1ul << (unsigned)node % bits;
	return NVML_SUCCESS;
}

/* reaches: a has a working NVLink to b, or to a switch. */
static void reaches(const struct gpusim_file *file, unsigned a, unsigned b, int *direct, int *through_switch)
{
	struct gpusim_link link[GPUSIM_LINKS];
	uint32_t nlinks;
	FIELD(file, a, link, link);
	FIELD(file, a, nlinks, &nlinks);
	for (unsigned i = 0; i < nlinks && i < GPUSIM_LINKS; i++) {
		if (!link[i].active)
			continue;
		*direct |= link[i].remote_type == GPUSIM_REMOTE_GPU && link[i].remote_gpu == b;
		*through_switch |= link[i].remote_type == GPUSIM_REMOTE_SWITCH;
	}
}

int linked(const struct gpusim_file *file, unsigned a, unsigned b)
{
	int direct = 0, switch_a = 0, switch_b = 0, ignored = 0;
	reaches(file, a, b, &direct, &switch_a);
	reaches(file, b, a, &ignored, &switch_b);
	return direct || (switch_a && switch_b);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index,
					nvmlGpuP2PStatus_t *status)
{
	struct target first, second;
	uint32_t mig_a, mig_b;
	nvmlReturn_t err = pair(a, b, &first, &second);
	if (err != NVML_SUCCESS)
		return err;
	if (!status || first.gpu == second.gpu)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(first.file, first.gpu, mig_current, &mig_a);
	FIELD(second.file, second.gpu, mig_current, &mig_b);
	int nvlink = linked(first.file, first.gpu, second.gpu);
	int near = level_between(first.file, first.gpu, second.gpu) <= NVML_TOPOLOGY_NODE;
	switch (index) {
	case NVML_P2P_CAPS_INDEX_READ:
	case NVML_P2P_CAPS_INDEX_WRITE:
		*status = nvlink || near ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		break;
	case NVML_P2P_CAPS_INDEX_NVLINK:
	case NVML_P2P_CAPS_INDEX_ATOMICS: /* PCIe carries no GPU atomics */
		*status = nvlink ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
		break;
	case NVML_P2P_CAPS_INDEX_PCI:
		*status = near ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		break;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	if (mig_a || mig_b) /* MIG devices have no peers */
		*status = NVML_P2P_STATUS_GPU_NOT_SUPPORTED;
	return NVML_SUCCESS;
}
