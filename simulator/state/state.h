/*
 * The state of the simulated driver: one fixed-size file that gpusim writes in
 * place and that libnvidia-ml and libcuda map read-only, so that a fault
 * injected from outside is seen by processes that already run, also through a
 * bind mount of the file. The Go side is generated from this header.
 *
 * Writing is a latched sequence lock. There are two slots; slot[seq & 1] is in
 * force. A writer holds flock(LOCK_EX) on the file, copies the slot in force to
 * the other one, changes that, and adds one to seq. A reader notes seq, copies
 * what it needs from slot[seq & 1] and starts over if seq has moved. A writer
 * that is killed half-way leaves seq alone, so readers never see half a change.
 *
 * Events are a ring: entry (n % GPUSIM_EVENTS) holds event number n, counted
 * from 0; event_head is the number of events so far, stored after the entry is
 * written. wake is a futex word that is added to, and woken, after every change
 * of either kind (a read-only mapping may wait on it).
 *
 * All integers are little-endian and naturally aligned; strings end in NUL.
 */
#ifndef GPUSIM_STATE_H
#define GPUSIM_STATE_H

#include <stdint.h>

#define GPUSIM_MAGIC 0x3130454d49535047ull /* "GPSIME01" */
#define GPUSIM_LAYOUT 5                    /* of this header; readers refuse others */

#define GPUSIM_GPUS 16
#define GPUSIM_LINKS 18         /* NVLinks of one GPU */
#define GPUSIM_GI_PROFILES 16   /* GPU instance profiles of one GPU */
#define GPUSIM_CI_PROFILES 8    /* compute instance profiles, the same for every GI */
#define GPUSIM_PLACEMENTS 8
#define GPUSIM_GIS 8            /* GPU instances that exist on one GPU */
#define GPUSIM_CIS 8            /* compute instances that exist on one GPU */
#define GPUSIM_PROCS 8          /* processes shown on one GPU */
#define GPUSIM_EVENTS 256
#define GPUSIM_RULES 64         /* calls of NVML that are refused or take long */

/* Offset in the file, beyond its end, of the byte whose lock says that the first GPU is held open. */
#define GPUSIM_HOLD (1ll << 40)

/* Likewise: a process has a CUDA context on the first GPU; an MPS server has one. */
#define GPUSIM_CONTEXT (1ll << 41)
#define GPUSIM_MPS (1ll << 42)

/* Socket in the driver root over which gpusim serve gives the state, open for writing, to processes with mig/config. */
#define GPUSIM_SOCKET "gpusim.sock"

/* The most that NVML may be made to cost, ns: longer is a mistake in a unit. */
#define GPUSIM_MAX_INIT_COST 600000000000ull
#define GPUSIM_MAX_CALL_COST 10000000000ull
#define GPUSIM_MAX_DELAY 86400000000000ull

/* PCI location; device_id and subsystem_id as in nvmlPciInfo_t (device << 16 | vendor). */
struct gpusim_pci {
	uint32_t domain, bus, device, function;
	uint32_t device_id, subsystem_id;
};

enum { GPUSIM_REMOTE_NONE, GPUSIM_REMOTE_GPU, GPUSIM_REMOTE_SWITCH };

struct gpusim_link {
	uint32_t active;      /* 1: nvmlDeviceGetNvLinkState says enabled */
	uint32_t version;     /* nvmlNvlinkVersion_t */
	uint32_t remote_type; /* GPUSIM_REMOTE_… */
	uint32_t remote_gpu;  /* index of the GPU at the other end */
	uint32_t remote_link;
	uint32_t speed_mbps;  /* one direction, MB/s */
	struct gpusim_pci remote;
	uint64_t crc_errors, replay_errors, recovery_errors;
};

struct gpusim_gi_profile {
	uint32_t id;           /* NVML_GPU_INSTANCE_PROFILE_… */
	uint32_t slices;       /* compute slices */
	uint32_t instances;    /* most that can exist at once */
	uint32_t sm_count;
	uint32_t copy_engines, decoders, encoders, jpegs, ofas;
	uint32_t nplacements;
	uint32_t size;         /* memory slices that a placement takes */
	uint32_t start[GPUSIM_PLACEMENTS];
	uint64_t memory_mb;
	char name[32];         /* "1g.10gb+me" */
};

struct gpusim_gi {
	uint32_t used;         /* 0: this entry is empty */
	uint32_t id;
	uint32_t profile;      /* index into gi_profile */
	uint32_t start;        /* placement */
};

struct gpusim_ci {
	uint32_t used;
	uint32_t id;           /* among the CIs of its GI */
	uint32_t gi;           /* id of its GI */
	uint32_t profile;      /* NVML_COMPUTE_INSTANCE_PROFILE_… */
	uint32_t slices;
	uint32_t mig_index;    /* index of the MIG device */
	char uuid[80];         /* "MIG-…" */
	char name[32];         /* "1g.10gb" as NVML names the profile in device names */
};

struct gpusim_proc {
	uint32_t used;
	uint32_t pid;
	uint32_t graphics;     /* 1: graphics, 0: compute */
	uint32_t gi, ci;       /* 0xffffffff: none */
	uint64_t memory;       /* bytes */
	char name[64];
};

/* Locations of ECC counters, in the order of nvmlMemoryLocation_t. */
#define GPUSIM_ECC_LOCATIONS 8

/* How a GPU is lost: each of these is a way in which a real NVML says so. */
enum {
	GPUSIM_LOST_NO,
	GPUSIM_LOST_CALLS,   /* it is counted, its handle is given, calls on it say GPU_IS_LOST */
	GPUSIM_LOST_HANDLE,  /* it is counted, asking for its handle says GPU_IS_LOST */
	GPUSIM_LOST_GONE,    /* it is no longer counted; indexes of later GPUs move down */
	GPUSIM_LOST_UNKNOWN, /* it is counted, calls on it say ERROR_UNKNOWN */
	GPUSIM_LOST_EVENTS,  /* as CALLS, and nvmlEventSetWait says GPU_IS_LOST while it is registered */
};

/*
 * What libcuda does to device memory. STUCK and FLIP are about the word at an offset
 * of each allocation, STUCK_AT_0 and _1 about one word of the GPU's memory.
 */
enum {
	GPUSIM_MEMFAULT_NONE,
	GPUSIM_MEMFAULT_STUCK,
	GPUSIM_MEMFAULT_FLIP,
	GPUSIM_MEMFAULT_STUCK_AT_0,
	GPUSIM_MEMFAULT_STUCK_AT_1,
};

/* What is bad about a fabric that a GPU has joined: the bit of each part of NVML's health mask. */
enum {
	GPUSIM_FABRIC_BANDWIDTH = 1,
	GPUSIM_FABRIC_ROUTE_RECOVERY = 2,
	GPUSIM_FABRIC_ROUTE = 4,
	GPUSIM_FABRIC_ACCESS_TIMEOUT = 8,
};

/*
 * The device address of the first byte of GPU number i is BASE + i × STRIDE: where neither
 * the kernel nor a sanitizer puts anything.
 */
#define GPUSIM_DEVICE_BASE 0x400000000000ull
#define GPUSIM_DEVICE_STRIDE (1ull << 40)

struct gpusim_gpu {
	char uuid[80];         /* "GPU-…" */
	char name[96];         /* "SIMULATED NVIDIA H100 80GB HBM3" */
	char serial[32], board_part[32], vbios[32];
	struct gpusim_pci pci;
	uint32_t minor;        /* N of /dev/nvidiaN */
	uint32_t lost;         /* GPUSIM_LOST_… */
	uint32_t brand;        /* nvmlBrandType_t */
	uint32_t architecture; /* nvmlDeviceArchitecture_t */
	uint32_t cc_major, cc_minor;
	uint32_t sm_count, cores, multi_gpu_board;
	int32_t numa_node;     /* -1: none */
	uint64_t cpu_affinity[4];
	uint32_t power_mw, power_limit_mw, power_min_mw, power_max_mw, power_default_mw;
	uint32_t temperature, temp_slowdown, temp_shutdown, temp_max, fan; /* °C; fan %: 0xffffffff has none */
	uint32_t util_gpu, util_memory, util_enc, util_dec;                /* percent */
	uint32_t pstate;
	uint32_t clock[4], clock_max[4]; /* graphics, SM, memory, video; MHz */
	uint32_t bus_width;              /* memory bus, bits */
	uint32_t l2_bytes;
	uint32_t pcie_gen, pcie_gen_max, pcie_width, pcie_width_max;
	uint32_t persistence, compute_mode, display_mode, accounting;
	uint64_t memory_total, memory_reserved, memory_used, bar1_total, bar1_used; /* bytes */

	uint32_t ecc_supported, ecc_current, ecc_pending;
	uint32_t remap_supported, remap_corrected, remap_uncorrected, remap_pending, remap_failed;
	uint32_t remap_max, remap_high, remap_partial, remap_low, remap_none; /* histogram of banks */
	uint32_t retired_sbe, retired_dbe, retired_pending;
	uint32_t recovery_action; /* nvmlDeviceGpuRecoveryAction_t */
	uint32_t memfault_kind;   /* GPUSIM_MEMFAULT_… */
	uint32_t memfault_bit;    /* bit within the 32-bit word */
	uint64_t memfault_offset; /* bytes */
	uint64_t wrong_every;     /* each so many floating-point results of libcuda one is wrong; 0: none */
	uint32_t wrong_bit;       /* in which this bit of its upper 32 is inverted */
	uint32_t pcie_gen_limit, pcie_width_limit; /* what the PCIe link has fallen to; 0: it has not */
	uint32_t links_down;      /* bit i: NVLink i was active and is down */
	uint64_t throttle;        /* nvmlClocksEventReason… that hold the clocks down */
	/* What keeps the GPU busy; the values above and below are those of an idle one. */
	uint32_t load;            /* percent; 0: idle */
	uint32_t load_period_ms;  /* in which the load falls to its half and rises again; 0: it is constant */
	uint32_t load_temperature; /* °C at full load; 0: 5 below temp_slowdown */
	uint32_t load_power_mw;   /* at full load; 0: power_limit_mw */
	uint64_t load_memory;     /* bytes in use beside memory_used; in MIG mode, shared out by the instances' size */
	uint64_t ecc_volatile[2][GPUSIM_ECC_LOCATIONS];  /* [0] corrected, [1] uncorrected */
	uint64_t ecc_aggregate[2][GPUSIM_ECC_LOCATIONS];

	uint32_t mig_supported, mig_current, mig_pending;
	uint32_t n_gi_profiles;
	uint32_t mig_slices;      /* compute slices, 7 on A100 */
	uint32_t mig_memory_slices; /* 8 on A100 */
	struct gpusim_gi_profile gi_profile[GPUSIM_GI_PROFILES];
	struct gpusim_gi gi[GPUSIM_GIS];
	struct gpusim_ci ci[GPUSIM_CIS];

	uint32_t nlinks;
	uint32_t fabric_supported;
	uint32_t fabric_state, fabric_clique;
	uint32_t fabric_status;  /* nvmlReturn_t with which it ended to join */
	uint32_t fabric_bad;     /* GPUSIM_FABRIC_… */
	uint32_t fabric_wrong;   /* NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…; 0: it is right */
	char fabric_cluster[16]; /* UUID bytes */
	struct gpusim_link link[GPUSIM_LINKS];
	struct gpusim_proc proc[GPUSIM_PROCS];

	uint32_t unified;         /* 1: its memory is the CPU's, and NVML has no numbers of it */
	uint32_t virtualization;  /* nvmlGpuVirtualizationMode_t */
	uint32_t addressing;      /* nvmlDeviceAddressingModeType_t */
	uint32_t c2c_links;       /* to the CPU of its module, all active */
};

/* What a call of NVML answers, and after which time. */
struct gpusim_rule {
	char call[64];     /* "nvmlDeviceGetMemoryInfo" */
	uint32_t gpu;      /* index in gpu[] of the call's first argument; 0xffffffff: any */
	uint32_t code;     /* nvmlReturn_t; 0: what it answers else */
	uint64_t delay;    /* ns */
};

struct gpusim_state {
	char profile[32];         /* "h100-sxm-8" */
	char module_version[32];  /* of the "kernel module": "580.95.05" */
	uint32_t cuda_version;    /* 13000 */
	uint32_t ngpus;
	uint32_t init_error;      /* nvmlReturn_t that nvmlInit answers; 0: none */
	uint32_t event_error;     /* nvmlReturn_t that event calls answer; 0: none */
	uint32_t major_gpu, major_uvm, major_caps; /* of the device nodes */
	uint32_t mig_error;       /* nvmlReturn_t that creating a compute instance answers; 0: none */
	uint64_t init_cost_ns;    /* what nvmlInit takes where NVML is not initialised; 0: nothing */
	uint64_t call_cost_ns;    /* what every other call of NVML takes while it is */
	uint32_t nrules;
	uint32_t pad;
	struct gpusim_rule rule[GPUSIM_RULES];
	uint32_t topology[GPUSIM_GPUS][GPUSIM_GPUS]; /* nvmlGpuTopologyLevel_t between two GPUs */
	struct gpusim_gpu gpu[GPUSIM_GPUS];
};

struct gpusim_event {
	uint64_t number;
	uint64_t type;   /* nvmlEventType… bit */
	uint64_t data;   /* the XID */
	uint64_t unix_ns;
	uint32_t gpu;    /* index in gpu[] */
	uint32_t gi, ci; /* 0xffffffff: the whole GPU */
	uint32_t pad;
};

struct gpusim_file {
	uint64_t magic;
	uint32_t layout;
	uint32_t size;       /* of this struct */
	uint64_t seq;
	uint64_t event_head;
	uint32_t wake;
	uint32_t pad[7];
	struct gpusim_event event[GPUSIM_EVENTS];
	struct gpusim_state slot[2];
};

#endif
