/* What nvidia-smi prints when it is asked for nothing in particular. */
#ifndef GPUSIM_SMI_TABLE_H
#define GPUSIM_SMI_TABLE_H

#include "library.h"
#include "query.h"

#include <time.h>

/* bare is a value without the brackets that mark a missing one in CSV. */
static struct text bare(struct text text)
{
	return strcmp(text.s, "[N/A]") == 0 ? say("N/A") : strchr(text.s, '[') ? say("ERR!") : text;
}

static struct text shortened(struct text text, unsigned width)
{
	if (strlen(text.s) > width)
		snprintf(text.s + width - 3, sizeof text.s - width + 3, "...");
	return text;
}

static struct text with(struct text text, const char *unit)
{
	return strcmp(text.s, "N/A") == 0 || strcmp(text.s, "ERR!") == 0 ? text : say("%s%s", text.s, unit);
}

static void print_gpu(nvmlDevice_t device)
{
	struct text power = bare(read_number(device, POWER)), limit = bare(read_number(device, LIMIT));
	power.s[strcspn(power.s, ".")] = limit.s[strcspn(limit.s, ".")] = '\0'; /* whole watts */
	struct text persistence = say("%s", strcmp(read_number(device, PERSISTENCE).s, "Enabled") == 0 ? "On" : "Off");
	struct text display = say("%s", strcmp(read_number(device, DISPLAY).s, "Enabled") == 0 ? "On" : "Off");
	printf("| %3s  %-25s %7s  | %18s %3s | %20s |\n", bare(read_number(device, INDEX)).s,
	       shortened(read_string(device, NAME), 25).s, persistence.s, bare(read_pci(device, BUS_ID)).s, display.s,
	       bare(read_ecc(device, 1)).s);
	struct text memory = say("%s / %9s", with(bare(read_memory(device, USED)), "MiB").s,
				 with(bare(read_memory(device, TOTAL)), "MiB").s);
	printf("| %3s  %4s    %-4s %11s / %5s | %22s | %7s %12s |\n", with(bare(read_number(device, FAN)), "%").s,
	       with(bare(read_number(device, TEMPERATURE)), "C").s, bare(read_number(device, PSTATE)).s,
	       with(power, "W").s, with(limit, "W").s, memory.s, with(bare(read_use(device, 0)), "%").s,
	       shortened(read_number(device, COMPUTE_MODE), 12).s);
	printf("| %39s | %22s | %20s |\n", "", "", bare(read_mig(device, 0)).s);
	puts("+-----------------------------------------+------------------------+----------------------+");
}

/* each_mig calls print for every MIG device that can be seen. */
static unsigned each_mig(nvmlDevice_t device, void (*print)(unsigned gpu, unsigned index, nvmlDevice_t mig))
{
	unsigned gpu = 0, most = 0, n = 0;
	nvml.nvmlDeviceGetIndex(device, &gpu);
	nvml.nvmlDeviceGetMaxMigDeviceCount(device, &most);
	for (unsigned i = 0; i < most; i++) {
		nvmlDevice_t mig;
		if (nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) == NVML_SUCCESS) {
			if (print)
				print(gpu, i, mig);
			n++;
		}
	}
	return n;
}

static void print_mig(unsigned gpu, unsigned index, nvmlDevice_t mig)
{
	unsigned gi = 0, ci = 0;
	nvmlDeviceAttributes_t a = {0};
	nvmlBAR1Memory_t bar = {0};
	nvml.nvmlDeviceGetGpuInstanceId(mig, &gi);
	nvml.nvmlDeviceGetComputeInstanceId(mig, &ci);
	nvml.nvmlDeviceGetAttributes_v2(mig, &a);
	nvml.nvmlDeviceGetBAR1MemoryInfo(mig, &bar);
	printf("| %2u   %2u  %2u  %2u  | %15sMiB / %6sMiB  | %3u  %4s |  %u  %2u   %2u   %2u   %2u |\n", gpu, gi, ci, index,
	       read_memory(mig, USED).s, read_memory(mig, TOTAL).s, a.multiprocessorCount, bare(read_ecc(mig, 1)).s,
	       a.sharedCopyEngineCount, a.sharedEncoderCount, a.sharedDecoderCount, a.sharedOfaCount, a.sharedJpegCount);
	printf("| %16s | %15lluMiB / %6lluMiB  | %9s | %21s |\n", "", bar.bar1Used >> 20, bar.bar1Total >> 20, "", "");
	puts("+------------------+----------------------------------+-----------+-----------------------+");
}

static void print_mig_devices(const nvmlDevice_t *device, unsigned count)
{
	unsigned n = 0;
	for (unsigned i = 0; i < count; i++)
		n += each_mig(device[i], NULL);
	if (n == 0)
		return;
	puts("\n"
	     "+-----------------------------------------------------------------------------------------+\n"
	     "| MIG devices:                                                                            |\n"
	     "+------------------+----------------------------------+-----------+-----------------------+\n"
	     "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n"
	     "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
	     "|                  |                                  |        ECC|                       |\n"
	     "|==================+==================================+===========+=======================|");
	for (unsigned i = 0; i < count; i++)
		each_mig(device[i], print_mig);
}

static unsigned print_processes(unsigned gpu, nvmlDevice_t device, char type)
{
	nvmlProcessInfo_t process[64];
	unsigned n = sizeof process / sizeof *process;
	nvmlReturn_t err = type == 'C' ? nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &n, process)
				       : nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(device, &n, process);
	for (unsigned i = 0; err == NVML_SUCCESS && i < n; i++) {
		struct text name, gi = say("N/A"), ci = say("N/A");
		if (nvml.nvmlSystemGetProcessName(process[i].pid, name.s, sizeof name.s))
			name = say("[Not Found]");
		if (process[i].gpuInstanceId != NVML_GPU_INSTANCE_ID_ANY)
			gi = say("%u", process[i].gpuInstanceId), ci = say("%u", process[i].computeInstanceId);
		printf("| %4u  %4s %4s %16u   %4c   %-34s %7lluMiB |\n", gpu, gi.s, ci.s, process[i].pid, type,
		       shortened(name, 34).s, process[i].usedGpuMemory >> 20);
	}
	return err == NVML_SUCCESS ? n : 0;
}

static int print_table(const nvmlDevice_t *device, unsigned count)
{
	int cuda = 0;
	char now[64];
	time_t seconds = time(NULL);
	strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&seconds));
	puts(now);
	nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	puts("+-----------------------------------------------------------------------------------------+");
	printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver_version().s, driver_version().s,
	       say("%d.%d", cuda / 1000, cuda % 1000 / 10).s);
	if (nvml.simulated)
		puts("| SIMULATED: there is no GPU under this driver, and nothing here speaks for any hardware. |");
	puts("+-----------------------------------------+------------------------+----------------------+\n"
	     "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
	     "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
	     "|                                         |                        |               MIG M. |\n"
	     "|=========================================+========================+======================|");
	for (unsigned i = 0; i < count; i++)
		print_gpu(device[i]);
	print_mig_devices(device, count);
	puts("\n"
	     "+-----------------------------------------------------------------------------------------+\n"
	     "| Processes:                                                                              |\n"
	     "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
	     "|        ID   ID                                                               Usage      |\n"
	     "|=========================================================================================|");
	unsigned n = 0;
	for (unsigned i = 0; i < count; i++)
		n += print_processes(i, device[i], 'G') + print_processes(i, device[i], 'C');
	if (n == 0)
		puts("|  No running processes found                                                             |");
	puts("+-----------------------------------------------------------------------------------------+");
	return 0;
}

#endif
