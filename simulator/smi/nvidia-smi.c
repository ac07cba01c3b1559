/*
 * A small nvidia-smi: it lists what NVML says, in the forms that people and
 * scripts read. The code is ours; names of columns and fields, headings, messages and exit
 * codes are those of NVIDIA's nvidia-smi. It changes nothing; that is gpusim's part.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "library.h"
#include "query.h"
#include "table.h"
#include "topo.h"

#define MOST_GPUS 64

static const char usage[] =
	"NVIDIA System Management Interface of the simulated driver\n"
	"\n"
	"usage: nvidia-smi [-i GPU[,GPU...]]             a table of the GPUs\n"
	"       nvidia-smi -L                            one line for each GPU and MIG device\n"
	"       nvidia-smi -q                            the main facts of each GPU\n"
	"       nvidia-smi --query-gpu=FIELD[,FIELD...] --format=csv[,noheader][,nounits]\n"
	"       nvidia-smi [-i GPU[,GPU...]] -c MODE     DEFAULT, EXCLUSIVE_PROCESS or PROHIBITED, as root\n"
	"       nvidia-smi topo -m                       how the GPUs are connected\n"
	"       nvidia-smi --version\n"
	"\n"
	"GPU is an index, a UUID or a PCI address. nvidia-smi --help-query-gpu lists the fields.\n"
	"\n"
	"example: nvidia-smi --query-gpu=index,uuid,memory.used --format=csv,noheader\n"
	"\n"
	"exit code: 0 success, 2 a wrong argument, 6 no such GPU, 9 no driver, 12 no libnvidia-ml,\n"
	"           15 a GPU is lost, 18 driver and library differ, else what NVML returned\n";

struct options {
	const char *query, *format, *gpus, *mode;
	int list, details, topology;
};

static int wrong(const char *argument)
{
	printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
	fprintf(stderr, "nvidia-smi: %s: the simulated driver's nvidia-smi does not know this\n", argument);
	return NVML_ERROR_INVALID_ARGUMENT;
}

/* value takes what follows --name, after = or as the next argument. */
static const char *value(const char *name, char **argv, int *i)
{
	size_t n = strlen(name);
	if (strncmp(argv[*i], name, n) != 0)
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	return argv[*i][n] == '\0' && argv[*i + 1] ? argv[++*i] : NULL;
}

/* parse returns -1 to go on, else the exit code. */
static int parse(char **argv, struct options *o)
{
	for (int i = 1; argv[i]; i++) {
		const char *v;
		if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
			fputs(usage, stdout);
			return 0;
		}
		if (strcmp(argv[i], "--help-query-gpu") == 0) {
			for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
				printf("\"%s\"%s%s\n", columns[c].name, columns[c].alias ? " or " : "",
				       columns[c].alias ? columns[c].alias : "");
			return 0;
		}
		if (strcmp(argv[i], "-L") == 0 || strcmp(argv[i], "--list-gpus") == 0)
			o->list = 1;
		else if (strcmp(argv[i], "-q") == 0 || strcmp(argv[i], "--query") == 0)
			o->details = 1;
		else if (strcmp(argv[i], "topo") == 0 && argv[i + 1] && strcmp(argv[i + 1], "-m") == 0)
			o->topology = 1, i++;
		else if ((v = value("--query-gpu", argv, &i)))
			o->query = v;
		else if ((v = value("--format", argv, &i)))
			o->format = v;
		else if ((v = value("--id", argv, &i)) || (v = value("-i", argv, &i)))
			o->gpus = v;
		else if ((v = value("--compute-mode", argv, &i)) || (v = value("-c", argv, &i)))
			o->mode = v;
		else if (strcmp(argv[i], "--version") == 0)
			o->format = "version";
		else
			return wrong(argv[i]);
	}
	if (o->query && (!o->format || strncmp(o->format, "csv", 3) != 0)) {
		printf("\"--format=\" switch is missing or does not ask for csv. Please run 'nvidia-smi -h' for help.\n");
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	return -1;
}

static int failed_init(nvmlReturn_t err)
{
	if (err == NVML_ERROR_DRIVER_NOT_LOADED) {
		printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
		       "Make sure that the latest NVIDIA driver is installed and running.\n\n");
		return err;
	}
	printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(err));
	struct text text;
	if (err == NVML_ERROR_LIB_RM_VERSION_MISMATCH && !nvml.nvmlSystemGetNVMLVersion(text.s, sizeof text.s))
		printf("NVML library version: %s\n", text.s + strcspn(text.s, ".") + 1);
	return err;
}

/* choose fills in the GPUs to speak of: all, or those that -i names. */
static int choose(const char *names, nvmlDevice_t *device, unsigned *n, nvmlReturn_t *worst)
{
	unsigned count = 0;
	nvml.nvmlDeviceGetCount_v2(&count);
	*n = 0;
	for (unsigned i = 0; !names && i < count && *n < MOST_GPUS; i++) {
		nvmlReturn_t err = nvml.nvmlDeviceGetHandleByIndex_v2(i, &device[*n]);
		if (err) {
			printf("Unable to determine the device handle for GPU%u: %s: %s\n", i, nvml.nvmlErrorString(err),
			       err == NVML_ERROR_GPU_IS_LOST ? "Reboot the system to recover this GPU" : "");
			*worst = err;
			continue;
		}
		++*n;
	}
	char *copy = names ? strdup(names) : NULL, *rest = NULL;
	for (char *name = copy ? strtok_r(copy, ",", &rest) : NULL; name && *n < MOST_GPUS; name = strtok_r(NULL, ",", &rest)) {
		nvmlReturn_t err;
		char *end;
		unsigned long index = strtoul(name, &end, 10);
		if (*end == '\0')
			err = nvml.nvmlDeviceGetHandleByIndex_v2((unsigned)index, &device[*n]);
		else if (strncmp(name, "GPU-", 4) == 0)
			err = nvml.nvmlDeviceGetHandleByUUID(name, &device[*n]);
		else
			err = nvml.nvmlDeviceGetHandleByPciBusId_v2(name, &device[*n]);
		if (err) {
			printf("No devices were found\n");
			free(copy);
			return NVML_ERROR_NOT_FOUND;
		}
		++*n;
	}
	free(copy);
	if (*n == 0 && *worst == NVML_SUCCESS) {
		printf("No devices were found\n");
		return NVML_ERROR_NOT_FOUND;
	}
	return 0;
}

static void list_mig(unsigned gpu, unsigned index, nvmlDevice_t mig)
{
	(void)gpu;
	struct text name = read_string(mig, NAME);
	const char *profile = strstr(name.s, " MIG ");
	printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 5 : name.s, index, read_string(mig, UUID).s);
}

static void list(const nvmlDevice_t *device, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		printf("GPU %s: %s (UUID: %s)\n", read_number(device[i], INDEX).s, read_string(device[i], NAME).s,
		       read_string(device[i], UUID).s);
		each_mig(device[i], list_mig);
	}
}

static int query(const struct options *o, const nvmlDevice_t *device, unsigned n)
{
	const struct column *chosen[64];
	unsigned k = 0;
	int header = !strstr(o->format, "noheader"), units = !strstr(o->format, "nounits");
	char *copy = strdup(o->query), *rest = NULL;
	for (char *name = copy ? strtok_r(copy, ", ", &rest) : NULL; name && k < 64; name = strtok_r(NULL, ", ", &rest)) {
		chosen[k] = find_column(name);
		if (!chosen[k++]) {
			printf("Field \"%s\" is not a valid field to query.\n\n", name);
			free(copy);
			return NVML_ERROR_INVALID_ARGUMENT;
		}
		if (header)
			printf("%s%s%s%s%s", k > 1 ? ", " : "", name, chosen[k - 1]->unit && units ? " [" : "",
			       chosen[k - 1]->unit && units ? chosen[k - 1]->unit : "", chosen[k - 1]->unit && units ? "]" : "");
	}
	free(copy);
	if (header)
		putchar('\n');
	for (unsigned i = 0; i < n; i++) {
		for (unsigned c = 0; c < k; c++) {
			struct text text = chosen[c]->read(device[i], chosen[c]->arg);
			int unit = chosen[c]->unit && units && text.s[0] != '[';
			printf("%s%s%s%s", c ? ", " : "", text.s, unit ? " " : "", unit ? chosen[c]->unit : "");
		}
		putchar('\n');
	}
	return 0;
}

static void details(const nvmlDevice_t *device, unsigned n)
{
	static const struct {
		const char *title, *column;
	} line[] = {
		{"Product Name", "name"}, {"GPU UUID", "uuid"}, {"Serial Number", "serial"}, {"VBIOS Version", "vbios_version"},
		{"Persistence Mode", "persistence_mode"}, {"Compute Mode", "compute_mode"}, {"MIG Mode Current", "mig.mode.current"},
		{"MIG Mode Pending", "mig.mode.pending"}, {"Performance State", "pstate"}, {"FB Memory Total", "memory.total"},
		{"FB Memory Reserved", "memory.reserved"}, {"FB Memory Used", "memory.used"}, {"FB Memory Free", "memory.free"},
		{"Utilization Gpu", "utilization.gpu"}, {"Utilization Memory", "utilization.memory"},
		{"ECC Mode Current", "ecc.mode.current"}, {"ECC Volatile Uncorrectable", "ecc.errors.uncorrected.volatile.total"},
		{"ECC Aggregate Uncorrectable", "ecc.errors.uncorrected.aggregate.total"},
		{"GPU Current Temp", "temperature.gpu"}, {"Power Draw", "power.draw"}, {"Power Limit", "power.limit"},
		{"SM Clock", "clocks.sm"}, {"Memory Clock", "clocks.mem"}, {"Compute Capability", "compute_cap"},
	};
	int cuda = 0;
	nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	printf("\n==============NVSMI LOG==============\n\n");
	if (nvml.simulated)
		printf("%-42s: Yes\n", "SIMULATED");
	printf("%-42s: %s\n%-42s: %d.%d\n\n%-42s: %u\n", "Driver Version", driver_version().s, "CUDA Version", cuda / 1000,
	       cuda % 1000 / 10, "Attached GPUs", n);
	for (unsigned i = 0; i < n; i++) {
		printf("GPU %s\n", read_pci(device[i], BUS_ID).s);
		for (size_t l = 0; l < sizeof line / sizeof *line; l++) {
			const struct column *column = find_column(line[l].column);
			struct text text = bare(column->read(device[i], column->arg));
			printf("    %-38s: %s\n", line[l].title, column->unit ? with(text, say(" %s", column->unit).s).s : text.s);
		}
	}
}

/* set_mode changes the compute mode of the GPUs. */
static int set_mode(const char *name, const nvmlDevice_t *device, unsigned n)
{
	static const char *const modes[] = {"DEFAULT", NULL, "PROHIBITED", "EXCLUSIVE_PROCESS"};
	for (unsigned mode = 0; mode < sizeof modes / sizeof *modes; mode++) {
		if (!modes[mode] || (strcmp(name, modes[mode]) != 0 && strcmp(name, say("%u", mode).s) != 0))
			continue;
		for (unsigned i = 0; i < n; i++) {
			nvmlReturn_t err = nvml.nvmlDeviceSetComputeMode(device[i], (nvmlComputeMode_t)mode);
			if (err) {
				printf("Unable to set the compute mode for GPU %s: %s\n", read_pci(device[i], BUS_ID).s, nvml.nvmlErrorString(err));
				return err;
			}
			printf("Set compute mode to %s for GPU %s.\n", modes[mode], read_pci(device[i], BUS_ID).s);
		}
		printf("All done.\n");
		return 0;
	}
	return wrong(name);
}

static int run(const struct options *o)
{
	nvmlDevice_t device[MOST_GPUS];
	unsigned n;
	nvmlReturn_t worst = NVML_SUCCESS;
	int exit_code = choose(o->gpus, device, &n, &worst);
	if (exit_code)
		return exit_code;
	if (o->mode)
		exit_code = set_mode(o->mode, device, n);
	else if (o->query)
		exit_code = query(o, device, n);
	else if (o->list)
		list(device, n);
	else if (o->topology)
		exit_code = print_topology(device, n);
	else if (o->details)
		details(device, n);
	else
		exit_code = print_table(device, n);
	return exit_code ? exit_code : (int)worst;
}

int main(int argc, char **argv)
{
	(void)argc;
	struct options options = {0};
	int exit_code = parse(argv, &options);
	if (exit_code >= 0)
		return exit_code;
	if (!load()) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA "
		       "Display Driver is properly installed and present in your system.\n"
		       "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n");
		return NVML_ERROR_LIBRARY_NOT_FOUND;
	}
	nvmlReturn_t err = nvml.nvmlInit_v2();
	if (err)
		return failed_init(err);
	if (options.format && strcmp(options.format, "version") == 0)
		printf("NVIDIA-SMI version  : %s\nDRIVER version      : %s%s\n", driver_version().s, driver_version().s,
		       nvml.simulated ? "\nSIMULATED           : yes" : "");
	else
		exit_code = run(&options);
	nvml.nvmlShutdown();
	return exit_code < 0 ? 0 : exit_code;
}
