//go:build ignore

/* How both libraries find, map and read the state. See reader.h and state.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "reader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/*
 * Where the library lies is looked up once: after an upgrade its file is gone,
 * and a process that still runs on it must nevertheless learn of the mismatch.
 */
struct place {
	char folder[PATH_MAX];  /* of the library, symbolic links resolved */
	char version[32];       /* what follows ".so." in its real name */
	int known;
};

static struct {
	pthread_mutex_t lock;
	struct place place;
	const struct gpusim_file *file;
	dev_t device;
	ino_t inode;
} attached = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* locate fills in the place; 0 if the library's own name cannot be made out. */
static int locate(const void *addr, struct place *place)
{
	if (place->known)
		return 1;
	Dl_info info;
	char real[PATH_MAX];
	if (!dladdr(addr, &info) || !info.dli_fname || !realpath(info.dli_fname, real))
		return 0;
	char *slash = strrchr(real, '/');
	char *suffix = slash ? strstr(slash, ".so.") : NULL;
	if (!suffix || strlen(suffix + 4) >= sizeof place->version)
		return 0;
	strcpy(place->version, suffix + 4);
	*slash = '\0';
	strcpy(place->folder, real);
	place->known = 1;
	return 1;
}

static int valid(const struct gpusim_file *file)
{
	return file->magic == GPUSIM_MAGIC && file->layout == GPUSIM_LAYOUT && file->size == sizeof *file;
}

/*
 * map maps the open file. A file of any other size than the struct is refused
 * before it is touched: reading a mapping past the end of its file is SIGBUS.
 */
static int map(int fd, const struct gpusim_file **file)
{
	struct stat st;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != (off_t)sizeof **file)
		return GPUSIM_E_INVALID;
	if (attached.file && st.st_dev == attached.device && st.st_ino == attached.inode) {
		*file = attached.file;
		return valid(*file) ? 0 : GPUSIM_E_INVALID;
	}
	void *memory = mmap(NULL, sizeof **file, PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return GPUSIM_E_INVALID;
	if (!valid(memory)) {
		munmap(memory, sizeof **file);
		return GPUSIM_E_INVALID;
	}
	/* A mapping that this one replaces stays: another thread may be reading it. */
	attached.file = memory;
	attached.device = st.st_dev;
	attached.inode = st.st_ino;
	*file = memory;
	return 0;
}

static int same_version(const struct gpusim_file *file, const char *version)
{
	char module[sizeof file->slot[0].module_version];
	gpusim_copy(file, offsetof(struct gpusim_state, module_version), module, sizeof module);
	module[sizeof module - 1] = '\0';
	return strcmp(module, version) == 0;
}

static int state_path(char *path, size_t size)
{
	return snprintf(path, size, "%s/libnvidia-gpusim.so.%s", attached.place.folder, attached.place.version) < (int)size;
}

static int attach(const void *addr, const struct gpusim_file **file, char *version)
{
	if (!locate(addr, &attached.place))
		return GPUSIM_E_NONE;
	strcpy(version, attached.place.version);

	char path[PATH_MAX + 64];
	state_path(path, sizeof path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		int err = map(fd, file);
		close(fd);
		if (err)
			return err;
	} else if (errno != ENOENT && errno != ENOTDIR) {
		return GPUSIM_E_INVALID;
	} else if (attached.file && !same_version(attached.file, version)) {
		/* Upgraded: the writer left the new version in the file before it removed it. */
		*file = attached.file;
	} else {
		return GPUSIM_E_NONE;
	}
	return same_version(*file, version) ? 0 : GPUSIM_E_VERSION;
}

int gpusim_attach(const void *addr, const struct gpusim_file **file, char *version)
{
	pthread_mutex_lock(&attached.lock);
	int err = attach(addr, file, version);
	pthread_mutex_unlock(&attached.lock);
	return err;
}

int gpusim_path(const void *addr, char *path, size_t size)
{
	pthread_mutex_lock(&attached.lock);
	int known = locate(addr, &attached.place) && state_path(path, size);
	pthread_mutex_unlock(&attached.lock);
	return known;
}

void gpusim_copy(const struct gpusim_file *file, size_t offset, void *out, size_t size)
{
	uint64_t seq = __atomic_load_n(&file->seq, __ATOMIC_ACQUIRE);
	for (;;) {
		memcpy(out, (const char *)&file->slot[seq & 1] + offset, size);
		/* The copy must be over before seq is looked at again. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		uint64_t now = __atomic_load_n(&file->seq, __ATOMIC_ACQUIRE);
		if (now == seq)
			return;
		seq = now;
	}
}

void gpusim_read(const struct gpusim_file *file, struct gpusim_state *out)
{
	gpusim_copy(file, 0, out, sizeof *out);
	/* A count is a loop bound in both libraries: never trust it further than the array. */
	if (out->ngpus > GPUSIM_GPUS)
		out->ngpus = GPUSIM_GPUS;
}

void gpusim_read_gpu(const struct gpusim_file *file, unsigned index, struct gpusim_gpu *out)
{
	if (index >= GPUSIM_GPUS) {
		memset(out, 0, sizeof *out);
		return;
	}
	gpusim_copy(file, offsetof(struct gpusim_state, gpu) + index * sizeof *out, out, sizeof *out);
}

/* try_node opens one node. Only what says "you may not" or "not there" counts against it. */
static int try_node(const char *path, int mode)
{
	int fd = open(path, mode | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd >= 0) {
		close(fd);
		return 0;
	}
	switch (errno) {
	case ENXIO: /* a node with no driver behind it, which is what a simulated one is */
	case ENODEV:
	case EIO:
	case EBUSY:
	case EROFS: /* a plain file stands in for the node */
	case EOPNOTSUPP:
		return 0;
	case ENOTDIR:
		return ENOENT;
	default:
		return errno;
	}
}

/* The root is R of R/usr/lib/… or R/lib…. */
int gpusim_own_dev(const void *addr, char *path, size_t size)
{
	struct place place;
	pthread_mutex_lock(&attached.lock);
	int known = locate(addr, &attached.place);
	place = attached.place;
	pthread_mutex_unlock(&attached.lock);
	if (!known)
		return 0;
	char *end = NULL;
	for (char *at = place.folder; (at = strstr(at, "/usr/lib")); at++)
		end = at;
	for (char *at = place.folder; !end && (at = strstr(at, "/lib")); at++)
		end = at;
	if (!end)
		return 0;
	*end = '\0';
	return snprintf(path, size, "%s/dev", place.folder) < (int)size;
}

/* contains reports whether a file of /proc, of one line or a few, contains a text. */
static int contains(const char *path, const char *text)
{
	char line[256];
	int found = 0;
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof line, f))
		found = strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return found;
}

/* major_of returns the number of a character driver in /proc/devices, or -1. */
static int major_of(const char *driver)
{
	char line[256], name[64];
	int number, found = -1;
	FILE *f = fopen("/proc/devices", "re");
	while (f && found < 0 && fgets(line, sizeof line, f) && strncmp(line, "Block", 5) != 0)
		if (sscanf(line, "%d %63s", &number, name) == 2 && strcmp(name, driver) == 0)
			found = number;
	if (f)
		fclose(f);
	return found;
}

/*
 * make_node makes a node in /dev that is missing there, as NVIDIA's libraries do in a
 * process that may (nvidia-modprobe-utils.c of nvidia-modprobe): the kernel makes none.
 * Only on a kernel that has the stub modules of simulator/kernel; a real driver's nodes
 * are none of the simulator's business.
 */
static void make_node(const char *path, const char *name)
{
	struct stat st;
	const char *driver = "nvidia";
	unsigned minor;
	char end;
	if (lstat(path, &st) == 0 || errno != ENOENT || geteuid() != 0 || !contains("/proc/driver/nvidia/version", "SIMULATED"))
		return;
	if (contains("/proc/driver/nvidia/params", "ModifyDeviceFiles: 0"))
		return; /* the toolkit shows it so to containers */
	if (strcmp(name, "nvidiactl") == 0)
		minor = 255;
	else if (strcmp(name, "nvidia-uvm") == 0)
		driver = "nvidia-uvm", minor = 0;
	else if (sscanf(name, "nvidia%u%c", &minor, &end) != 1)
		return;
	int major = major_of(driver);
	if (major >= 0 && mknod(path, S_IFCHR | 0666, makedev((unsigned)major, minor)) == 0)
		chmod(path, 0666); /* whatever the umask */
}

/*
 * same_node reports whether /dev and the folder own have the same node, or neither has it, and
 * also if own has no nodes at all.
 */
static int same_node(const char *own, const char *name)
{
	char path[PATH_MAX + 64];
	struct stat ours, other;
	snprintf(path, sizeof path, "%s/%s", own, name);
	int has_ours = stat(path, &ours) == 0;
	snprintf(path, sizeof path, "/dev/%s", name);
	int has_other = stat(path, &other) == 0;
	if (!has_ours) { /* an own folder with other nodes lacks this one on purpose */
		snprintf(path, sizeof path, "%s/nvidiactl", own);
		return !has_other || stat(path, &ours) != 0;
	}
	if (!has_other)
		return 0;
	if (S_ISCHR(ours.st_mode) && S_ISCHR(other.st_mode))
		return ours.st_rdev == other.st_rdev;
	return ours.st_dev == other.st_dev && ours.st_ino == other.st_ino;
}

/*
 * serves_dev reports whether the nodes of /dev are this simulated driver's. Nodes of
 * another driver, or left by one, are not: they differ, or are not all there.
 */
static int serves_dev(const char *own)
{
	struct stat st;
	return lstat("/dev/nvidiactl", &st) == 0 && same_node(own, "nvidiactl") && same_node(own, "nvidia-uvm");
}

int gpusim_node(const void *addr, const char *name)
{
	char own[PATH_MAX], path[PATH_MAX + 64];
	int has_own = gpusim_own_dev(addr, own, sizeof own);
	int capability = strncmp(name, "nvidia-caps/", strlen("nvidia-caps/")) == 0;
	snprintf(path, sizeof path, "/dev/%s", name);
	make_node(path, name);
	int mode = capability ? O_RDONLY : O_RDWR; /* a capability has nothing to write */
	if (!has_own || serves_dev(own)) {
		snprintf(path, sizeof path, "/dev/%s", name);
		int err = try_node(path, mode);
		if (err != ENOENT || !capability || !has_own)
			return err;
	}
	snprintf(path, sizeof path, "%s/%s", own, name);
	return try_node(path, mode);
}

uint32_t gpusim_wake_word(const struct gpusim_file *file)
{
	return __atomic_load_n(&file->wake, __ATOMIC_ACQUIRE);
}

void gpusim_wait(const struct gpusim_file *file, uint32_t seen, int timeout_ms)
{
	/* FUTEX_WAIT_BITSET takes an absolute time, so a signal does not prolong the wait. */
	struct timespec end, *until = NULL;
	if (timeout_ms >= 0) {
		clock_gettime(CLOCK_MONOTONIC, &end);
		end.tv_sec += timeout_ms / 1000;
		end.tv_nsec += (timeout_ms % 1000) * 1000000L;
		if (end.tv_nsec >= 1000000000L) {
			end.tv_sec++;
			end.tv_nsec -= 1000000000L;
		}
		until = &end;
	}
	while (gpusim_wake_word(file) == seen) {
		/* Not FUTEX_PRIVATE_FLAG: the one who wakes is another process. */
		long err = syscall(SYS_futex, &file->wake, FUTEX_WAIT_BITSET, seen, until, NULL, FUTEX_BITSET_MATCH_ANY);
		if (err == 0 || (errno != EINTR && errno != EAGAIN))
			return;
	}
}
