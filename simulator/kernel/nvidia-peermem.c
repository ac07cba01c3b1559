/* A stub of nvidia-peermem.ko. NVIDIA's refuses to load without Mellanox's ib_core. */
#include "stub.h"

STUB("NVIDIA peer memory client");

static int peerdirect_support;
static bool simulated_no_ib_core;

module_param(peerdirect_support, int, 0444);
module_param(simulated_no_ib_core, bool, 0);
MODULE_PARM_DESC(simulated_no_ib_core, "fail with EINVAL, as without Mellanox's ib_core");

static int __init stub_init(void)
{
	pr_info("nvidia-peermem: loaded with nvidia %s, SIMULATED\n", nvidia_simulated_version());
	return simulated_no_ib_core ? -EINVAL : 0;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
}
module_exit(stub_exit);
