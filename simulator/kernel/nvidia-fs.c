/* A stub of GPUDirect Storage's nvidia-fs.ko, which is not the driver's and holds it. */
#include "stub.h"

STUB("NVIDIA GPUDirect Storage");

static int __init stub_init(void)
{
	pr_info("nvidia-fs: loaded with nvidia %s, SIMULATED\n", nvidia_simulated_version());
	return 0;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
}
module_exit(stub_exit);
