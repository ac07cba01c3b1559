/*
 * Who else uses a GPU: its compute mode, other processes with a context, and memory that is taken. A
 * context of this process is a shared lock on a byte of the state file, GPUSIM_CONTEXT + the GPU, which
 * ends with the process; the lock is of the open file, and a mapping that is read-only may have it. A
 * client of MPS has no context of its own: the server has it, for as long as it runs, which is until the
 * control daemon quits. So that daemon is given an open file with a lock on the byte GPUSIM_MPS + the GPU.
 *
 * CUDA C++ programming guide, "Compute modes"; cuda.h at CUDA_ERROR_DEVICE_UNAVAILABLE; MPS
 * documentation, "Compute modes": clients share a GPU in mode EXCLUSIVE_PROCESS, its one process is the
 * server. gpusim mode, gpusim process and gpusim load change what is read here.
 */
#define _GNU_SOURCE /* F_OFD_SETLK */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

int gpusim_simulated(void);

/* What a context itself takes: code, local memory, heap. Of 300 to 600 MB on data centre GPUs the least. */
#define CONTEXT_NEEDS (300ull << 20)

enum { DEFAULT = 0, EXCLUSIVE_THREAD = 1, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 }; /* CUcomputemode */

static int held = -1; /* the open file with this process's locks; driver.lock is held */

#define READ(d, field, to)                                                                       \
	gpusim_copy(driver.file,                                                                     \
	            offsetof(struct gpusim_state, gpu) + (d)->gpu * sizeof(struct gpusim_gpu) +          \
	                offsetof(struct gpusim_gpu, field),                                              \
	            (to), sizeof *(to))

uint64_t memory_taken(const struct device *d)
{
	uint64_t load, used, total = d->info.memory_total, taken = 0;
	struct gpusim_proc proc[GPUSIM_PROCS];

	READ(d, load_memory, &load);
	if (!d->mig) {
		READ(d, memory_used, &used);
		return used + load;
	}
	READ(d, proc, &proc);
	for (int i = 0; i < GPUSIM_PROCS; i++)
		if (proc[i].used && proc[i].gi == d->gi)
			taken += proc[i].memory;
	/* As libnvidia-ml shares it out, in MiB. */
	return total ? taken + ((load >> 20) * (d->memory >> 20) / (total >> 20) << 20) : taken;
}

static int open_state(void)
{
	char path[PATH_MAX + 64];

	return gpusim_path((const void *)&gpusim_simulated, path, sizeof path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

static bool lock_byte(int fd, short type, off_t at)
{
	struct flock byte = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

/* Has another open file the byte? */
static bool taken_byte(off_t at)
{
	struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	return fcntl(held, F_OFD_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

/* A process of gpusim process: it is not this one. A client of MPS works beside its server. */
static bool listed(const struct device *d, bool client)
{
	struct gpusim_proc proc[GPUSIM_PROCS];

	READ(d, proc, &proc);
	for (int i = 0; i < GPUSIM_PROCS; i++) {
		bool server = strstr(proc[i].name, "nvidia-cuda-mps-server") != NULL;

		if (proc[i].used && !proc[i].graphics && !(client && server))
			return true;
	}
	return false;
}

/* The control daemon of MPS that serves this process, or -1. */
static int connect_mps(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 10}; /* on a busy machine */
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	int n = snprintf(un.sun_path, sizeof un.sun_path, "%s/control", dir && *dir ? dir : "/tmp/nvidia-mps");

	if (n <= 0 || n >= (int)sizeof un.sun_path)
		return -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
	                connect(fd, (const struct sockaddr *)&un, sizeof un) != 0)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Has the daemon keep the GPU, as the server that it would start does. It waits for the daemon. */
static bool be_client(int daemon, unsigned gpu)
{
	char text[32], answer[64], control[CMSG_SPACE(sizeof(int))] = {0};
	int file = open_state();
	bool done = false;

	if (file >= 0 && lock_byte(file, F_RDLCK, GPUSIM_MPS + gpu)) {
		struct iovec data = {text, (size_t)snprintf(text, sizeof text, "simulated_server %u", gpu)};
		struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);

		*header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof file)};
		memcpy(CMSG_DATA(header), &file, sizeof file);
		done = sendmsg(daemon, &message, MSG_NOSIGNAL) > 0 && recv(daemon, answer, sizeof answer, 0) >= 0;
	}
	if (file >= 0)
		close(file);
	return done;
}

/* flock keeps two processes from both finding the GPU free. */
static CUresult take(struct device *d, bool exclusive)
{
	CUresult rc = CUDA_SUCCESS;
	int daemon = connect_mps();
	bool client = daemon >= 0;

	while (flock(held, LOCK_EX) != 0 && errno == EINTR)
		;
	bool busy = taken_byte(GPUSIM_CONTEXT + d->gpu) || listed(d, client) || (!client && taken_byte(GPUSIM_MPS + d->gpu));

	if (exclusive && busy)
		rc = CUDA_ERROR_DEVICE_UNAVAILABLE;
	else if (client)
		rc = be_client(daemon, d->gpu) ? CUDA_SUCCESS : CUDA_ERROR_MPS_CONNECTION_FAILED;
	else
		lock_byte(held, F_RDLCK, GPUSIM_CONTEXT + d->gpu);
	flock(held, LOCK_UN);
	if (client)
		close(daemon);
	return rc;
}

CUresult occupy(struct device *d)
{
	uint32_t mode = DEFAULT;
	uint64_t taken = memory_taken(d);

	if (!d->mig) /* with MIG there are no modes */
		READ(d, compute_mode, &mode);
	if (mode == PROHIBITED)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (d->contexts == 0 && !d->mig) {
		if (held < 0)
			held = open_state();
		CUresult rc = held < 0 ? CUDA_SUCCESS : take(d, mode == EXCLUSIVE_PROCESS || mode == EXCLUSIVE_THREAD);

		if (rc)
			return rc;
	}
	d->contexts++;
	if (d->used + taken + CONTEXT_NEEDS > d->memory) {
		vacate(d);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

void vacate(struct device *d)
{
	if (--d->contexts == 0 && held >= 0 && !d->mig)
		lock_byte(held, F_UNLCK, GPUSIM_CONTEXT + d->gpu);
}
