/* NVLinks, and the fabric that NVSwitches make of them. */
#include "internal.h"

static nvmlReturn_t link_of(nvmlDevice_t device, unsigned index, struct gpusim_link *link)
{
	struct target target;
	uint32_t nlinks;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, nlinks, &nlinks);
	if (nlinks == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= nlinks || index >= GPUSIM_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	size_t at = GPU_OFFSET(target.gpu, link) + index * sizeof *link;
	gpusim_copy(target.file, at, link, sizeof *link);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int index, nvmlEnableState_t *active)
{
	struct gpusim_link link;
	nvmlReturn_t err = link_of(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!active)
		return NVML_ERROR_INVALID_ARGUMENT;
	*active = link.active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

/* active_link is for questions that a link that is down cannot answer. */
static nvmlReturn_t active_link(nvmlDevice_t device, unsigned index, struct gpusim_link *link)
{
	nvmlReturn_t err = link_of(device, index, link);
	return err == NVML_SUCCESS && !link->active ? NVML_ERROR_NOT_SUPPORTED : err;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int index, unsigned int *version)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = link.version;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int index,
					       nvmlNvLinkCapability_t capability, unsigned int *out)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || (unsigned)capability >= NVML_NVLINK_CAP_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* What links between GPUs of servers can do; those to a processor can do more. */
	*out = capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_P2P_ATOMICS ||
	       capability == NVML_NVLINK_CAP_VALID;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t *out)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (link.remote_type == GPUSIM_REMOTE_NONE)
		return NVML_ERROR_NOT_SUPPORTED;
	fill_pci(&link.remote, out);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t *out)
{
	nvmlPciInfo_t info;
	nvmlReturn_t err = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, index, &info);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(out, &info, offsetof(nvmlPciInfo_t, busId)); /* its clients' struct ends there */
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int index,
						     nvmlIntNvLinkDeviceType_t *type)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!type)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (link.remote_type) {
	case GPUSIM_REMOTE_GPU:
		*type = NVML_NVLINK_DEVICE_TYPE_GPU;
		break;
	case GPUSIM_REMOTE_SWITCH:
		*type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
		break;
	default:
		*type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int index,
						 nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!value)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (counter) {
	case NVML_NVLINK_ERROR_DL_REPLAY:
		*value = link.replay_errors;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_RECOVERY:
		*value = link.recovery_errors;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_CRC_FLIT:
		*value = link.crc_errors;
		return NVML_SUCCESS;
	case NVML_NVLINK_ERROR_DL_CRC_DATA:
	case NVML_NVLINK_ERROR_DL_ECC_DATA:
		*value = 0;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
}

struct reset {
	unsigned gpu, link;
};

static nvmlReturn_t reset(struct gpusim_state *next, void *argument)
{
	const struct reset *reset = argument;
	struct gpusim_link *link = &next->gpu[reset->gpu].link[reset->link];
	link->crc_errors = link->replay_errors = link->recovery_errors = 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned int index)
{
	struct target target;
	struct gpusim_link link;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err == NVML_SUCCESS)
		err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	struct reset argument = {target.gpu, index};
	return change(reset, &argument, target.gpu, 0);
}

/* Nothing travels over simulated links, so nothing is counted. */
API nvmlReturn_t nvmlDeviceGetNvLinkUtilizationCounter(nvmlDevice_t device, unsigned int index, unsigned int counter,
						       unsigned long long *received, unsigned long long *sent)
{
	struct gpusim_link link;
	nvmlReturn_t err = active_link(device, index, &link);
	if (err != NVML_SUCCESS)
		return err;
	if (!received || !sent || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*received = *sent = 0;
	return NVML_SUCCESS;
}

struct fabric {
	uint32_t state, status, clique, bad, wrong;
	char cluster[16];
};

static nvmlReturn_t fabric_of(nvmlDevice_t device, struct fabric *out)
{
	struct target target;
	uint32_t supported;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, fabric_supported, &supported);
	if (!supported)
		return NVML_ERROR_NOT_SUPPORTED;
	FIELD(target.file, target.gpu, fabric_state, &out->state);
	FIELD(target.file, target.gpu, fabric_status, &out->status);
	FIELD(target.file, target.gpu, fabric_bad, &out->bad);
	FIELD(target.file, target.gpu, fabric_wrong, &out->wrong);
	FIELD(target.file, target.gpu, fabric_clique, &out->clique);
	FIELD(target.file, target.gpu, fabric_cluster, out->cluster);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
	struct fabric fabric;
	nvmlReturn_t err = fabric_of(device, &fabric);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memcpy(out->clusterUuid, fabric.cluster, sizeof out->clusterUuid);
	out->status = (nvmlReturn_t)fabric.status;
	out->cliqueId = fabric.clique;
	out->state = (nvmlGpuFabricState_t)fabric.state;
	return NVML_SUCCESS;
}

/* Each part of the mask says "yes" or "no": 0 would be "not supported". */
static unsigned health_of(const struct fabric *fabric)
{
	const unsigned shift[] = {
		NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
		NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
		NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
		NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
	};
	unsigned configuration = fabric->wrong ? fabric->wrong : NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE;
	unsigned mask = configuration << NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION;
	for (unsigned i = 0; i < sizeof shift / sizeof *shift; i++)
		mask |= (fabric->bad >> i & 1 ? NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE
					      : NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE) << shift[i];
	return mask;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
	struct fabric fabric;
	nvmlReturn_t err = fabric_of(device, &fabric);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlGpuFabricInfo_v2 && out->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	/* Version 3 is version 2 with one more member at the end. */
	memcpy(out->clusterUuid, fabric.cluster, sizeof out->clusterUuid);
	out->status = (nvmlReturn_t)fabric.status;
	out->cliqueId = fabric.clique;
	out->state = (nvmlGpuFabricState_t)fabric.state;
	out->healthMask = health_of(&fabric);
	if (out->version == nvmlGpuFabricInfo_v3)
		out->healthSummary = fabric.wrong || fabric.bad & GPUSIM_FABRIC_ROUTE ? NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY :
			fabric.bad ? NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY : NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
	return NVML_SUCCESS;
}
