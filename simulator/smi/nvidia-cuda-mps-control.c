/*
 * A stand-in for NVIDIA's MPS control daemon, with the commands and messages of the real
 * one (docs.nvidia.com/deploy/mps, and the manual page): it runs, keeps the settings that it is
 * given, answers them, and ends. It starts no server. In its place it keeps the open
 * file of each GPU that a client of the simulated libcuda gives it (simulator/cuda/occupy.c):
 * a lock on that file stands for the server's context, which lasts until the daemon ends.
 *
 *   nvidia-cuda-mps-control -d        start in the background
 *   nvidia-cuda-mps-control -f        start in the foreground
 *   echo COMMAND | nvidia-cuda-mps-control
 *
 * It is linked statically: a simulated driver root has no loader and no libc, and
 * whoever runs it does so with that root as its own.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEVICES 16

static int servers[DEVICES] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

static struct {
	double threads;            /* default active thread percentage */
	char memory[DEVICES][32];  /* default pinned memory limit of each device, "" is none */
} settings = {.threads = 100};

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static const char *folder(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	return dir && *dir ? dir : "/tmp/nvidia-mps";
}

static int fail(const char *what, const char *name)
{
	fprintf(stderr, "nvidia-cuda-mps-control: %s %s: %s; CUDA_MPS_PIPE_DIRECTORY says where its files go\n", what, name,
		strerror(errno));
	return 1;
}

static int address(struct sockaddr_un *un)
{
	*un = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(un->sun_path, sizeof un->sun_path, "%s/control", folder());
	return n > 0 && n < (int)sizeof un->sun_path;
}

static void note(const char *text)
{
	char path[PATH_MAX], now[64];
	const char *dir = getenv("CUDA_MPS_LOG_DIRECTORY");
	time_t seconds = time(NULL);
	snprintf(path, sizeof path, "%s/control.log", dir && *dir ? dir : "/var/log/nvidia-mps");
	FILE *log = fopen(path, "a");
	if (!log)
		return; /* the real one, too, runs without a log */
	strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S", localtime(&seconds));
	fprintf(log, "[%s Control %d] SIMULATED: %s\n", now, (int)getpid(), text);
	fclose(log);
}

/* answer carries out one command; 0 if it is the last. */
static int answer(char *command, char *out, size_t size)
{
	char *rest = NULL, *word = strtok_r(command, " \t\r\n", &rest);
	char *first = strtok_r(NULL, " \t\r\n", &rest), *second = strtok_r(NULL, " \t\r\n", &rest);
	char *end = NULL;
	*out = '\0';
	if (!word || strcmp(word, "get_server_list") == 0)
		return 1;
	if (strcmp(word, "quit") == 0)
		return 0;
	if (strcmp(word, "get_default_active_thread_percentage") == 0) {
		snprintf(out, size, "%.1f\n", settings.threads);
		return 1;
	}
	if (strcmp(word, "set_default_active_thread_percentage") == 0) {
		double percent = first ? strtod(first, &end) : 0;
		if (!first || *end || !(percent > 0 && percent <= 100)) {
			snprintf(out, size, "Invalid active thread percentage: it is above 0 and at most 100\n");
			return 1;
		}
		settings.threads = percent;
		snprintf(out, size, "%.1f\n", percent);
		return 1;
	}
	unsigned long device = first ? strtoul(first, &end, 10) : DEVICES;
	int known = first && !*end && device < DEVICES;
	if (strcmp(word, "get_default_device_pinned_mem_limit") == 0 && known) {
		snprintf(out, size, "%s\n", settings.memory[device][0] ? settings.memory[device] : "N/A");
		return 1;
	}
	if (strcmp(word, "set_default_device_pinned_mem_limit") == 0 && known && second) {
		unsigned long amount = strtoul(second, &end, 10);
		if (!amount || end == second || (strcmp(end, "M") != 0 && strcmp(end, "G") != 0)) {
			snprintf(out, size, "Invalid pinned memory limit: %s is no number of M or G\n", second);
			return 1;
		}
		snprintf(settings.memory[device], sizeof settings.memory[device], "%s", second);
		return 1;
	}
	snprintf(out, size, "Unrecognized or incomplete command: %s\n", word);
	return 1;
}

/* receive reads a command, and the open file that comes with it; -1: there is none. */
static ssize_t receive(int peer, char *command, size_t size, int *file)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec data = {command, size};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	*file = -1;
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof *file))
		memcpy(file, CMSG_DATA(header), sizeof *file);
	return n;
}

/* keep stands for the server of a GPU; an earlier file of it is closed. */
static void keep(const char *command, int file)
{
	unsigned device = DEVICES;
	if (sscanf(command, "simulated_server %u", &device) != 1 || device >= DEVICES) {
		close(file);
		return;
	}
	if (servers[device] >= 0)
		close(servers[device]);
	servers[device] = file;
}

/*
 * serve answers one connection after another, one line each, until it is told to
 * quit. The socket is gone before the one who said so gets its answer.
 */
static void serve(int listener, const char *path)
{
	int running = 1;
	while (running && !stopped) {
		char command[256], out[256];
		int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (peer < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			break;
		}
		int file;
		ssize_t n = receive(peer, command, sizeof command - 1, &file);
		if (n > 0)
			command[n] = '\0';
		if (n > 0 && file >= 0) {
			keep(command, file);
			send(peer, "\n", 1, MSG_NOSIGNAL);
		} else if (n > 0) {
			running = answer(command, out, sizeof out);
			if (!running)
				unlink(path);
			send(peer, out, strlen(out), MSG_NOSIGNAL);
		}
		close(peer);
	}
}

static int start(int background)
{
	struct sockaddr_un un;
	char lock[PATH_MAX];
	if (mkdir(folder(), 0755) != 0 && errno != EEXIST)
		return fail("make", folder());
	snprintf(lock, sizeof lock, "%s/control_lock", folder());
	int locked = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (locked < 0)
		return fail("open", lock);
	if (flock(locked, LOCK_EX | LOCK_NB) != 0) {
		fprintf(stderr, "An instance of this daemon is already running\n");
		return 1;
	}
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || !address(&un)) {
		errno = listener < 0 ? errno : ENAMETOOLONG;
		return fail("listen in", folder());
	}
	unlink(un.sun_path); /* of a daemon that was killed: the lock says that none runs */
	if (bind(listener, (struct sockaddr *)&un, sizeof un) != 0 || chmod(un.sun_path, 0666) != 0 || listen(listener, 8) != 0)
		return fail("listen on", un.sun_path);
	struct sigaction action = {.sa_handler = stop};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	/* Whoever started it may send commands as soon as the parent has left. */
	if (background && daemon(0, 0) != 0)
		return fail("go to the background from", folder());
	note("started");
	serve(listener, un.sun_path);
	unlink(un.sun_path);
	note("ended");
	return 0;
}

/* ask sends one command to the daemon and prints its answer. */
static int ask(const char *command)
{
	struct sockaddr_un un;
	char out[512];
	ssize_t n;
	int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (peer < 0 || !address(&un) || connect(peer, (struct sockaddr *)&un, sizeof un) != 0) {
		fprintf(stderr, "Cannot find MPS control daemon process\n");
		if (peer >= 0)
			close(peer);
		return 1;
	}
	int err = send(peer, command, strlen(command), MSG_NOSIGNAL) < 0;
	while (!err && (n = recv(peer, out, sizeof out, 0)) > 0)
		fwrite(out, 1, (size_t)n, stdout);
	close(peer);
	return err;
}

int main(int argc, char **argv)
{
	char line[256];
	if (argc == 2 && (strcmp(argv[1], "-d") == 0 || strcmp(argv[1], "-f") == 0))
		return start(argv[1][1] == 'd');
	if (argc != 1) {
		fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f]   (commands are read from the standard input)\n"
				"example: echo get_default_active_thread_percentage | nvidia-cuda-mps-control\n"
				"exit code: 0 success, 1 no daemon, or one that runs already, 2 a wrong argument\n");
		return 2;
	}
	int err = 0;
	while (!err && fgets(line, sizeof line, stdin))
		err = ask(line);
	return err;
}
