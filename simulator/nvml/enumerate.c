/* Which GPUs there are, and their handles by index, UUID, PCI address and serial number. */
#include "internal.h"

#include <stdio.h>
#include <strings.h>

static uint32_t lost_state(const struct gpusim_file *file, unsigned gpu)
{
	uint32_t lost;
	FIELD(file, gpu, lost, &lost);
	return lost;
}

static int counted(const struct gpusim_file *file, unsigned gpu)
{
	return gpu_permitted(gpu) && lost_state(file, gpu) != GPUSIM_LOST_GONE;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned n = 0;
	for (unsigned i = 0; i < gpu_count(file); i++)
		n += (unsigned)counted(file, i);
	*count = n;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t give(const struct gpusim_file *file, unsigned gpu, nvmlDevice_t *device)
{
	if (lost_state(file, gpu) == GPUSIM_LOST_HANDLE)
		return NVML_ERROR_GPU_IS_LOST;
	hold_gpu(gpu);
	device->handle = (void *)handle_of(KIND_GPU, gpu, NONE, NONE, "");
	return device->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < gpu_count(file); i++)
		if (counted(file, i) && index-- == 0)
			return give(file, i, device);
	return NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = 0;
	if (target.mig) {
		*index = target.ci.mig_index;
		return NVML_SUCCESS;
	}
	for (unsigned i = 0; i < target.gpu; i++)
		*index += (unsigned)counted(target.file, i);
	return NVML_SUCCESS;
}

/* by_mig_uuid finds the MIG device, if this process may use it. */
static nvmlReturn_t by_mig_uuid(const struct gpusim_file *file, const char *uuid, nvmlDevice_t *device)
{
	for (unsigned i = 0; i < gpu_count(file); i++) {
		struct gpusim_gpu gpu;
		gpusim_read_gpu(file, i, &gpu);
		for (unsigned j = 0; counted(file, i) && gpu.mig_current && j < GPUSIM_CIS; j++) {
			const struct gpusim_ci *ci = &gpu.ci[j];
			if (!ci->used || strncmp(ci->uuid, uuid, sizeof ci->uuid) != 0)
				continue;
			if (!mig_visible(gpu.minor, ci->gi, ci->id))
				return NVML_ERROR_NOT_FOUND;
			device->handle = (void *)handle_of(KIND_MIG, i, ci->gi, ci->id, ci->uuid);
			return device->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strncmp(uuid, "MIG-", 4) == 0)
		return by_mig_uuid(file, uuid, device);
	for (unsigned i = 0; i < gpu_count(file); i++) {
		char own[80];
		FIELD(file, i, uuid, own);
		if (counted(file, i) && strncmp(own, uuid, sizeof own) == 0)
			return give(file, i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	char text[64];
	if (uuid->type == NVML_UUID_TYPE_ASCII) {
		snprintf(text, sizeof text, "%.*s", NVML_DEVICE_UUID_ASCII_LEN, uuid->value.str);
		return nvmlDeviceGetHandleByUUID(text, device);
	}
	if (uuid->type != NVML_UUID_TYPE_BINARY)
		return NVML_ERROR_INVALID_ARGUMENT;
	const unsigned char *b = uuid->value.bytes;
	char digits[37];
	snprintf(digits, sizeof digits, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	/* Binary UUIDs do not tell a GPU from a MIG device. */
	snprintf(text, sizeof text, "GPU-%s", digits);
	nvmlReturn_t err = nvmlDeviceGetHandleByUUID(text, device);
	if (err != NVML_ERROR_NOT_FOUND)
		return err;
	snprintf(text, sizeof text, "MIG-%s", digits);
	return nvmlDeviceGetHandleByUUID(text, device);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!serial || !serial[0] || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		char own[32];
		FIELD(file, i, serial, own);
		if (counted(file, i) && strncmp(own, serial, sizeof own) == 0)
			return give(file, i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

/* "0000:3B:00.0", "00000000:3b:00.0" and "3b:00.0" are the same place. */
static int parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *slot, unsigned *function)
{
	int end = 0;
	*domain = *function = 0;
	if (sscanf(text, "%x:%x:%x.%x%n", domain, bus, slot, function, &end) == 4 && text[end] == '\0')
		return 1;
	*domain = 0;
	return sscanf(text, "%x:%x.%x%n", bus, slot, function, &end) == 3 && text[end] == '\0';
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	const struct gpusim_file *file = state();
	unsigned domain, bus, slot, function;
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!bus_id || !device || !parse_bus_id(bus_id, &domain, &bus, &slot, &function))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		struct gpusim_pci pci;
		FIELD(file, i, pci, &pci);
		if (counted(file, i) && pci.domain == domain && pci.bus == bus && pci.device == slot &&
		    pci.function == function)
			return give(file, i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
