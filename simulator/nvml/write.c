/*
 * Changes that a client makes. The state is mapped read-only; whoever may write
 * the file (root on the host) changes it under the protocol of state.h, which is
 * also gpusim's. In a container the file is read-only: insufficient permissions.
 * For the MIG layout a real driver asks for the capability mig/config instead: a
 * process that has its node gets the file from gpusim serve.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int gpusim_simulated(void);

static nvmlReturn_t map(int fd, struct gpusim_file **file)
{
	struct stat st;
	if (fstat(fd, &st) != 0 || st.st_size != (off_t)sizeof **file)
		return NVML_ERROR_UNKNOWN;
	void *memory = mmap(NULL, sizeof **file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return NVML_ERROR_UNKNOWN;
	*file = memory;
	if ((*file)->magic == GPUSIM_MAGIC && (*file)->layout == GPUSIM_LAYOUT)
		return NVML_SUCCESS;
	munmap(memory, sizeof **file);
	return NVML_ERROR_UNKNOWN;
}

static void add_event(struct gpusim_file *file, unsigned gpu, uint64_t type)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t number = file->event_head;
	struct gpusim_event *entry = &file->event[number % GPUSIM_EVENTS];
	/* While it is written, its number is none that a reader looks for. */
	__atomic_store_n(&entry->number, UINT64_MAX, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*entry = (struct gpusim_event){
		.number = UINT64_MAX,
		.type = type,
		.unix_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
		.gpu = gpu,
		.gi = NONE,
		.ci = NONE,
	};
	__atomic_store_n(&entry->number, number, __ATOMIC_RELEASE);
	__atomic_store_n(&file->event_head, number + 1, __ATOMIC_RELEASE);
}

static nvmlReturn_t edit_locked(struct gpusim_file *file, edit_fn edit, void *argument, unsigned gpu, uint64_t event)
{
	uint64_t seq = __atomic_load_n(&file->seq, __ATOMIC_ACQUIRE);
	struct gpusim_state *next = &file->slot[(seq + 1) & 1];
	/* The last change must be seen before the slot that it left is written again. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*next = file->slot[seq & 1];
	nvmlReturn_t err = edit(next, argument);
	if (err != NVML_SUCCESS)
		return err; /* seq did not move: nobody looks at that slot */
	__atomic_store_n(&file->seq, seq + 1, __ATOMIC_RELEASE);
	if (event)
		add_event(file, gpu, event);
	__atomic_add_fetch(&file->wake, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &file->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return NVML_SUCCESS;
}

/* receive returns the open file that a message carries, or -1. */
static int receive(int from)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	ssize_t got;
	do
		got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	struct cmsghdr *header = got == 1 ? CMSG_FIRSTHDR(&message) : NULL;
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof fd))
		memcpy(&fd, CMSG_DATA(header), sizeof fd);
	return fd;
}

/* ask_driver gets the state, open for writing, from the gpusim serve that serves this driver root; -1: there is none. */
static int ask_driver(void)
{
	char dev[PATH_MAX];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 2};
	if (!gpusim_own_dev((const void *)gpusim_simulated, dev, sizeof dev))
		return -1;
	dev[strlen(dev) - strlen("/dev")] = '\0';
	if (strlen(dev) + sizeof "/" GPUSIM_SOCKET > sizeof address.sun_path)
		return -1;
	strcat(strcpy(address.sun_path, dev), "/" GPUSIM_SOCKET);
	int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (server < 0)
		return -1;
	int fd = -1;
	if (setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
	    connect(server, (const struct sockaddr *)&address, sizeof address) == 0)
		fd = receive(server);
	close(server);
	return fd;
}

static nvmlReturn_t change_as(int configures, edit_fn edit, void *argument, unsigned gpu, uint64_t event)
{
	char path[PATH_MAX + 64];
	struct gpusim_file *file;
	if (!gpusim_path((const void *)gpusim_simulated, path, sizeof path))
		return NVML_ERROR_UNKNOWN;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		int denied = errno == EACCES || errno == EPERM || errno == EROFS;
		if (!denied)
			return NVML_ERROR_UNKNOWN;
		fd = configures && mig_may_configure() ? ask_driver() : -1;
	}
	if (fd < 0)
		return NVML_ERROR_NO_PERMISSION;
	nvmlReturn_t err = NVML_ERROR_UNKNOWN;
	int locked;
	do
		locked = flock(fd, LOCK_EX);
	while (locked != 0 && errno == EINTR);
	if (locked == 0)
		err = map(fd, &file);
	if (locked == 0 && err == NVML_SUCCESS) {
		err = edit_locked(file, edit, argument, gpu, event);
		munmap(file, sizeof *file);
	}
	close(fd); /* and with it the lock */
	return err;
}

nvmlReturn_t change(edit_fn edit, void *argument, unsigned gpu, uint64_t event)
{
	return change_as(0, edit, argument, gpu, event);
}

nvmlReturn_t change_layout(edit_fn edit, void *argument, unsigned gpu)
{
	return change_as(1, edit, argument, gpu, nvmlEventMigConfigChange);
}
