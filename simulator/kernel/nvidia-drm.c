/* A stub of nvidia-drm.ko. As NVIDIA's does on a kernel without DRM, it registers nothing. */
#include "stub.h"

STUB("NVIDIA DRM driver");

static bool modeset;

module_param(modeset, bool, 0444);

const char *nvidia_modeset_simulated_version(void);

static int __init stub_init(void)
{
	pr_info("nvidia-drm: loaded with nvidia-modeset %s, SIMULATED\n", nvidia_modeset_simulated_version());
	return 0;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
}
module_exit(stub_exit);
