/* What is measured: clocks, power, temperature, fans, utilisation, memory. */
#include "internal.h"

#include <time.h>

/*
 * gpu_load is what gpusim load asks for. With a period it falls to the half and rises
 * again, along a triangle; GPUs follow each other by an eighth of the period.
 */
unsigned gpu_load(const struct gpusim_file *file, unsigned gpu)
{
	uint32_t load, period;
	FIELD(file, gpu, load, &load);
	FIELD(file, gpu, load_period_ms, &period);
	if (!load || !period)
		return load;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t at = ((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 + (uint64_t)gpu * period / 8) % period;
	uint64_t gone = at * 2 < period ? at * 2 : 2 * (period - at); /* 0 … period … 0 */
	return (unsigned)(load - load * gone / (2ull * period));
}

/*
 * loaded puts one number, which lies between idle and full as the GPU's load does, into out.
 * Both are offsets of 32-bit fields.
 */
static nvmlReturn_t loaded(nvmlDevice_t device, size_t idle, uint32_t full, unsigned *out)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if ((err = get_u32(device, idle, out)) == NVML_SUCCESS && full > *out)
		*out += (unsigned)((uint64_t)(full - *out) * gpu_load(target.file, target.gpu) / 100);
	return err;
}

/* full_load returns wanted, or where it is 0 what else a fully loaded GPU has. */
static uint32_t full_load(nvmlDevice_t device, size_t wanted, size_t otherwise)
{
	uint32_t value = 0;
	if (get_u32(device, wanted, &value) == NVML_SUCCESS && !value)
		get_u32(device, otherwise, &value);
	return value;
}

/* A GPU that uses no power has no meter. */
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	nvmlReturn_t err = get_known(device, offsetof(struct gpusim_gpu, power_mw), milliwatts);
	if (err != NVML_SUCCESS)
		return err;
	return loaded(device, offsetof(struct gpusim_gpu, power_mw),
		      full_load(device, offsetof(struct gpusim_gpu, load_power_mw),
				offsetof(struct gpusim_gpu, power_limit_mw)),
		      milliwatts);
}

GET_KNOWN(nvmlDeviceGetPowerManagementLimit, power_limit_mw)
GET_KNOWN(nvmlDeviceGetEnforcedPowerLimit, power_limit_mw)
GET_KNOWN(nvmlDeviceGetPowerManagementDefaultLimit, power_default_mw)

/* A busy GPU is in P0. */
API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *pstate)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err == NVML_SUCCESS && (err = get_u32(device, offsetof(struct gpusim_gpu, pstate), pstate)) == NVML_SUCCESS &&
	    gpu_load(target.file, target.gpu))
		*pstate = NVML_PSTATE_0;
	return err;
}

API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *pstate)
{
	return nvmlDeviceGetPerformanceState(device, pstate);
}

/* two reads two numbers that a GPU may lack, for the calls that answer with two. */
static nvmlReturn_t two(nvmlDevice_t device, size_t a, unsigned *first, size_t b, unsigned *second)
{
	if (state() && (!first || !second))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t err = get_known(device, a, first);
	return err != NVML_SUCCESS ? err : get_known(device, b, second);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
							      unsigned int *most)
{
	return two(device, offsetof(struct gpusim_gpu, power_min_mw), least,
		   offsetof(struct gpusim_gpu, power_max_mw), most);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	unsigned limit;
	nvmlReturn_t err = nvmlDeviceGetPowerManagementLimit(device, &limit);
	if (err != NVML_SUCCESS)
		return err;
	if (!mode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

/* clock reads one of the four clocks, current or highest; vGPUs know no highest, and GB10 no clock of its memory. */
static nvmlReturn_t clock_of(nvmlDevice_t device, nvmlClockType_t type, size_t field, unsigned *mhz)
{
	if ((unsigned)type >= NVML_CLOCK_COUNT)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	return get_known(device, field + (unsigned)type * sizeof(uint32_t), mhz);
}

#define CLOCK_NOW offsetof(struct gpusim_gpu, clock)
#define CLOCK_MAX offsetof(struct gpusim_gpu, clock_max)

/* A busy GPU's clocks are at their maximum, unless something holds them down. */
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	struct target target;
	uint64_t throttle;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, throttle, &throttle);
	if (gpu_load(target.file, target.gpu) && !throttle && clock_of(device, type, CLOCK_MAX, mhz) == NVML_SUCCESS)
		return NVML_SUCCESS;
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
	return id == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz)
					   : clock_of(device, type, CLOCK_MAX, mhz);
}

/* What gpusim degrade says holds the clocks down; else an idle GPU's are low for that reason. */
API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	struct target target;
	uint32_t busy, virtualization;
	uint64_t throttle;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!reasons)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, virtualization, &virtualization);
	if (virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
		return NVML_ERROR_NOT_SUPPORTED; /* they are the whole GPU's */
	FIELD(target.file, target.gpu, util_gpu, &busy);
	FIELD(target.file, target.gpu, throttle, &throttle);
	*reasons = throttle;
	if (!throttle && !busy && !gpu_load(target.file, target.gpu))
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

static nvmlReturn_t temperature(nvmlDevice_t device, unsigned *celsius)
{
	uint32_t full = full_load(device, offsetof(struct gpusim_gpu, load_temperature), offsetof(struct gpusim_gpu, temp_slowdown));
	uint32_t slowdown = full_load(device, offsetof(struct gpusim_gpu, temp_slowdown), offsetof(struct gpusim_gpu, temp_max));
	if (full == slowdown && full > 5)
		full -= 5;
	nvmlReturn_t err = get_known(device, offsetof(struct gpusim_gpu, temperature), celsius);
	return err != NVML_SUCCESS ? err : loaded(device, offsetof(struct gpusim_gpu, temperature), full, celsius);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	if (sensor != NVML_TEMPERATURE_GPU)
		return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
	return temperature(device, celsius);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!out || out->sensorType != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned celsius;
	nvmlReturn_t err = temperature(device, &celsius);
	if (err == NVML_SUCCESS)
		out->temperature = (int)celsius;
	return err;
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
	nvmlReturn_t err = temperature(device, &now);
	if (err == NVML_SUCCESS)
		err = get_u32(device, offsetof(struct gpusim_gpu, temp_slowdown), &limit);
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
	err = loaded(device, offsetof(struct gpusim_gpu, util_gpu), 100, &out->gpu);
	/* Memory is busy for part of the time that kernels run. */
	return err != NVML_SUCCESS ? err : loaded(device, offsetof(struct gpusim_gpu, util_memory), 60, &out->memory);
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
