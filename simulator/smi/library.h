/*
 * The NVML that nvidia-smi asks: the one of its own driver root, else the one on
 * the loader's path. It is looked up at run time, so that nvidia-smi can say what
 * is missing instead of failing to start.
 */
#ifndef GPUSIM_SMI_LIBRARY_H
#define GPUSIM_SMI_LIBRARY_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h> /* of the go-nvml module, as in simulator/nvml */

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLS(X) \
	X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) \
	X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) \
	X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) \
	X(nvmlDeviceGetIndex) X(nvmlDeviceGetSerial) X(nvmlDeviceGetVbiosVersion) X(nvmlDeviceGetPciInfo_v3) \
	X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetBAR1MemoryInfo) X(nvmlDeviceGetUtilizationRates) \
	X(nvmlDeviceGetTemperature) X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) \
	X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetFanSpeed) \
	X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetComputeMode) X(nvmlDeviceSetComputeMode) \
	X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetDisplayActive) X(nvmlDeviceGetMigMode) X(nvmlDeviceGetEccMode) \
	X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkGeneration) \
	X(nvmlDeviceGetCurrPcieLinkWidth) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetMaxMigDeviceCount) \
	X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) \
	X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetComputeRunningProcesses_v3) \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3) X(nvmlSystemGetProcessName) X(nvmlDeviceGetTopologyCommonAncestor) \
	X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetNvLinkRemotePciInfo_v2) X(nvmlDeviceGetNvLinkRemoteDeviceType) \
	X(nvmlDeviceGetCpuAffinity) X(nvmlDeviceGetMemoryAffinity) X(nvmlDeviceGetMinorNumber)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static struct {
#define MEMBER(name) __typeof__(&name) name;
	CALLS(MEMBER)
#undef MEMBER
	int simulated;
} nvml;
#pragma GCC diagnostic pop

#if defined __x86_64__
#define TRIPLET "x86_64-linux-gnu"
#elif defined __aarch64__
#define TRIPLET "aarch64-linux-gnu"
#else
#error "no simulated driver for this processor"
#endif

static void *open_beside(void)
{
	char self[PATH_MAX], path[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n <= 0)
		return NULL;
	self[n] = '\0';
	*strrchr(self, '/') = '\0';
	snprintf(path, sizeof path, "%s/../lib/" TRIPLET "/libnvidia-ml.so.1", self);
	return dlopen(path, RTLD_NOW);
}

/* load fills in nvml; 0 if there is no library, or one that lacks something. */
static int load(void)
{
	void *library = open_beside();
	if (!library)
		library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library)
		return 0;
	int complete = 1;
#define LOOKUP(name) \
	*(void **)&nvml.name = dlsym(library, #name); \
	complete = complete && nvml.name;
	CALLS(LOOKUP)
#undef LOOKUP
	nvml.simulated = dlsym(library, "gpusim_simulated") != NULL;
	return complete;
}

/* A value as nvidia-smi prints it, or why there is none. */
struct text {
	char s[160];
};

static struct text say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static struct text say(const char *format, ...)
{
	struct text text;
	va_list args;
	va_start(args, format);
	vsnprintf(text.s, sizeof text.s, format, args);
	va_end(args);
	return text;
}

static struct text missing(nvmlReturn_t err)
{
	return err == NVML_ERROR_NOT_SUPPORTED ? say("[N/A]") : say("[%s]", nvml.nvmlErrorString(err));
}

static struct text on_off(unsigned on)
{
	return say("%s", on ? "Enabled" : "Disabled");
}

#endif
