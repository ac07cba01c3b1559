/* What the stub modules share: their versions, and what nvidia.ko exports to the others. */
#ifndef STUB_H
#define STUB_H

#include <linux/fs.h>
#include <linux/module.h>

/* License and version are those of NVIDIA's open modules; the description is honest. */
#define STUB(what)                                    \
	MODULE_LICENSE("Dual MIT/GPL");               \
	MODULE_VERSION(DRIVER_VERSION);               \
	MODULE_DESCRIPTION("SIMULATED " what "; there is no GPU under it")

#define STUB_MAJOR 195 /* as Documentation/admin-guide/devices.txt of Linux assigns it */

/* A call makes a module depend on nvidia.ko, as NVIDIA's interfaces do. */
const char *nvidia_simulated_version(void);

#endif
