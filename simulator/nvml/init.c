/* Start, end, and what can be asked of the system as a whole. */
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
	pthread_mutex_t lock;
	unsigned references;
	const struct gpusim_file *file; /* NULL while not initialised */
	uint32_t permitted;             /* bit per GPU: its device node may be used */
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char version[32];

const struct gpusim_file *state(void)
{
	return __atomic_load_n(&library.file, __ATOMIC_ACQUIRE);
}

int gpu_permitted(unsigned gpu)
{
	return __atomic_load_n(&library.permitted, __ATOMIC_ACQUIRE) >> gpu & 1;
}

unsigned gpu_count(const struct gpusim_file *file)
{
	uint32_t count;
	gpusim_copy(file, offsetof(struct gpusim_state, ngpus), &count, sizeof count);
	return count < GPUSIM_GPUS ? count : GPUSIM_GPUS;
}

const char *library_version(void)
{
	return version;
}

/* A marker: software that must know asks whether the symbol is there. */
EXPORT int gpusim_simulated(void)
{
	return 1;
}

/* permitted tries every GPU's node once: like a real driver, which opens them in nvmlInit. */
static uint32_t permitted(const struct gpusim_file *file)
{
	uint32_t bits = 0;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		uint32_t minor;
		char name[32];
		FIELD(file, i, minor, &minor);
		snprintf(name, sizeof name, "nvidia%u", minor);
		if (gpusim_node((const void *)gpusim_simulated, name) == 0)
			bits |= 1u << i;
	}
	return bits;
}

static nvmlReturn_t attach(const struct gpusim_file **file)
{
	switch (gpusim_attach((const void *)gpusim_simulated, file, version)) {
	case 0:
		break;
	case GPUSIM_E_NONE:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	case GPUSIM_E_VERSION:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	default:
		return NVML_ERROR_UNKNOWN;
	}
	switch (gpusim_node((const void *)gpusim_simulated, "nvidiactl")) {
	case 0:
		break;
	case ENOENT:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	default:
		return NVML_ERROR_NO_PERMISSION;
	}
	uint32_t error;
	gpusim_copy(*file, offsetof(struct gpusim_state, init_error), &error, sizeof error);
	return (nvmlReturn_t)error;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	if (flags & ~(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t err = NVML_SUCCESS;
	pthread_mutex_lock(&library.lock);
	if (library.references == 0) {
		const struct gpusim_file *file = NULL;
		err = attach(&file);
		if (err == NVML_SUCCESS) {
			init_cost(file);
			__atomic_store_n(&library.permitted, permitted(file), __ATOMIC_RELEASE);
			__atomic_store_n(&library.file, file, __ATOMIC_RELEASE);
		}
	}
	if (err == NVML_SUCCESS)
		library.references++;
	pthread_mutex_unlock(&library.lock);
	return err;
}

API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t err = NVML_SUCCESS;
	pthread_mutex_lock(&library.lock);
	if (library.references == 0)
		err = NVML_ERROR_UNINITIALIZED;
	else if (--library.references == 0) {
		__atomic_store_n(&library.file, (const struct gpusim_file *)NULL, __ATOMIC_RELEASE);
		hold_none();
	}
	pthread_mutex_unlock(&library.lock);
	return err;
}

/* The words of the real library (535.261.03), which are the same without a driver. */
EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const words[] = {
		[NVML_SUCCESS] = "Success",
		[NVML_ERROR_UNINITIALIZED] = "Uninitialized",
		[NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
		[NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
		[NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
		[NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
		[NVML_ERROR_NOT_FOUND] = "Not Found",
		[NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
		[NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
		[NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
		[NVML_ERROR_TIMEOUT] = "Timeout",
		[NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
		[NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
		[NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
		[NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
		[NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
		[NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
		[NVML_ERROR_OPERATING_SYSTEM] = "GPU access blocked by the operating system",
		[NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
		[NVML_ERROR_IN_USE] = "In use by another client",
		[NVML_ERROR_MEMORY] = "Insufficient Memory",
		[NVML_ERROR_NO_DATA] = "No data",
		[NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "vGPU ECC not supported",
		[NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
		[NVML_ERROR_FREQ_NOT_SUPPORTED] = "Invalid Frequency",
		[NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
		[NVML_ERROR_DEPRECATED] = "Requested functionality has been deprecated",
		[NVML_ERROR_NOT_READY] = "System is not in ready state",
	};
	unsigned index = (unsigned)result;
	return index < sizeof words / sizeof *words ? words[index] : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int length)
{
	return state() ? put_string(version, out, length) : NVML_ERROR_UNINITIALIZED;
}

/* The real one answers this without nvmlInit, too: CUDA's major version, then the library's own. */
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int length)
{
	char text[64];
	const struct gpusim_file *file = state();
	uint32_t cuda = NVML_API_VERSION * 1000;
	if (file)
		gpusim_copy(file, offsetof(struct gpusim_state, cuda_version), &cuda, sizeof cuda);
	if (!version[0]) {
		const struct gpusim_file *unused;
		gpusim_attach((const void *)gpusim_simulated, &unused, version);
	}
	snprintf(text, sizeof text, "%u.%s", cuda / 1000, version);
	return put_string(text, out, length);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	gpusim_copy(file, offsetof(struct gpusim_state, cuda_version), out, sizeof *out);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
	return nvmlSystemGetCudaDriverVersion_v2(out);
}

API nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!info || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != nvmlSystemDriverBranchInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	char branch[48];
	snprintf(branch, sizeof branch, "r%.*s_00", (int)strcspn(version, "."), version);
	return put_string(branch, info->branch, length < sizeof info->branch ? length : sizeof info->branch);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	for (unsigned i = 0; i < gpu_count(file); i++) {
		struct gpusim_proc proc[GPUSIM_PROCS];
		FIELD(file, i, proc, proc);
		for (unsigned j = 0; j < GPUSIM_PROCS; j++) {
			proc[j].name[sizeof proc[j].name - 1] = '\0';
			if (proc[j].used && proc[j].pid == pid && name && length > 0) {
				/* This one truncates: its comment in nvml.h says so. */
				snprintf(name, length, "%s", proc[j].name);
				return NVML_SUCCESS;
			}
		}
	}
	return name && length > 0 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t none(unsigned *count)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* S-class units and their interface cards are of 2010; nobody simulates them. */
API nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	return none(count);
}

API nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, nvmlHwbcEntry_t *entries)
{
	(void)entries;
	return none(count);
}

API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
	return none(count);
}

API nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *count)
{
	return none(count);
}

static nvmlReturn_t no_excluded_device(void)
{
	return state() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
}

API nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
	(void)index, (void)info;
	return no_excluded_device();
}

API nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
	(void)index, (void)info;
	return no_excluded_device();
}

/* For entry.c, which knows no types. */
int gpusim_not_supported(void)
{
	return state() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;
}
