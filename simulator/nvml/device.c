/* What a GPU is: names, numbers and abilities that do not change while it works. */
#include "internal.h"

#include <stdio.h>
#include <unistd.h>

/* The plain ones: a field of the state each. */
GET_STRING(nvmlDeviceGetSerial, serial)
GET_STRING(nvmlDeviceGetBoardPartNumber, board_part)
GET_STRING(nvmlDeviceGetVbiosVersion, vbios)
GET_U32(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
GET_U32(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
GET_U32(nvmlDeviceGetMinorNumber, unsigned int, minor)
GET_U32(nvmlDeviceGetMultiGpuBoard, unsigned int, multi_gpu_board)
GET_U32(nvmlDeviceGetDisplayMode, nvmlEnableState_t, display_mode)
GET_U32(nvmlDeviceGetDisplayActive, nvmlEnableState_t, display_mode)
GET_U32(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence)
GET_U32(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)
GET_U32(nvmlDeviceGetAccountingMode, nvmlEnableState_t, accounting)
GET_KNOWN(nvmlDeviceGetMemoryBusWidth, bus_width)
GET_U32(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, virtualization)

struct compute_mode {
	unsigned gpu;
	nvmlComputeMode_t mode;
};

static nvmlReturn_t set_compute_mode(struct gpusim_state *next, void *argument)
{
	const struct compute_mode *asked = argument;
	next->gpu[asked->gpu].compute_mode = asked->mode;
	return NVML_SUCCESS;
}

/* nvml.h: for root; EXCLUSIVE_THREAD is no more; a GPU in MIG mode has none to set. */
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	struct target target;
	uint32_t mig;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, mig_current, &mig);
	if (mode >= NVML_COMPUTEMODE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	struct compute_mode argument = {target.gpu, mode};
	return change(set_compute_mode, &argument, target.gpu, 0);
}

/* A MIG device's name is its GPU's with the profile after it, as nvidia-smi prints it. */
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	char gpu[96], full[160];
	FIELD(target.file, target.gpu, name, gpu);
	gpu[sizeof gpu - 1] = '\0';
	if (target.mig)
		snprintf(full, sizeof full, "%s MIG %.*s", gpu, (int)sizeof target.ci.name, target.ci.name);
	else
		snprintf(full, sizeof full, "%s", gpu);
	return put_string(full, name, length);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	char text[80];
	if (target.mig)
		memcpy(text, target.ci.uuid, sizeof text);
	else
		FIELD(target.file, target.gpu, uuid, text);
	text[sizeof text - 1] = '\0';
	return put_string(text, uuid, length);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, cc_major, major);
	FIELD(target.file, target.gpu, cc_minor, minor);
	return NVML_SUCCESS;
}

/* The core count of a GPU that is split up has no meaning: nvml.h says not supported. */
API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	uint32_t mig;
	nvmlReturn_t err = get_u32(device, offsetof(struct gpusim_gpu, mig_current), &mig);
	if (err != NVML_SUCCESS)
		return err;
	return mig ? NVML_ERROR_NOT_SUPPORTED : get_u32(device, offsetof(struct gpusim_gpu, cores), cores);
}

API nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *id)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct gpusim_pci pci;
	FIELD(target.file, target.gpu, pci, &pci);
	*id = pci.domain << 16 | pci.bus << 8;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
	unsigned board_a, board_b, multi;
	nvmlReturn_t err = nvmlDeviceGetBoardId(a, &board_a);
	if (err == NVML_SUCCESS)
		err = nvmlDeviceGetBoardId(b, &board_b);
	if (err == NVML_SUCCESS)
		err = nvmlDeviceGetMultiGpuBoard(a, &multi);
	if (err != NVML_SUCCESS)
		return err;
	if (!same)
		return NVML_ERROR_INVALID_ARGUMENT;
	*same = multi && board_a == board_b;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!target.mig) /* nvml.h: only MIG devices have attributes */
		return NVML_ERROR_NOT_SUPPORTED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct gpusim_gi_profile *profile = &target.profile;
	unsigned whole = profile->slices ? profile->slices : 1;
	*out = (nvmlDeviceAttributes_t){
		.multiprocessorCount = profile->sm_count * target.ci.slices / whole,
		.sharedCopyEngineCount = profile->copy_engines,
		.sharedDecoderCount = profile->decoders,
		.sharedEncoderCount = profile->encoders,
		.sharedJpegCount = profile->jpegs,
		.sharedOfaCount = profile->ofas,
		.gpuInstanceSliceCount = profile->slices,
		.computeInstanceSliceCount = target.ci.slices,
		.memorySizeMB = profile->memory_mb,
	};
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	return nvmlDeviceGetAttributes_v2(device, out);
}

/* constant answers what is the same for every simulated GPU. */
static nvmlReturn_t constant(nvmlDevice_t device, unsigned value, unsigned *out)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = value;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t *type)
{
	return constant(device, NVML_BUS_TYPE_PCIE, type);
}

API nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, nvmlPowerSource_t *source)
{
	return constant(device, NVML_POWER_SOURCE_AC, source);
}

API nvmlReturn_t nvmlDeviceGetAdaptiveClockInfoStatus(nvmlDevice_t device, unsigned int *status)
{
	return constant(device, NVML_ADAPTIVE_CLOCKING_INFO_STATUS_DISABLED, status);
}

/* GSP firmware comes with the driver, and is of its version, from Turing on; a vGPU's is the host's. */
static nvmlReturn_t has_gsp(nvmlDevice_t device)
{
	uint32_t architecture, virtualization;
	nvmlReturn_t err = get_u32(device, offsetof(struct gpusim_gpu, architecture), &architecture);
	if (err == NVML_SUCCESS)
		err = get_u32(device, offsetof(struct gpusim_gpu, virtualization), &virtualization);
	if (err != NVML_SUCCESS)
		return err;
	return architecture >= NVML_DEVICE_ARCH_TURING && virtualization != NVML_GPU_VIRTUALIZATION_MODE_VGPU
		       ? NVML_SUCCESS
		       : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
	nvmlReturn_t err = has_gsp(device);
	return err != NVML_SUCCESS ? err : put_string(library_version(), out, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *standard)
{
	nvmlReturn_t err = has_gsp(device);
	if (err != NVML_SUCCESS)
		return err;
	if (!enabled || !standard)
		return NVML_ERROR_INVALID_ARGUMENT;
	*enabled = *standard = 1;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (mode->version != nvmlDeviceAddressingMode_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	FIELD(target.file, target.gpu, addressing, &mode->value);
	return NVML_SUCCESS;
}
