/* Memory errors: ECC counters, remapped rows, retired pages. */
#include "internal.h"

/*
 * ecc_target also says NOT_SUPPORTED where there is no ECC, or it is off: then
 * nothing counts errors. A MIG device's are its GPU's: the state has no finer ones.
 */
static nvmlReturn_t ecc_target(nvmlDevice_t device, struct target *target)
{
	uint32_t current;
	nvmlReturn_t err = any_target(device, target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target->file, target->gpu, ecc_current, &current);
	return current ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t counters(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t since,
			     uint64_t out[GPUSIM_ECC_LOCATIONS])
{
	struct target target;
	uint64_t all[2][GPUSIM_ECC_LOCATIONS];
	nvmlReturn_t err = ecc_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if ((unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)since >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (since == NVML_VOLATILE_ECC)
		FIELD(target.file, target.gpu, ecc_volatile, all);
	else
		FIELD(target.file, target.gpu, ecc_aggregate, all);
	memcpy(out, all[type], sizeof all[type]);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	struct target target;
	uint32_t supported;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, ecc_supported, &supported);
	if (!supported)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, ecc_current, current);
	FIELD(target.file, target.gpu, ecc_pending, pending);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	nvmlEnableState_t current, pending;
	nvmlReturn_t err = nvmlDeviceGetEccMode(device, &current, &pending);
	if (err != NVML_SUCCESS)
		return err;
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
					     nvmlEccCounterType_t since, unsigned long long *total)
{
	uint64_t count[GPUSIM_ECC_LOCATIONS];
	nvmlReturn_t err = counters(device, type, since, count);
	if (err != NVML_SUCCESS)
		return err;
	if (!total)
		return NVML_ERROR_INVALID_ARGUMENT;
	*total = 0;
	for (unsigned i = 0; i < GPUSIM_ECC_LOCATIONS; i++)
		*total += count[i];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
						nvmlEccCounterType_t since, nvmlEccErrorCounts_t *out)
{
	uint64_t count[GPUSIM_ECC_LOCATIONS];
	nvmlReturn_t err = counters(device, type, since, count);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	out->l1Cache = count[NVML_MEMORY_LOCATION_L1_CACHE];
	out->l2Cache = count[NVML_MEMORY_LOCATION_L2_CACHE];
	out->deviceMemory = count[NVML_MEMORY_LOCATION_DEVICE_MEMORY];
	out->registerFile = count[NVML_MEMORY_LOCATION_REGISTER_FILE];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
						 nvmlEccCounterType_t since, nvmlMemoryLocation_t location,
						 unsigned long long *out)
{
	uint64_t count[GPUSIM_ECC_LOCATIONS];
	nvmlReturn_t err = counters(device, type, since, count);
	if (err != NVML_SUCCESS)
		return err;
	if (!out || (unsigned)location >= GPUSIM_ECC_LOCATIONS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = count[location];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
	struct target target;
	uint64_t now[2][GPUSIM_ECC_LOCATIONS], ever[2][GPUSIM_ECC_LOCATIONS];
	nvmlReturn_t err = ecc_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlEccSramErrorStatus_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	FIELD(target.file, target.gpu, ecc_volatile, now);
	FIELD(target.file, target.gpu, ecc_aggregate, ever);
	*out = (nvmlEccSramErrorStatus_t){
		.version = out->version,
		.aggregateUncSecDed = ever[1][NVML_MEMORY_LOCATION_SRAM],
		.aggregateCor = ever[0][NVML_MEMORY_LOCATION_SRAM],
		.volatileUncSecDed = now[1][NVML_MEMORY_LOCATION_SRAM],
		.volatileCor = now[0][NVML_MEMORY_LOCATION_SRAM],
		.aggregateUncBucketOther = ever[1][NVML_MEMORY_LOCATION_SRAM],
	};
	return NVML_SUCCESS;
}

/* Rows are remapped from Ampere on; before that, pages are retired. */
static nvmlReturn_t remap_target(nvmlDevice_t device, struct target *target)
{
	uint32_t supported;
	nvmlReturn_t err = gpu_target(device, target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target->file, target->gpu, remap_supported, &supported);
	return supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
					   unsigned int *pending, unsigned int *failed)
{
	struct target target;
	nvmlReturn_t err = remap_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!corrected || !uncorrected || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, remap_corrected, corrected);
	FIELD(target.file, target.gpu, remap_uncorrected, uncorrected);
	FIELD(target.file, target.gpu, remap_pending, pending);
	FIELD(target.file, target.gpu, remap_failed, failed);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *out)
{
	if (state() && !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlRemappedRowsInfo_v2_t info = {0};
	nvmlReturn_t err = nvmlDeviceGetRemappedRows(device, &info.corrActiveRemaps, &info.uncActiveRemaps,
						     &info.bPending, &info.bFailureOccurred);
	if (err == NVML_SUCCESS)
		*out = info;
	return err;
}

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
	struct target target;
	nvmlReturn_t err = remap_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, remap_max, &out->max);
	FIELD(target.file, target.gpu, remap_high, &out->high);
	FIELD(target.file, target.gpu, remap_partial, &out->partial);
	FIELD(target.file, target.gpu, remap_low, &out->low);
	FIELD(target.file, target.gpu, remap_none, &out->none);
	return NVML_SUCCESS;
}

static nvmlReturn_t retire_target(nvmlDevice_t device, struct target *target)
{
	nvmlReturn_t err = remap_target(device, target);
	if (err == NVML_SUCCESS) /* it remaps rows instead */
		return NVML_ERROR_NOT_SUPPORTED;
	return err == NVML_ERROR_NOT_SUPPORTED ? ecc_target(device, target) : err;
}

/* The state counts retired pages; which they are it makes up: one per MiB, from 1 MiB on. */
API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
					      unsigned long long *addresses, unsigned long long *timestamps)
{
	struct target target;
	nvmlReturn_t err = retire_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!count || (unsigned)cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint32_t retired;
	if (cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
		FIELD(target.file, target.gpu, retired_dbe, &retired);
	else
		FIELD(target.file, target.gpu, retired_sbe, &retired);
	unsigned room = *count;
	*count = retired;
	if (retired == 0)
		return NVML_SUCCESS;
	if (!addresses || room < retired)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < retired; i++) {
		addresses[i] = (i + 1ull) << 20;
		if (timestamps)
			timestamps[i] = 0;
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
					   unsigned long long *addresses)
{
	return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
	struct target target;
	nvmlReturn_t err = retire_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, retired_pending, pending);
	return NVML_SUCCESS;
}

struct clear {
	unsigned gpu;
	nvmlEccCounterType_t since;
};

static nvmlReturn_t clear(struct gpusim_state *next, void *argument)
{
	const struct clear *clear = argument;
	struct gpusim_gpu *gpu = &next->gpu[clear->gpu];
	if (clear->since == NVML_VOLATILE_ECC)
		memset(gpu->ecc_volatile, 0, sizeof gpu->ecc_volatile);
	else
		memset(gpu->ecc_aggregate, 0, sizeof gpu->ecc_aggregate);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t since)
{
	struct target target;
	nvmlReturn_t err = ecc_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (target.mig || (unsigned)since >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct clear argument = {target.gpu, since};
	return change(clear, &argument, target.gpu, 0);
}
