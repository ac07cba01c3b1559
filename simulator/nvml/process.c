/* Who uses a GPU. */
#include "internal.h"

/* collect copies the processes of one sort that the device – a GPU or a MIG device – has. */
static nvmlReturn_t collect(nvmlDevice_t device, uint32_t graphics, struct gpusim_proc *out, unsigned *n)
{
	struct target target;
	nvmlReturn_t err = any_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	struct gpusim_proc all[GPUSIM_PROCS];
	FIELD(target.file, target.gpu, proc, all);
	*n = 0;
	for (unsigned i = 0; i < GPUSIM_PROCS; i++) {
		if (!all[i].used || all[i].graphics != graphics)
			continue;
		if (target.mig && (all[i].gi != target.gi.id || all[i].ci != target.ci.id))
			continue;
		out[(*n)++] = all[i];
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t list_v2(nvmlDevice_t device, uint32_t graphics, unsigned *count, nvmlProcessInfo_v2_t *out)
{
	struct gpusim_proc proc[GPUSIM_PROCS];
	nvmlProcessInfo_v2_t list[GPUSIM_PROCS] = {0};
	unsigned n;
	nvmlReturn_t err = collect(device, graphics, proc, &n);
	if (err != NVML_SUCCESS)
		return err;
	for (unsigned i = 0; i < n; i++)
		list[i] = (nvmlProcessInfo_v2_t){proc[i].pid, proc[i].memory, proc[i].gi, proc[i].ci};
	return put_list(count, out, list, n, sizeof *list);
}

static nvmlReturn_t list_v1(nvmlDevice_t device, uint32_t graphics, unsigned *count, nvmlProcessInfo_v1_t *out)
{
	struct gpusim_proc proc[GPUSIM_PROCS];
	nvmlProcessInfo_v1_t list[GPUSIM_PROCS] = {0};
	unsigned n;
	nvmlReturn_t err = collect(device, graphics, proc, &n);
	if (err != NVML_SUCCESS)
		return err;
	for (unsigned i = 0; i < n; i++)
		list[i] = (nvmlProcessInfo_v1_t){proc[i].pid, proc[i].memory};
	return put_list(count, out, list, n, sizeof *list);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
						      nvmlProcessInfo_v1_t *out)
{
	return list_v1(device, 0, count, out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
							 nvmlProcessInfo_v2_t *out)
{
	return list_v2(device, 0, count, out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							 nvmlProcessInfo_t *out)
{
	return list_v2(device, 0, count, out);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
						       nvmlProcessInfo_v1_t *out)
{
	return list_v1(device, 1, count, out);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
							  nvmlProcessInfo_v2_t *out)
{
	return list_v2(device, 1, count, out);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							  nvmlProcessInfo_t *out)
{
	return list_v2(device, 1, count, out);
}

/* No process is marked as an MPS client in the state: NONE is no value of graphics. */
API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
							 nvmlProcessInfo_v1_t *out)
{
	return list_v1(device, NONE, count, out);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
							    nvmlProcessInfo_v2_t *out)
{
	return list_v2(device, NONE, count, out);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							    nvmlProcessInfo_t *out)
{
	return list_v2(device, NONE, count, out);
}

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!out || out->mode > NVML_PROCESS_MODE_MPS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != nvmlProcessDetailList_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	struct gpusim_proc proc[GPUSIM_PROCS];
	nvmlProcessDetail_v1_t list[GPUSIM_PROCS] = {0};
	unsigned n;
	nvmlReturn_t err = collect(device, out->mode == NVML_PROCESS_MODE_MPS ? NONE : out->mode, proc, &n);
	if (err != NVML_SUCCESS)
		return err;
	for (unsigned i = 0; i < n; i++)
		list[i] = (nvmlProcessDetail_v1_t){proc[i].pid, proc[i].memory, proc[i].gi, proc[i].ci, 0};
	return put_list(&out->numProcArrayEntries, out->procArray, list, n, sizeof *list);
}
