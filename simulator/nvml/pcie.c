/* Where a GPU sits on the PCI bus, and its link to it. */
#include "internal.h"

#include <stdio.h>

GET_KNOWN(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max)
GET_KNOWN(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_gen_max)
GET_KNOWN(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)

/* what a link does now, which may be less than it was (gpusim degrade) */
static nvmlReturn_t link_now(nvmlDevice_t device, size_t field, size_t limit, unsigned *value)
{
	unsigned most;
	nvmlReturn_t err = get_known(device, field, value);
	if (err == NVML_SUCCESS)
		err = get_u32(device, limit, &most);
	if (err == NVML_SUCCESS && most && most < *value)
		*value = most;
	return err;
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *value)
{
	return link_now(device, offsetof(struct gpusim_gpu, pcie_gen), offsetof(struct gpusim_gpu, pcie_gen_limit), value);
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *value)
{
	return link_now(device, offsetof(struct gpusim_gpu, pcie_width), offsetof(struct gpusim_gpu, pcie_width_limit),
			value);
}

void fill_pci(const struct gpusim_pci *pci, nvmlPciInfo_t *out)
{
	memset(out, 0, sizeof *out);
	out->domain = pci->domain;
	out->bus = pci->bus;
	out->device = pci->device;
	out->pciDeviceId = pci->device_id;
	out->pciSubSystemId = pci->subsystem_id;
	snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, pci->function);
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.%X", pci->domain & 0xffff, pci->bus & 0xff,
		 pci->device & 0xff, pci->function & 0xf);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct gpusim_pci pci;
	FIELD(target.file, target.gpu, pci, &pci);
	fill_pci(&pci, out);
	return NVML_SUCCESS;
}

/*
 * Versions 1 and 2 of the struct ended before busId; in its place version 1's
 * clients have nothing at all, version 2's four reserved words.
 */
static nvmlReturn_t legacy_pci(nvmlDevice_t device, void *out, size_t size)
{
	nvmlPciInfo_t info;
	nvmlReturn_t err = nvmlDeviceGetPciInfo_v3(device, &info);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(info.busId, 0, sizeof info.busId);
	memcpy(out, &info, size);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out)
{
	return legacy_pci(device, out, offsetof(nvmlPciInfo_t, busId) + 4 * sizeof(unsigned));
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out)
{
	return legacy_pci(device, out, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *out)
{
	nvmlPciInfo_t info;
	nvmlReturn_t err = nvmlDeviceGetPciInfo_v3(device, &info);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlPciInfoExt_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->domain = info.domain;
	out->bus = info.bus;
	out->device = info.device;
	out->pciDeviceId = info.pciDeviceId;
	out->pciSubSystemId = info.pciSubSystemId;
	out->baseClass = 0x03; /* display controller, */
	out->subClass = 0x02;  /* 3D: a GPU without a monitor */
	memcpy(out->busId, info.busId, sizeof out->busId);
	return NVML_SUCCESS;
}

/* megabits per second of one lane, by generation */
static const unsigned lane_speed[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
#define GENERATIONS (sizeof lane_speed / sizeof *lane_speed)

API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed)
{
	unsigned generation;
	nvmlReturn_t err = nvmlDeviceGetCurrPcieLinkGeneration(device, &generation);
	if (err != NVML_SUCCESS)
		return err;
	if (!speed)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (generation == 0 || generation >= GENERATIONS)
		return NVML_ERROR_NOT_SUPPORTED;
	*speed = lane_speed[generation];
	return NVML_SUCCESS;
}

/* The constants NVML_PCIE_LINK_MAX_SPEED_… count as the generations do. */
API nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *speed)
{
	return nvmlDeviceGetMaxPcieLinkGeneration(device, speed);
}

/* A simulated bus carries nothing and never has to repeat it. */
static nvmlReturn_t zero(nvmlDevice_t device, unsigned *value)
{
	nvmlReturn_t err = nvmlDeviceGetMaxPcieLinkWidth(device, value);
	if (err == NVML_SUCCESS)
		*value = 0;
	return err;
}

API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value)
{
	return zero(device, value);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
	return (unsigned)counter < NVML_PCIE_UTIL_COUNT ? zero(device, value) : NVML_ERROR_INVALID_ARGUMENT;
}
