/* A stub of nvidia.ko: device numbers, /proc/driver/nvidia and parameters, but no GPU. */
#include "stub.h"

#include <crypto/ecc_curve.h>
#include <crypto/ecdh.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

STUB("NVIDIA GPU driver");
MODULE_ALIAS("char-major-195-*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc00i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc02i00*");
MODULE_FIRMWARE("nvidia/" DRIVER_VERSION "/gsp_ga10x.bin");
MODULE_SOFTDEP("pre: ecdh_generic ecdsa_generic");

#define CONTROL_MINOR 255
#define GPU_MINORS    247

static int NVreg_EnableGpuFirmware = 18;
static int NVreg_OpenRmEnableUnsupportedGpus = 1;
static int NVreg_ModifyDeviceFiles = 1;
static char *NVreg_RegistryDwords;
static char *NVreg_CoherentGPUMemoryMode;
static bool simulated_no_device;
static int simulated_init_error;

module_param(NVreg_EnableGpuFirmware, int, 0);
module_param(NVreg_OpenRmEnableUnsupportedGpus, int, 0);
module_param(NVreg_ModifyDeviceFiles, int, 0);
module_param(NVreg_RegistryDwords, charp, 0);
module_param(NVreg_CoherentGPUMemoryMode, charp, 0);
module_param(simulated_no_device, bool, 0);
MODULE_PARM_DESC(simulated_no_device, "fail with ENODEV, as on a machine without a GPU");
module_param(simulated_init_error, int, 0);
MODULE_PARM_DESC(simulated_init_error, "fail with this errno, a positive number");

const char *nvidia_simulated_version(void)
{
	return DRIVER_VERSION;
}
EXPORT_SYMBOL(nvidia_simulated_version);

/* An open file holds a reference to the module, by its owner. */
static int stub_open(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations stub_fops = {
	.owner = THIS_MODULE,
	.open = stub_open,
};

static int show_version(struct seq_file *m, void *v)
{
	seq_puts(m, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " DRIVER_VERSION "  SIMULATED\n");
	seq_puts(m, "GCC version:  gcc version " __VERSION__ "\n");
	return 0;
}

static int show_params(struct seq_file *m, void *v)
{
	seq_printf(m, "EnableGpuFirmware: %d\n", NVreg_EnableGpuFirmware);
	seq_printf(m, "OpenRmEnableUnsupportedGpus: %d\n", NVreg_OpenRmEnableUnsupportedGpus);
	seq_printf(m, "ModifyDeviceFiles: %d\n", NVreg_ModifyDeviceFiles);
	seq_printf(m, "RegistryDwords: \"%s\"\n", NVreg_RegistryDwords ?: "");
	seq_printf(m, "CoherentGPUMemoryMode: \"%s\"\n", NVreg_CoherentGPUMemoryMode ?: "");
	return 0;
}

static int __init stub_init(void)
{
	struct proc_dir_entry *dir;
	int err;

	/* NVIDIA's open modules need ecc.ko, where that is not built into the kernel. */
	if (!ecc_get_curve(ECC_CURVE_NIST_P256))
		pr_info("NVRM: SIMULATED: the kernel has no curve P-256\n");
	if (simulated_init_error)
		return -simulated_init_error;
	if (simulated_no_device) {
		pr_err("NVRM: No NVIDIA GPU found. (SIMULATED)\n");
		return -ENODEV;
	}
	err = __register_chrdev(STUB_MAJOR, 0, GPU_MINORS, "nvidia", &stub_fops);
	if (err < 0)
		return err;
	err = __register_chrdev(STUB_MAJOR, CONTROL_MINOR, 1, "nvidiactl", &stub_fops);
	if (err < 0)
		goto unregister;
	err = -ENOMEM;
	dir = proc_mkdir("driver/nvidia", NULL);
	if (!dir || !proc_create_single("version", 0444, dir, show_version) ||
	    !proc_create_single("params", 0444, dir, show_params))
		goto remove;
	pr_info("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  " DRIVER_VERSION "  SIMULATED\n");
	return 0;

remove:
	remove_proc_subtree("driver/nvidia", NULL);
	__unregister_chrdev(STUB_MAJOR, CONTROL_MINOR, 1, "nvidiactl");
unregister:
	__unregister_chrdev(STUB_MAJOR, 0, GPU_MINORS, "nvidia");
	return err;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
	remove_proc_subtree("driver/nvidia", NULL);
	__unregister_chrdev(STUB_MAJOR, CONTROL_MINOR, 1, "nvidiactl");
	__unregister_chrdev(STUB_MAJOR, 0, GPU_MINORS, "nvidia");
}
module_exit(stub_exit);
