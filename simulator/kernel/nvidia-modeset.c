/* A stub of nvidia-modeset.ko: a character device, and a function for nvidia-drm.ko. */
#include "stub.h"

STUB("NVIDIA mode setting driver");

#define MODESET_MINOR 254

static const struct file_operations stub_fops = {
	.owner = THIS_MODULE,
};

const char *nvidia_modeset_simulated_version(void);

const char *nvidia_modeset_simulated_version(void)
{
	return nvidia_simulated_version();
}
EXPORT_SYMBOL(nvidia_modeset_simulated_version);

static int __init stub_init(void)
{
	return __register_chrdev(STUB_MAJOR, MODESET_MINOR, 1, "nvidia-modeset", &stub_fops);
}
module_init(stub_init);

static void __exit stub_exit(void)
{
	__unregister_chrdev(STUB_MAJOR, MODESET_MINOR, 1, "nvidia-modeset");
}
module_exit(stub_exit);
