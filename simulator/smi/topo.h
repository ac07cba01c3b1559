/*
 * nvidia-smi topo -m: how the GPUs lie to each other, as NVML says. The headings and the
 * legend are quotations of what NVIDIA's nvidia-smi prints, since programs parse the table.
 */
#ifndef GPUSIM_SMI_TOPO_H
#define GPUSIM_SMI_TOPO_H

#include "library.h"

/* nvlinks counts the links from a to b; those to switches reach everyone who has some. */
static unsigned nvlinks(nvmlDevice_t a, nvmlDevice_t b)
{
	nvmlPciInfo_t there, end;
	unsigned direct = 0, switched = 0, theirs = 0;
	if (nvml.nvmlDeviceGetPciInfo_v3(b, &there))
		return 0;
	for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
		nvmlEnableState_t active = NVML_FEATURE_DISABLED;
		nvmlIntNvLinkDeviceType_t type;
		if (nvml.nvmlDeviceGetNvLinkState(b, link, &active) == NVML_SUCCESS && active)
			theirs += nvml.nvmlDeviceGetNvLinkRemoteDeviceType(b, link, &type) == NVML_SUCCESS &&
				  type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
		if (nvml.nvmlDeviceGetNvLinkState(a, link, &active) || !active)
			continue;
		if (nvml.nvmlDeviceGetNvLinkRemoteDeviceType(a, link, &type) == NVML_SUCCESS &&
		    type == NVML_NVLINK_DEVICE_TYPE_SWITCH)
			switched++;
		else if (nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(a, link, &end) == NVML_SUCCESS)
			direct += strcmp(end.busId, there.busId) == 0;
	}
	return direct ? direct : switched < theirs ? switched : theirs;
}

static struct text relation(nvmlDevice_t a, nvmlDevice_t b)
{
	nvmlGpuTopologyLevel_t level;
	unsigned links = nvlinks(a, b);
	if (links)
		return say("NV%u", links);
	if (nvml.nvmlDeviceGetTopologyCommonAncestor(a, b, &level))
		return say("?");
	switch (level) {
	case NVML_TOPOLOGY_INTERNAL: return say("PSB");
	case NVML_TOPOLOGY_SINGLE: return say("PIX");
	case NVML_TOPOLOGY_MULTIPLE: return say("PXB");
	case NVML_TOPOLOGY_HOSTBRIDGE: return say("PHB");
	case NVML_TOPOLOGY_NODE: return say("NODE");
	default: return say("SYS");
	}
}

/* ranges writes a bit set as people write lists: 0-3,8 */
static struct text ranges(const unsigned long *set, unsigned words)
{
	struct text text = say("%s", "");
	const unsigned bits = 8 * sizeof *set;
	size_t n = 0;
	for (unsigned i = 0; i < words * bits && n < sizeof text.s - 16; i++) {
		if (!(set[i / bits] >> i % bits & 1))
			continue;
		unsigned last = i;
		while (last + 1 < words * bits && (set[(last + 1) / bits] >> (last + 1) % bits & 1))
			last++;
		n += (size_t)snprintf(text.s + n, sizeof text.s - n, "%s%u", n ? "," : "", i);
		if (last > i)
			n += (size_t)snprintf(text.s + n, sizeof text.s - n, "-%u", last);
		i = last;
	}
	return n ? text : say("N/A");
}

static int print_topology(const nvmlDevice_t *device, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		printf("\tGPU%u", i);
	printf("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
	for (unsigned i = 0; i < count; i++) {
		unsigned long cpus[16] = {0}, nodes[4] = {0};
		printf("GPU%u", i);
		for (unsigned j = 0; j < count; j++)
			printf("\t%s", i == j ? " X " : relation(device[i], device[j]).s);
		nvml.nvmlDeviceGetCpuAffinity(device[i], 16, cpus);
		nvml.nvmlDeviceGetMemoryAffinity(device[i], 4, nodes, NVML_AFFINITY_SCOPE_NODE);
		printf("\t%s\t%s\t\tN/A\n", ranges(cpus, 16).s, ranges(nodes, 4).s);
	}
	printf("\nLegend:\n\n"
	       "  X    = Self\n"
	       "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
	       "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
	       "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
	       "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
	       "  PIX  = Connection traversing at most a single PCIe bridge\n"
	       "  NV#  = Connection traversing a bonded set of # NVLinks\n");
	return 0;
}

#endif
