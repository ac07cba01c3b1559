/* The driver behind the API: devices, contexts, memory. */
#ifndef DRIVER_H
#define DRIVER_H

#include "../state/reader.h"
#include "api.h"
#include "ptx.h"

#include <pthread.h>

#define MAX_DEVICES GPUSIM_GPUS
#define MAX_PEERS MAX_DEVICES

struct device {
	unsigned gpu;         /* index in the state file */
	struct gpusim_gpu info; /* as it was at cuInit */
	bool mig;             /* one compute instance of the GPU */
	unsigned gi;          /* its GPU instance */
	unsigned contexts;    /* of this process; driver.lock is held */
	char uuid[80];        /* "GPU-…" or "MIG-…" */
	char name[128];
	uint64_t memory, used; /* bytes; used: by this process */
	uint32_t sm_count;
	struct context *primary;
	unsigned primary_flags;
	uint64_t region, region_size; /* device addresses */
	uint64_t results; /* of floating-point arithmetic, counted while the GPU computes wrong */
};

struct driver {
	pthread_mutex_t lock; /* contexts, modules, streams, events */
	bool ready;
	const struct gpusim_file *file;
	unsigned cuda_version;
	int ndevices;
	struct device device[MAX_DEVICES];
	struct context *contexts;
};
extern struct driver driver;

struct context {
	struct device *device;
	int ordinal;
	unsigned flags, refs; /* refs of a primary context */
	bool primary;
	uint64_t id;
	CUresult failed; /* sticky: what a kernel did wrong */
	size_t stack, printf_fifo, heap;
	bool peer[MAX_DEVICES];
	struct loaded *modules;
	struct stream *streams;
	struct event *events;
	struct context *next;
};

struct loaded { /* a module in a context */
	struct context *ctx;
	struct module *module;
	struct function *functions;
	struct loaded *next;
};

struct function {
	struct func *func;
	struct loaded *in;
	int max_dynamic, carveout;
	struct legacy *legacy; /* legacy.c; NULL: nothing was set */
	struct function *next;
};

/* init.c */
CUresult check_ready(void);
/* The device of an ordinal; NULL: none such. */
struct device *device_at(CUdevice ordinal);
bool device_lost(const struct device *d);
/* Declares d, the device of an ordinal. */
#define DEVICE_OR_RETURN(ordinal)                       \
	struct device *d = NULL;                            \
	CUresult ready_ = check_ready();                    \
	if (ready_)                                         \
		return ready_;                                  \
	if (!(d = device_at(ordinal)))                      \
		return CUDA_ERROR_INVALID_DEVICE

/* visible.c */
struct candidate { /* what CUDA_VISIBLE_DEVICES chooses from */
	bool mig, hidden; /* hidden: only chosen by its name */
	char uuid[80], parent[80];
	unsigned gi, ci;
};
/* Writes the chosen indexes into chosen, returns how many; value NULL: not set. */
int visible_devices(const char *value, const struct candidate *all, int n, int *chosen);

/* context.c */
/* The calling thread's context, if work may be given to it. */
CUresult current_context(struct context **out);
/* Whether ctx, which need not be current, is there and has not failed. */
CUresult check_context(CUcontext ctx);
struct context *find_context(CUcontext c); /* NULL: not one of ours; driver.lock is held */
void context_fail(struct context *c, CUresult code, const char *message);
CUresult new_context(int ordinal, unsigned flags, struct context **out);
void destroy_context(struct context *c);

/* occupy.c: what others do with a GPU */
uint64_t memory_taken(const struct device *d); /* by others */
CUresult occupy(struct device *d);             /* for a context; driver.lock is held */
void vacate(struct device *d);                 /* the context is gone; likewise */

/* memory.c */
enum alloc_kind { ALLOC_DEVICE, ALLOC_HOST, ALLOC_REGISTERED, ALLOC_MANAGED };
struct alloc {
	uint64_t address, size;
	uint8_t *host;
	enum alloc_kind kind;
	struct context *ctx;
	unsigned flags;
	bool readonly, internal; /* internal: a module's variable */
	uint64_t id;
};
CUresult memory_alloc(struct context *c, uint64_t size, enum alloc_kind kind, uint32_t align,
                      struct alloc *out);
CUresult memory_register(struct context *c, void *p, uint64_t size, unsigned flags);
CUresult memory_free(uint64_t address, unsigned kinds); /* kinds: bits 1 << alloc_kind */
void memory_free_context(struct context *c);
bool memory_find(uint64_t address, struct alloc *out);
void memory_set_internal(uint64_t address, bool readonly);
/* What a kernel of c may use; call memory_done afterwards: until then nothing is freed. */
CUresult memory_view(struct context *c, struct extent **out, size_t *n);
void memory_done(struct extent *view);
/* For copies: shares the lock with kernels, keeps frees out. */
void memory_hold(void);
void memory_let_go(void);
/* The host address of n bytes at a device or host pointer; NULL: not device memory. Held. */
uint8_t *memory_resolve(uint64_t address, uint64_t n);
/* Does address lie where device memory does, allocated or not? Held. */
bool memory_is_ours(uint64_t address);
/* All device memory of c's device. Held. */
void memory_each(const struct context *c, void (*visit)(struct alloc *, void *), void *arg);

/* fault.c: gpusim memfault and gpusim wrong */
void fault_apply(struct context *c); /* after memory was written; held */
/* The bit of d's memory that is stuck, as an extent of a few bytes around it; false: none is. */
bool fault_cell(const struct device *d, struct extent *out);
void fault_stick(void); /* makes every such bit what it is stuck at; held */
void fault_wrong(struct device *d, struct wrong *out);
/* What the host has read from n bytes at address in a. */
void fault_read(const struct alloc *a, uint64_t address, void *copied, uint64_t n);

/* module.c */
CUresult load_image(struct context *c, const void *image, unsigned n, const int *options, void **values,
                    struct loaded **out);
/* Reads an image that cuLink… puts together with others, and forgets it. */
CUresult check_image(struct context *c, const void *image, unsigned n, const int *options, void **values);
/* The whole file, with a NUL behind it; the caller frees it. */
CUresult read_image(const char *path, char **out);
CUresult unload_module(CUmodule module);
void unload_modules(struct context *c);
struct loaded *find_module(CUmodule m);
CUresult module_function(struct loaded *m, const char *name, struct function **out);

/* report.c: says in gpusim's log, and where GPUSIM_VERBOSE is set on standard error, why a call or a kernel failed */
void report(const struct device *d, CUresult code, const char *message);

/* stream.c */
CUresult check_stream(CUstream s);
void free_streams(struct context *c);

/* launch.c */
/* The function of a CUfunction, or of a CUkernel in its place. */
CUresult resolve_function(CUfunction handle, struct function **out);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra);

/* error.c */
CUresult cuGetErrorName(CUresult error, const char **name);

/* peer.c */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to);

/* device.c */
uint64_t shared_limit(const struct device *d, bool optin);

#endif
