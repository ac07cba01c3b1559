/*
 * Which GPUs this process holds open. A real driver refuses to reset a GPU whose
 * device node anybody has open, and NVML opens one when a handle of the GPU is first
 * asked for (nvml.h at nvmlInit_v2: GPUs are initialised in nvmlDeviceGetHandleBy*)
 * and closes it with nvmlShutdown. Simulated nodes cannot be opened, so a shared lock
 * on a byte of the state file stands for one: GPUSIM_HOLD + the GPU. It is of the open
 * file, not the process, so threads and other users of the file are no matter.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

int gpusim_simulated(void);

static struct {
	pthread_mutex_t lock;
	int open;      /* 0: fd is none */
	int fd;
	uint32_t gpus; /* bit per GPU that is held */
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};

void hold_gpu(unsigned gpu)
{
	char path[PATH_MAX + 64];
	pthread_mutex_lock(&held.lock);
	if (!(held.gpus >> gpu & 1)) {
		if (!held.open && gpusim_path((const void *)gpusim_simulated, path, sizeof path)) {
			held.fd = open(path, O_RDONLY | O_CLOEXEC);
			held.open = held.fd >= 0;
		}
		struct flock byte = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = GPUSIM_HOLD + gpu, .l_len = 1};
		/* Who resets it is done in a moment. */
		if (held.open && fcntl(held.fd, F_OFD_SETLKW, &byte) == 0)
			held.gpus |= 1u << gpu;
	}
	pthread_mutex_unlock(&held.lock);
}

void hold_none(void)
{
	pthread_mutex_lock(&held.lock);
	if (held.open)
		close(held.fd);
	held.open = 0;
	held.gpus = 0;
	pthread_mutex_unlock(&held.lock);
}
