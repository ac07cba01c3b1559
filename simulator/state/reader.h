/*
 * What both libraries share: finding and reading the state, and opening device
 * nodes as a driver would.
 */
#ifndef GPUSIM_READER_H
#define GPUSIM_READER_H

#include <stddef.h>

#include "state.h"

/* What can be wrong with the state, besides 0. */
enum {
	GPUSIM_E_NONE = 1,     /* there is no state file beside the library: no driver */
	GPUSIM_E_INVALID = 2,  /* truncated, wrong magic or layout */
	GPUSIM_E_VERSION = 3,  /* the module's version is not the library's */
};

/*
 * gpusim_attach finds the state file beside the shared library that contains
 * addr – libnvidia-gpusim.so.VERSION, where VERSION is the suffix of the
 * library's own real path – and maps it read-only, once per process and file.
 * It returns 0 or GPUSIM_E_…; *file is set unless GPUSIM_E_NONE or _INVALID.
 * version receives the library's own version (at least 32 bytes).
 */
int gpusim_attach(const void *addr, const struct gpusim_file **file, char *version);

/*
 * gpusim_path writes the path of the state file that belongs to addr's library;
 * 0 if the library's own name cannot be made out.
 */
int gpusim_path(const void *addr, char *path, size_t size);

/*
 * Consistent copies, taken under the sequence lock. gpusim_copy takes size bytes
 * from offset within struct gpusim_state, for callers that need one field only.
 */
void gpusim_copy(const struct gpusim_file *file, size_t offset, void *out, size_t size);
void gpusim_read(const struct gpusim_file *file, struct gpusim_state *out);
void gpusim_read_gpu(const struct gpusim_file *file, unsigned index, struct gpusim_gpu *out);

/*
 * gpusim_node opens the device node name ("nvidiactl", "nvidia0",
 * "nvidia-caps/nvidia-cap12") as a driver would, closes it again, and returns 0
 * if it may be used ("no such device" counts as may), else the errno: ENOENT,
 * EPERM, EACCES. It opens the node in /dev, unless the root that the library
 * containing addr lies in has a dev folder with other nodes: then /dev is
 * another driver's, or has what one left, and the node is that folder's. A MIG
 * capability that /dev lacks is looked for there, too: a real driver's user
 * libraries make those nodes when they first need them.
 */
int gpusim_node(const void *addr, const char *name);

/* gpusim_own_dev writes the dev folder of the root that addr's library lies in; 0 if it cannot be made out. */
int gpusim_own_dev(const void *addr, char *path, size_t size);

/*
 * gpusim_wake_word returns the present value of file->wake: note it before looking
 * for what to wait for. gpusim_wait then waits until it differs from seen, the
 * time is over (ms; negative: for ever), or someone wakes the word unchanged.
 */
uint32_t gpusim_wake_word(const struct gpusim_file *file);
void gpusim_wait(const struct gpusim_file *file, uint32_t seen, int timeout_ms);

#endif
