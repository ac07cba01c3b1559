/* MIG mode, and MIG devices: the compute instances as a client sees them. */
#include "internal.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

int gpusim_simulated(void);

/*
 * The driver numbers its capabilities in a fixed way that
 * /proc/driver/nvidia-caps/mig-minors spells out: 1 and 2 are config and monitor,
 * then 15 GPU instances for every GPU, each followed by its 8 compute instances.
 */
#define CONFIG 1
#define MONITOR 2

static unsigned capability(unsigned minor, unsigned gi)
{
	return 3 + (minor * 15 + gi) * 9;
}

static int may(unsigned number)
{
	char name[48];
	snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", number);
	return gpusim_node((const void *)gpusim_simulated, name) == 0;
}

/*
 * Who may monitor sees all instances, and none of them may be used for that:
 * libcuda asks for an instance's own capabilities. As in the real driver, see
 * mig_monitor_session.c of its kernel modules.
 */
int mig_visible(unsigned minor, unsigned gi, unsigned ci)
{
	unsigned number = capability(minor, gi);
	return may(MONITOR) || (may(number) && may(number + 1 + ci));
}

/* As in the real driver, see rmclientIsCapableOrAdmin with NV_RM_CAP_SYS_SMC_CONFIG in its kernel modules. */
int mig_may_configure(void)
{
	return may(CONFIG);
}

static void make_node(const char *dev, unsigned major, unsigned number)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap%u", dev, number);
	if (mknod(path, S_IFCHR | 0444, makedev(major, number)) != 0)
		mknod(path, S_IFREG | 0444, 0); /* as gpusim, where no devices may be made */
}

/*
 * What nvidia-modprobe does for a real driver's user libraries. Where that fails,
 * the instance stays hidden, as it does there.
 */
void mig_make_nodes(unsigned gpu, unsigned gi, unsigned ci)
{
	char dev[PATH_MAX], folder[PATH_MAX + 16];
	uint32_t minor, major;
	const struct gpusim_file *file = state();
	if (!file || !gpusim_own_dev((const void *)gpusim_simulated, dev, sizeof dev))
		return;
	FIELD(file, gpu, minor, &minor);
	gpusim_copy(file, offsetof(struct gpusim_state, major_caps), &major, sizeof major);
	snprintf(folder, sizeof folder, "%s/nvidia-caps", dev);
	mkdir(folder, 0755);
	unsigned number = capability(minor, gi);
	make_node(dev, major, number);
	make_node(dev, major, number + 1 + ci);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	struct target target;
	uint32_t supported;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	FIELD(target.file, target.gpu, mig_supported, &supported);
	if (!supported)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, mig_current, current);
	FIELD(target.file, target.gpu, mig_pending, pending);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *answer)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	int mig = handle_known(device.handle, KIND_MIG);
	if (!answer || (!mig && !handle_known(device.handle, KIND_GPU)))
		return NVML_ERROR_INVALID_ARGUMENT;
	*answer = (unsigned)mig;
	return NVML_SUCCESS;
}

/* nvml.h: zero if MIG is not supported or not enabled. */
API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct target target;
	uint32_t enabled, slices;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, mig_current, &enabled);
	FIELD(target.file, target.gpu, mig_slices, &slices);
	*count = enabled ? slices : 0;
	return NVML_SUCCESS;
}

/* Indexes count only what this process may use: in a container they begin at 0, too. */
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
	struct target target;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	struct gpusim_gpu gpu;
	gpusim_read_gpu(target.file, target.gpu, &gpu);
	if (!gpu.mig_supported)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!out || index >= gpu.mig_slices)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned number = 0; gpu.mig_current && number < gpu.mig_slices; number++) {
		for (unsigned i = 0; i < GPUSIM_CIS; i++) {
			const struct gpusim_ci *ci = &gpu.ci[i];
			if (!ci->used || ci->mig_index != number || !mig_visible(gpu.minor, ci->gi, ci->id))
				continue;
			if (index-- > 0)
				continue;
			out->handle = (void *)handle_of(KIND_MIG, target.gpu, ci->gi, ci->id, ci->uuid);
			return out->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

/* mig_target is for what only MIG devices have. */
static nvmlReturn_t mig_target(nvmlDevice_t device, struct target *target)
{
	nvmlReturn_t err = any_target(device, target);
	return err == NVML_SUCCESS && !target->mig ? NVML_ERROR_INVALID_ARGUMENT : err;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	struct target target;
	nvmlReturn_t err = mig_target(mig, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!device)
		return NVML_ERROR_INVALID_ARGUMENT;
	device->handle = (void *)handle_of(KIND_GPU, target.gpu, NONE, NONE, "");
	return device->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct target target;
	nvmlReturn_t err = mig_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = target.gi.id;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct target target;
	nvmlReturn_t err = mig_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = target.ci.id;
	return NVML_SUCCESS;
}

struct mode {
	unsigned gpu, mode;
};

static nvmlReturn_t set_mode(struct gpusim_state *next, void *argument)
{
	const struct mode *mode = argument;
	struct gpusim_gpu *gpu = &next->gpu[mode->gpu];
	for (unsigned i = 0; i < GPUSIM_GIS; i++)
		if (gpu->gi[i].used)
			return NVML_ERROR_IN_USE;
	for (unsigned i = 0; i < GPUSIM_PROCS; i++)
		if (gpu->proc[i].used)
			return NVML_ERROR_IN_USE;
	gpu->mig_current = gpu->mig_pending = mode->mode;
	return NVML_SUCCESS;
}

/* An idle GPU changes its mode at once; one in use answers so in the activation status. */
API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
	struct target target;
	unsigned current, pending;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err == NVML_SUCCESS)
		err = nvmlDeviceGetMigMode(device, &current, &pending);
	if (err != NVML_SUCCESS)
		return err;
	if (!activation || mode > NVML_DEVICE_MIG_ENABLE)
		return NVML_ERROR_INVALID_ARGUMENT;
	*activation = NVML_SUCCESS;
	if (mode == current)
		return NVML_SUCCESS;
	struct mode argument = {target.gpu, mode};
	err = change(set_mode, &argument, target.gpu, nvmlEventMigConfigChange);
	*activation = err;
	return err;
}
