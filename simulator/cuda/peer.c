/* Which devices reach each other's memory: those that NVML's P2P status says do, if they are of one model. */
#include "driver.h"

#define NODE 40u /* NVML_TOPOLOGY_NODE: PCIe within a NUMA node; nothing goes from one to the other */

struct reach { bool direct, through_switch; };

static struct reach links_to(const struct device *from, const struct device *to)
{
	struct reach r = {false, false};

	for (unsigned i = 0; i < from->info.nlinks && i < GPUSIM_LINKS; i++) {
		const struct gpusim_link *l = &from->info.link[i];

		if (!l->active)
			continue;
		r.direct |= l->remote_type == GPUSIM_REMOTE_GPU && l->remote_gpu == to->gpu;
		r.through_switch |= l->remote_type == GPUSIM_REMOTE_SWITCH;
	}
	return r;
}

static bool linked(const struct device *a, const struct device *b)
{
	struct reach to = links_to(a, b), back = links_to(b, a);

	return to.direct || (to.through_switch && back.through_switch);
}

static bool near(const struct device *a, const struct device *b)
{
	size_t cell = (a->gpu * GPUSIM_GPUS + b->gpu) * sizeof(uint32_t);
	uint32_t level;

	gpusim_copy(driver.file, offsetof(struct gpusim_state, topology) + cell, &level, sizeof level);
	return level <= NODE;
}

static bool can_peer(const struct device *a, const struct device *b)
{
	return a != b && !a->mig && !b->mig && a->info.pci.device_id == b->info.pci.device_id &&
	       (linked(a, b) || near(a, b));
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to)
{
	DEVICE_OR_RETURN(from);
	if (!device_at(to))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = can_peer(d, device_at(to));
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int which, CUdevice from, CUdevice to)
{
	DEVICE_OR_RETURN(from);
	if (!device_at(to) || from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || which < 1 || which > 4)
		return CUDA_ERROR_INVALID_VALUE;
	bool can = can_peer(d, device_at(to));

	/* Performance rank, access, native atomics (not over PCIe), access to arrays. */
	*value = which == 2 ? can : which == 3 ? can && linked(d, device_at(to)) : 0;
	return CUDA_SUCCESS;
}
