/* nvidia-smi --query-gpu=…: one column each. */
#ifndef GPUSIM_SMI_QUERY_H
#define GPUSIM_SMI_QUERY_H

#include "library.h"

static struct text driver_version(void)
{
	struct text text;
	nvmlReturn_t err = nvml.nvmlSystemGetDriverVersion(text.s, sizeof text.s);
	return err ? missing(err) : text;
}

/* A column reads what it names; arg tells apart those that share a function. */
struct column {
	const char *name, *alias, *unit;
	struct text (*read)(nvmlDevice_t device, int arg);
	int arg;
};

enum { INDEX, MINOR, PERSISTENCE, DISPLAY, COMPUTE_MODE, PSTATE, FAN, TEMPERATURE, GEN, GEN_MAX, WIDTH, WIDTH_MAX, POWER, LIMIT };

static struct text read_number(nvmlDevice_t device, int arg)
{
	static const char *const mode[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
	unsigned value = 0;
	nvmlReturn_t err = NVML_ERROR_NOT_SUPPORTED;
	switch (arg) {
	case INDEX: err = nvml.nvmlDeviceGetIndex(device, &value); break;
	case MINOR: err = nvml.nvmlDeviceGetMinorNumber(device, &value); break;
	case PERSISTENCE: err = nvml.nvmlDeviceGetPersistenceMode(device, (nvmlEnableState_t *)&value); break;
	case DISPLAY: err = nvml.nvmlDeviceGetDisplayActive(device, (nvmlEnableState_t *)&value); break;
	case COMPUTE_MODE: err = nvml.nvmlDeviceGetComputeMode(device, (nvmlComputeMode_t *)&value); break;
	case PSTATE: err = nvml.nvmlDeviceGetPerformanceState(device, (nvmlPstates_t *)&value); break;
	case FAN: err = nvml.nvmlDeviceGetFanSpeed(device, &value); break;
	case TEMPERATURE: err = nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value); break;
	case GEN: err = nvml.nvmlDeviceGetCurrPcieLinkGeneration(device, &value); break;
	case GEN_MAX: err = nvml.nvmlDeviceGetMaxPcieLinkGeneration(device, &value); break;
	case WIDTH: err = nvml.nvmlDeviceGetCurrPcieLinkWidth(device, &value); break;
	case WIDTH_MAX: err = nvml.nvmlDeviceGetMaxPcieLinkWidth(device, &value); break;
	case POWER: err = nvml.nvmlDeviceGetPowerUsage(device, &value); break;
	case LIMIT: err = nvml.nvmlDeviceGetEnforcedPowerLimit(device, &value); break;
	}
	if (err)
		return missing(err);
	if (arg == POWER || arg == LIMIT)
		return say("%u.%02u", value / 1000, value % 1000 / 10);
	if (arg == PERSISTENCE || arg == DISPLAY)
		return on_off(value);
	if (arg == COMPUTE_MODE)
		return say("%s", value < sizeof mode / sizeof *mode ? mode[value] : "Unknown");
	return say(arg == PSTATE ? "P%u" : "%u", value);
}

enum { UUID, NAME, SERIAL, VBIOS, DRIVER };

static struct text read_string(nvmlDevice_t device, int arg)
{
	struct text text;
	nvmlReturn_t err = NVML_SUCCESS;
	switch (arg) {
	case UUID: err = nvml.nvmlDeviceGetUUID(device, text.s, sizeof text.s); break;
	case NAME: err = nvml.nvmlDeviceGetName(device, text.s, sizeof text.s); break;
	case SERIAL: err = nvml.nvmlDeviceGetSerial(device, text.s, sizeof text.s); break;
	case VBIOS: err = nvml.nvmlDeviceGetVbiosVersion(device, text.s, sizeof text.s); break;
	case DRIVER: return driver_version();
	}
	return err ? missing(err) : text;
}

enum { BUS_ID, DOMAIN, BUS, SLOT, DEVICE_ID, SUBSYSTEM };

static struct text read_pci(nvmlDevice_t device, int arg)
{
	nvmlPciInfo_t pci;
	nvmlReturn_t err = nvml.nvmlDeviceGetPciInfo_v3(device, &pci);
	if (err)
		return missing(err);
	switch (arg) {
	case DOMAIN: return say("0x%04X", pci.domain);
	case BUS: return say("0x%02X", pci.bus);
	case SLOT: return say("0x%02X", pci.device);
	case DEVICE_ID: return say("0x%08X", pci.pciDeviceId);
	case SUBSYSTEM: return say("0x%08X", pci.pciSubSystemId);
	default: return say("%s", pci.busId);
	}
}

enum { TOTAL, RESERVED, USED, FREE };

static struct text read_memory(nvmlDevice_t device, int arg)
{
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlReturn_t err = nvml.nvmlDeviceGetMemoryInfo_v2(device, &memory);
	if (err)
		return missing(err);
	const unsigned long long bytes[] = {memory.total, memory.reserved, memory.used, memory.free};
	return say("%llu", bytes[arg] >> 20);
}

static struct text read_use(nvmlDevice_t device, int arg)
{
	nvmlUtilization_t use;
	nvmlReturn_t err = nvml.nvmlDeviceGetUtilizationRates(device, &use);
	return err ? missing(err) : say("%u", arg ? use.memory : use.gpu);
}

/* arg: the clock, and 16 for its maximum */
static struct text read_clock(nvmlDevice_t device, int arg)
{
	unsigned mhz;
	nvmlClockType_t type = (nvmlClockType_t)(arg & 15);
	nvmlReturn_t err = arg & 16 ? nvml.nvmlDeviceGetMaxClockInfo(device, type, &mhz)
				    : nvml.nvmlDeviceGetClockInfo(device, type, &mhz);
	return err ? missing(err) : say("%u", mhz);
}

static struct text read_capability(nvmlDevice_t device, int arg)
{
	(void)arg;
	int major, minor;
	nvmlReturn_t err = nvml.nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
	return err ? missing(err) : say("%d.%d", major, minor);
}

static struct text read_mig(nvmlDevice_t device, int pending)
{
	unsigned mode[2];
	nvmlReturn_t err = nvml.nvmlDeviceGetMigMode(device, &mode[0], &mode[1]);
	return err ? missing(err) : on_off(mode[pending]);
}

static struct text read_ecc_mode(nvmlDevice_t device, int pending)
{
	nvmlEnableState_t mode[2];
	nvmlReturn_t err = nvml.nvmlDeviceGetEccMode(device, &mode[0], &mode[1]);
	return err ? missing(err) : on_off(mode[pending]);
}

/* arg: 1 uncorrected, 2 aggregate */
static struct text read_ecc(nvmlDevice_t device, int arg)
{
	unsigned long long count;
	nvmlReturn_t err = nvml.nvmlDeviceGetTotalEccErrors(device, (nvmlMemoryErrorType_t)(arg & 1),
							    (nvmlEccCounterType_t)(arg >> 1), &count);
	return err ? missing(err) : say("%llu", count);
}

static struct text read_count(nvmlDevice_t device, int arg)
{
	(void)device, (void)arg;
	unsigned count;
	nvmlReturn_t err = nvml.nvmlDeviceGetCount_v2(&count);
	return err ? missing(err) : say("%u", count);
}

static const struct column columns[] = {
	{"index", NULL, NULL, read_number, INDEX},
	{"count", NULL, NULL, read_count, 0},
	{"uuid", "gpu_uuid", NULL, read_string, UUID},
	{"name", "gpu_name", NULL, read_string, NAME},
	{"serial", "gpu_serial", NULL, read_string, SERIAL},
	{"vbios_version", NULL, NULL, read_string, VBIOS},
	{"driver_version", NULL, NULL, read_string, DRIVER},
	{"pci.bus_id", "gpu_bus_id", NULL, read_pci, BUS_ID},
	{"pci.domain", NULL, NULL, read_pci, DOMAIN},
	{"pci.bus", NULL, NULL, read_pci, BUS},
	{"pci.device", NULL, NULL, read_pci, SLOT},
	{"pci.device_id", NULL, NULL, read_pci, DEVICE_ID},
	{"pci.sub_device_id", NULL, NULL, read_pci, SUBSYSTEM},
	{"pcie.link.gen.current", NULL, NULL, read_number, GEN},
	{"pcie.link.gen.max", NULL, NULL, read_number, GEN_MAX},
	{"pcie.link.width.current", NULL, NULL, read_number, WIDTH},
	{"pcie.link.width.max", NULL, NULL, read_number, WIDTH_MAX},
	{"memory.total", NULL, "MiB", read_memory, TOTAL},
	{"memory.reserved", NULL, "MiB", read_memory, RESERVED},
	{"memory.used", NULL, "MiB", read_memory, USED},
	{"memory.free", NULL, "MiB", read_memory, FREE},
	{"utilization.gpu", NULL, "%", read_use, 0},
	{"utilization.memory", NULL, "%", read_use, 1},
	{"temperature.gpu", NULL, NULL, read_number, TEMPERATURE},
	{"power.draw", NULL, "W", read_number, POWER},
	{"power.limit", "enforced.power.limit", "W", read_number, LIMIT},
	{"fan.speed", NULL, "%", read_number, FAN},
	{"pstate", NULL, NULL, read_number, PSTATE},
	{"clocks.current.graphics", "clocks.gr", "MHz", read_clock, NVML_CLOCK_GRAPHICS},
	{"clocks.current.sm", "clocks.sm", "MHz", read_clock, NVML_CLOCK_SM},
	{"clocks.current.memory", "clocks.mem", "MHz", read_clock, NVML_CLOCK_MEM},
	{"clocks.max.graphics", "clocks.max.gr", "MHz", read_clock, 16 | NVML_CLOCK_GRAPHICS},
	{"clocks.max.sm", NULL, "MHz", read_clock, 16 | NVML_CLOCK_SM},
	{"clocks.max.memory", "clocks.max.mem", "MHz", read_clock, 16 | NVML_CLOCK_MEM},
	{"compute_cap", NULL, NULL, read_capability, 0},
	{"compute_mode", NULL, NULL, read_number, COMPUTE_MODE},
	{"persistence_mode", NULL, NULL, read_number, PERSISTENCE},
	{"display_active", NULL, NULL, read_number, DISPLAY},
	{"mig.mode.current", NULL, NULL, read_mig, 0},
	{"mig.mode.pending", NULL, NULL, read_mig, 1},
	{"ecc.mode.current", NULL, NULL, read_ecc_mode, 0},
	{"ecc.mode.pending", NULL, NULL, read_ecc_mode, 1},
	{"ecc.errors.corrected.volatile.total", NULL, NULL, read_ecc, 0},
	{"ecc.errors.uncorrected.volatile.total", NULL, NULL, read_ecc, 1},
	{"ecc.errors.corrected.aggregate.total", NULL, NULL, read_ecc, 2},
	{"ecc.errors.uncorrected.aggregate.total", NULL, NULL, read_ecc, 3},
};

static const struct column *find_column(const char *name)
{
	for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
		if (strcmp(columns[i].name, name) == 0 || (columns[i].alias && strcmp(columns[i].alias, name) == 0))
			return &columns[i];
	return NULL;
}

#endif
