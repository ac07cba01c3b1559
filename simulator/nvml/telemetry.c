/* What is measured: clocks, power, temperature, fans, utilisation, memory. */
#include "internal.h"

GET_U32(nvmlDeviceGetPowerUsage, unsigned int, power_mw)
GET_U32(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit_mw)
GET_U32(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_limit_mw)
GET_U32(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_default_mw)
GET_U32(nvmlDeviceGetPerformanceState, nvmlPstates_t, pstate)
GET_U32(nvmlDeviceGetPowerState, nvmlPstates_t, pstate)

/* two reads two fields of one GPU for the calls that answer with two numbers. */
static nvmlReturn_t two(nvmlDevice_t device, size_t a, unsigned *first, size_t b, unsigned *second)
{
	if (state() && (!first || !second))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t err = get_u32(device, a, first);
	return err != NVML_SUCCESS ? err : get_u32(device, b, second);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
							      unsigned int *most)
{
	return two(device, offsetof(struct gpusim_gpu, power_min_mw), least,
		   offsetof(struct gpusim_gpu, power_max_mw), most);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

/* clock reads one of the four clocks, current or highest. */
static nvmlReturn_t clock_of(nvmlDevice_t device, nvmlClockType_t type, size_t field, unsigned *mhz)
{
	if ((unsigned)type >= NVML_CLOCK_COUNT)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	return get_u32(device, field + (unsigned)type * sizeof(uint32_t), mhz);
}

#define CLOCK_NOW offsetof(struct gpusim_gpu, clock)
#define CLOCK_MAX offsetof(struct gpusim_gpu, clock_max)

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(device, type, CLOCK_NOW, mhz);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(device, type, CLOCK_MAX, mhz);
}

API nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(device, type, CLOCK_MAX, mhz);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(device, type, CLOCK_MAX, mhz);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(device, type, CLOCK_MAX, mhz);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
	if ((unsigned)id >= NVML_CLOCK_ID_COUNT)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	return clock_of(device, type, id == NVML_CLOCK_ID_CURRENT ? CLOCK_NOW : CLOCK_MAX, mhz);
}

/* What gpusim degrade says holds the clocks down; else an idle GPU's are low for that reason. */
API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	struct target target;
	uint32_t busy;
	uint64_t throttle;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!reasons)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, util_gpu, &busy);
	FIELD(target.file, target.gpu, throttle, &throttle);
	*reasons = throttle;
	if (!throttle && !busy)
		*reasons = nvmlClocksEventReasonGpuIdle;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	nvmlReturn_t err = nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
	if (err == NVML_SUCCESS)
		*reasons = nvmlClocksEventReasonAll;
	return err;
}

API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	if (sensor != NVML_TEMPERATURE_GPU)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	return get_u32(device, offsetof(struct gpusim_gpu, temperature), celsius);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!out || out->sensorType != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return get_u32(device, offsetof(struct gpusim_gpu, temperature), &out->temperature);
}

/* A threshold of 0 in the state is one that the GPU does not have. */
API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
						   unsigned int *celsius)
{
	size_t offset;
	switch (type) {
	case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
		offset = offsetof(struct gpusim_gpu, temp_shutdown);
		break;
	case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
		offset = offsetof(struct gpusim_gpu, temp_slowdown);
		break;
	case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
		offset = offsetof(struct gpusim_gpu, temp_max);
		break;
	default:
		if (!state())
			return NVML_ERROR_UNINITIALIZED;
		return (unsigned)type < NVML_TEMPERATURE_THRESHOLD_COUNT ? NVML_ERROR_NOT_SUPPORTED
									 : NVML_ERROR_INVALID_ARGUMENT;
	}
	nvmlReturn_t err = get_u32(device, offset, celsius);
	return err == NVML_SUCCESS && *celsius == 0 ? NVML_ERROR_NOT_SUPPORTED : err;
}

API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
	unsigned now, limit;
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlMarginTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t err = two(device, offsetof(struct gpusim_gpu, temperature), &now,
			       offsetof(struct gpusim_gpu, temp_slowdown), &limit);
	if (err == NVML_SUCCESS)
		out->marginTemperature = (int)limit - (int)now;
	return err;
}

/* Cards for servers have no fan of their own. */
API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
	nvmlReturn_t err = get_u32(device, offsetof(struct gpusim_gpu, fan), percent);
	return err == NVML_SUCCESS && *percent == NONE ? NVML_ERROR_NOT_SUPPORTED : err;
}

API nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
	nvmlReturn_t err = nvmlDeviceGetFanSpeed(device, percent);
	return err == NVML_SUCCESS && fan > 0 ? NVML_ERROR_INVALID_ARGUMENT : err;
}

API nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count)
{
	nvmlReturn_t err = get_u32(device, offsetof(struct gpusim_gpu, fan), count);
	if (err == NVML_SUCCESS)
		*count = *count == NONE ? 0 : 1;
	return err;
}

/* whole answers NOT_SUPPORTED for a GPU in MIG mode: its engines have no common load. */
static nvmlReturn_t whole(nvmlDevice_t device)
{
	uint32_t mig;
	nvmlReturn_t err = get_u32(device, offsetof(struct gpusim_gpu, mig_current), &mig);
	return err == NVML_SUCCESS && mig ? NVML_ERROR_NOT_SUPPORTED : err;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	nvmlReturn_t err = whole(device);
	if (err != NVML_SUCCESS)
		return err;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	return two(device, offsetof(struct gpusim_gpu, util_gpu), &out->gpu,
		   offsetof(struct gpusim_gpu, util_memory), &out->memory);
}

static nvmlReturn_t engine(nvmlDevice_t device, size_t field, unsigned *percent, unsigned *period_us)
{
	nvmlReturn_t err = whole(device);
	if (err != NVML_SUCCESS)
		return err;
	if (!percent || !period_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	*period_us = 167000; /* what a T4 answers */
	return get_u32(device, field, percent);
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us)
{
	return engine(device, offsetof(struct gpusim_gpu, util_enc), percent, period_us);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us)
{
	return engine(device, offsetof(struct gpusim_gpu, util_dec), percent, period_us);
}
