/*
 * gpusim's log: why a module was refused or a kernel failed, in words. A driver says
 * the like in the kernel's log. The file lies in the driver root that this library is of;
 * gpusim up makes it, and in a container it is not there.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_LIMIT (1 << 20) /* bytes, then it begins again */

int gpusim_simulated(void);

/* Where to write, or -1. */
static int open_log(void)
{
	char path[PATH_MAX];
	struct stat st;

	if (!gpusim_own_dev((const void *)&gpusim_simulated, path, sizeof path - 32))
		return -1;
	strcpy(path + strlen(path) - strlen("dev"), "var/lib/gpusim/log");
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode) || (st.st_size > LOG_LIMIT && ftruncate(fd, 0)))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void report(const struct device *d, CUresult code, const char *message)
{
	char line[1200], when[32];
	const char *name = "CUDA_ERROR";
	time_t now = time(NULL);
	struct tm t;

	if (getenv("GPUSIM_VERBOSE"))
		fprintf(stderr, "gpusim: %s\n", message);
	int fd = open_log();

	if (fd < 0)
		return;
	cuGetErrorName(code, &name);
	strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &t));
	int n = snprintf(line, sizeof line - 1, "%s %s[%d] %s: %s: %s", when, program_invocation_short_name, (int)getpid(),
	                 d->uuid, name ? name : "CUDA_ERROR", message);

	n = n < (int)sizeof line - 1 ? n : (int)sizeof line - 2;
	for (int i = 0; i < n; i++)
		line[i] = line[i] == '\n' ? ' ' : line[i];
	line[n++] = '\n';
	if (write(fd, line, (size_t)n) < 0)
		errno = 0; /* a full disk: there is nobody to tell */
	close(fd);
}
