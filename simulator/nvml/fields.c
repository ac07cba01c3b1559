/* nvmlDeviceGetFieldValues: many numbers in one call, each with its own error. */
#include "internal.h"

#include <time.h>

struct answer {
	nvmlReturn_t err;
	unsigned long long value;
	int wide; /* 64 bits, else an unsigned int */
};

static struct answer narrow(nvmlReturn_t err, unsigned value)
{
	return (struct answer){err, value, 0};
}

static struct answer wide(nvmlReturn_t err, unsigned long long value)
{
	return (struct answer){err, value, 1};
}

static const struct answer unsupported = {NVML_ERROR_NOT_SUPPORTED, 0, 0};

/*
 * The ECC fields of one kind are two runs: totals (3 to 6), then locations in the
 * order of this table, corrected and uncorrected alternating, but for the last,
 * CBU, which has no corrected counter.
 */
static struct answer ecc_field(nvmlDevice_t device, unsigned field)
{
	unsigned long long value = 0;
	if (field <= NVML_FI_DEV_ECC_DBE_AGG_TOTAL) {
		unsigned at = field - NVML_FI_DEV_ECC_SBE_VOL_TOTAL;
		nvmlReturn_t err = nvmlDeviceGetTotalEccErrors(device, at & 1, at >> 1, &value);
		return wide(err, value);
	}
	static const unsigned char place[] = {
		NVML_MEMORY_LOCATION_L1_CACHE,      NVML_MEMORY_LOCATION_L2_CACHE,
		NVML_MEMORY_LOCATION_DEVICE_MEMORY, NVML_MEMORY_LOCATION_REGISTER_FILE,
		NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
	};
	unsigned aggregate = field >= NVML_FI_DEV_ECC_SBE_AGG_L1;
	unsigned at = field - (aggregate ? NVML_FI_DEV_ECC_SBE_AGG_L1 : NVML_FI_DEV_ECC_SBE_VOL_L1);
	unsigned location = at / 2 < sizeof place ? place[at / 2] : NVML_MEMORY_LOCATION_CBU;
	unsigned type = at / 2 < sizeof place ? at & 1 : NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
	nvmlReturn_t err = nvmlDeviceGetMemoryErrorCounter(device, type, aggregate, location, &value);
	return wide(err, value);
}

static struct answer retired_field(nvmlDevice_t device, unsigned field)
{
	struct target target;
	unsigned pages = 0;
	nvmlEnableState_t pending;
	nvmlReturn_t err = nvmlDeviceGetRetiredPagesPendingStatus(device, &pending);
	if (err != NVML_SUCCESS || gpu_target(device, &target) != NVML_SUCCESS)
		return narrow(err, 0);
	switch (field) {
	case NVML_FI_DEV_RETIRED_SBE:
		FIELD(target.file, target.gpu, retired_sbe, &pages);
		return narrow(NVML_SUCCESS, pages);
	case NVML_FI_DEV_RETIRED_DBE:
		FIELD(target.file, target.gpu, retired_dbe, &pages);
		return narrow(NVML_SUCCESS, pages);
	default:
		return narrow(NVML_SUCCESS, pending);
	}
}

static struct answer remap_field(nvmlDevice_t device, unsigned field)
{
	unsigned value[4] = {0};
	nvmlReturn_t err = nvmlDeviceGetRemappedRows(device, &value[0], &value[1], &value[2], &value[3]);
	return narrow(err, value[field - NVML_FI_DEV_REMAPPED_COR]);
}

/* The NVLink fields with the link in their name: runs L0 to L5 with a total, and L6 to L11 further on. */
struct run {
	unsigned first, total, second; /* of L0, of all links (0: none), of L6 */
	size_t offset;
	int wide;
};

static const struct run runs[] = {
	{NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
	 NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6, offsetof(struct gpusim_link, crc_errors), 1},
	{NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
	 NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6, offsetof(struct gpusim_link, replay_errors), 1},
	{NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
	 NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6, offsetof(struct gpusim_link, recovery_errors), 1},
	{NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, 0, NVML_FI_DEV_NVLINK_SPEED_MBPS_L6,
	 offsetof(struct gpusim_link, speed_mbps), 0},
};

static unsigned long long link_number(const struct gpusim_link *link, const struct run *run)
{
	const char *at = (const char *)link + run->offset;
	uint32_t narrow_value;
	uint64_t wide_value;
	if (run->wide) {
		memcpy(&wide_value, at, sizeof wide_value);
		return wide_value;
	}
	memcpy(&narrow_value, at, sizeof narrow_value);
	return narrow_value;
}

/* run_field answers a field of a run; *known says whether it is one. */
static struct answer run_field(const struct gpusim_link *link, unsigned nlinks, unsigned field, int *known)
{
	*known = 1;
	for (unsigned i = 0; i < sizeof runs / sizeof *runs; i++) {
		const struct run *run = &runs[i];
		unsigned index;
		if (run->total && field == run->total) {
			unsigned long long sum = 0;
			for (unsigned n = 0; n < nlinks; n++)
				sum += link_number(&link[n], run);
			return wide(NVML_SUCCESS, sum);
		}
		if (field >= run->first && field < run->first + 6)
			index = field - run->first;
		else if (field >= run->second && field < run->second + 6)
			index = 6 + field - run->second;
		else
			continue;
		if (index >= nlinks)
			return unsupported;
		return (struct answer){NVML_SUCCESS, link_number(&link[index], run), run->wide};
	}
	*known = 0;
	return unsupported;
}

/* link_field: those that name the link in scopeId, and those about all links. */
static struct answer link_field(nvmlDevice_t device, unsigned field, unsigned scope)
{
	struct target target;
	struct gpusim_link link[GPUSIM_LINKS];
	uint32_t nlinks, count = 0;
	int known;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return narrow(err, 0);
	FIELD(target.file, target.gpu, link, link);
	FIELD(target.file, target.gpu, nlinks, &nlinks);
	nlinks = nlinks < GPUSIM_LINKS ? nlinks : GPUSIM_LINKS;
	if (field == NVML_FI_DEV_NVLINK_LINK_COUNT)
		return narrow(NVML_SUCCESS, nlinks);
	if (nlinks == 0)
		return unsupported;
	struct answer answer = run_field(link, nlinks, field, &known);
	if (known)
		return answer;
	if (field == NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT) {
		for (unsigned i = 0; i < nlinks; i++)
			count += link[i].active && link[i].remote_type == GPUSIM_REMOTE_SWITCH;
		return narrow(NVML_SUCCESS, count);
	}
	if (field == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
		return narrow(NVML_SUCCESS, link[0].speed_mbps);
	if (scope >= nlinks)
		return narrow(NVML_ERROR_INVALID_ARGUMENT, 0);
	switch (field) {
	case NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID:
		return link[scope].remote_type == GPUSIM_REMOTE_NONE ? unsupported
								      : narrow(NVML_SUCCESS, link[scope].remote_link);
	case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY:
		return wide(NVML_SUCCESS, link[scope].replay_errors);
	case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY:
		return wide(NVML_SUCCESS, link[scope].recovery_errors);
	case NVML_FI_DEV_NVLINK_ERROR_DL_CRC:
		return wide(NVML_SUCCESS, link[scope].crc_errors);
	case NVML_FI_DEV_NVLINK_GET_SPEED:
		return narrow(NVML_SUCCESS, link[scope].speed_mbps);
	case NVML_FI_DEV_NVLINK_GET_STATE:
		return narrow(NVML_SUCCESS, link[scope].active ? NVML_NVLINK_STATE_ACTIVE : NVML_NVLINK_STATE_INACTIVE);
	case NVML_FI_DEV_NVLINK_GET_VERSION:
		return narrow(NVML_SUCCESS, link[scope].version);
	default:
		return unsupported;
	}
}

/* c2c_field: the links to the CPU of the module, which all work. */
static struct answer c2c_field(nvmlDevice_t device, unsigned field, unsigned scope)
{
	uint32_t links = 0;
	nvmlReturn_t err = get_known(device, offsetof(struct gpusim_gpu, c2c_links), &links);
	if (err != NVML_SUCCESS || field == NVML_FI_DEV_C2C_LINK_COUNT)
		return narrow(err, links);
	return scope < links ? narrow(NVML_SUCCESS, 1) : narrow(NVML_ERROR_INVALID_ARGUMENT, 0);
}

/* Fields that are one 32-bit number of the state. */
static const struct plain {
	unsigned field;
	size_t offset;
} plain[] = {
	{NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, offsetof(struct gpusim_gpu, recovery_action)},
	{NVML_FI_DEV_ECC_CURRENT, offsetof(struct gpusim_gpu, ecc_current)},
	{NVML_FI_DEV_ECC_PENDING, offsetof(struct gpusim_gpu, ecc_pending)},
}, limits[] = { /* which a GPU may lack */
	{NVML_FI_DEV_POWER_MIN_LIMIT, offsetof(struct gpusim_gpu, power_min_mw)},
	{NVML_FI_DEV_POWER_MAX_LIMIT, offsetof(struct gpusim_gpu, power_max_mw)},
	{NVML_FI_DEV_POWER_DEFAULT_LIMIT, offsetof(struct gpusim_gpu, power_default_mw)},
	{NVML_FI_DEV_POWER_CURRENT_LIMIT, offsetof(struct gpusim_gpu, power_limit_mw)},
	{NVML_FI_DEV_POWER_REQUESTED_LIMIT, offsetof(struct gpusim_gpu, power_limit_mw)},
};

static struct answer answer_field(nvmlDevice_t device, unsigned field, unsigned scope)
{
	if (field == 0 || field >= NVML_FI_MAX)
		return narrow(NVML_ERROR_INVALID_ARGUMENT, 0);
	nvmlGpuVirtualizationMode_t mode;
	if (field == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION &&
	    nvmlDeviceGetVirtualizationMode(device, &mode) == NVML_SUCCESS && mode == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
		return unsupported; /* the host's driver recovers it */
	for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++) {
		unsigned value = 0;
		if (plain[i].field == field) {
			nvmlReturn_t err = get_u32(device, plain[i].offset, &value);
			return narrow(err, value);
		}
	}
	for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
		unsigned value = 0;
		if (limits[i].field == field) {
			nvmlReturn_t err = get_known(device, limits[i].offset, &value);
			return narrow(err, value);
		}
	}
	if (field >= NVML_FI_DEV_ECC_SBE_VOL_TOTAL && field <= NVML_FI_DEV_ECC_DBE_AGG_CBU)
		return ecc_field(device, field);
	if (field >= NVML_FI_DEV_RETIRED_SBE && field <= NVML_FI_DEV_RETIRED_PENDING)
		return retired_field(device, field);
	if (field >= NVML_FI_DEV_REMAPPED_COR && field <= NVML_FI_DEV_REMAPPED_FAILURE)
		return remap_field(device, field);
	if (field == NVML_FI_DEV_C2C_LINK_COUNT || field == NVML_FI_DEV_C2C_LINK_GET_STATUS)
		return c2c_field(device, field, scope);
	if (field == NVML_FI_DEV_POWER_AVERAGE || field == NVML_FI_DEV_POWER_INSTANT) {
		unsigned value = 0;
		nvmlReturn_t err = nvmlDeviceGetPowerUsage(device, &value);
		return narrow(err, value);
	}
	if (field == NVML_FI_DEV_PCIE_REPLAY_COUNTER) {
		unsigned value = 0;
		nvmlReturn_t err = nvmlDeviceGetPcieReplayCounter(device, &value);
		return narrow(err, value);
	}
	return link_field(device, field, scope);
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct target target;
	struct timespec now;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!values || count < 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		nvmlFieldValue_t *value = &values[i];
		struct answer answer = answer_field(device, value->fieldId, value->scopeId);
		value->timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
		value->latencyUsec = 0;
		value->valueType = answer.wide ? NVML_VALUE_TYPE_UNSIGNED_LONG_LONG : NVML_VALUE_TYPE_UNSIGNED_INT;
		value->nvmlReturn = answer.err;
		memset(&value->value, 0, sizeof value->value);
		if (answer.wide)
			value->value.ullVal = answer.value;
		else
			value->value.uiVal = (unsigned)answer.value;
	}
	return NVML_SUCCESS;
}
