/*
 * What happens where a program enters the library, before the body of a function:
 * the call is counted, takes the time that gpusim gave it, and may be refused.
 * entry.c leads every function of nvml.h through here; bodies that use one another,
 * as nvmlDeviceGetFieldValues uses most others, do not come by.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull

/*
 * Below this the processor is kept busy, as it is by a driver that polls a
 * register, and a sleep would last several times as long as it should (a timer's
 * slack alone is 50 us). Above it the thread sleeps, as it does for an answer of
 * the GPU's firmware.
 */
#define BUSY_NS 1000000ull

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void take(uint64_t ns)
{
	if (ns == 0)
		return;
	uint64_t end = now_ns() + ns;
	if (ns >= BUSY_NS) {
		/* An absolute time: signals, of which a Go program sends itself many, do not prolong it. */
		struct timespec until = {(time_t)(end / SECOND), (long)(end % SECOND)};
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
			;
	}
	while (now_ns() < end)
		;
}

/* cost reads a price; more than gpusim would write is none. */
static uint64_t cost(const struct gpusim_file *file, size_t offset, uint64_t most)
{
	uint64_t ns;
	gpusim_copy(file, offset, &ns, sizeof ns);
	return ns <= most ? ns : 0;
}

void init_cost(const struct gpusim_file *file)
{
	take(cost(file, offsetof(struct gpusim_state, init_cost_ns), GPUSIM_MAX_INIT_COST));
}

/* The file that GPUSIM_CALLS names, to whose numbers programs add. */
static struct calls {
	uint64_t all, waits; /* waits for events, of all */
} *calls;

static void map_calls(void)
{
	const char *path = getenv("GPUSIM_CALLS");
	int file = path && *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *memory = lseek(file, 0, SEEK_END) >= (off_t)sizeof *calls ?
		mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
	if (memory != MAP_FAILED)
		calls = memory;
	close(file);
}

/* What gpusim refuse said of the call, about the GPU of its first argument; 0 if nothing. */
static int find_rule(const struct gpusim_file *file, const char *name, const void *first, struct gpusim_rule *found)
{
	uint32_t count;
	gpusim_copy(file, offsetof(struct gpusim_state, nrules), &count, sizeof count);
	for (unsigned i = 0; i < count && i < GPUSIM_RULES; i++) {
		gpusim_copy(file, offsetof(struct gpusim_state, rule) + i * sizeof *found, found, sizeof *found);
		if (strncmp(found->call, name, sizeof found->call) == 0 && (found->gpu == NONE || handle_is_of(first, found->gpu)))
			return 1;
	}
	return 0;
}

/* A rule that is changed or removed holds nobody any longer. */
static int obey(const struct gpusim_file *file, const char *name, const void *first)
{
	struct gpusim_rule rule;
	const uint64_t began = now_ns();
	for (;;) {
		uint32_t seen = gpusim_wake_word(file);
		if (!find_rule(file, name, first, &rule))
			return NVML_SUCCESS;
		uint64_t gone = now_ns() - began;
		if (gone >= rule.delay || rule.delay > GPUSIM_MAX_DELAY)
			return (int)rule.code;
		gpusim_wait(file, seen, (int)((rule.delay - gone + 999999) / 1000000));
	}
}

/* gpusim_enter returns what the call answers without its body being run; 0: nothing, it is run. */
int gpusim_enter(const char *name, const void *first)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, map_calls);
	if (calls) {
		__atomic_fetch_add(&calls->all, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&calls->waits, strncmp(name, "nvmlEventSetWait", strlen("nvmlEventSetWait")) == 0, __ATOMIC_RELAXED);
	}
	const struct gpusim_file *file = state();
	if (file) {
		/* nvmlInit has its own price, and is free where there is nothing to initialise. */
		take(cost(file, offsetof(struct gpusim_state, call_cost_ns), GPUSIM_MAX_CALL_COST));
		return obey(file, name, first);
	}
	/* Without nvmlInit there is nothing that could be asked, but nvmlInit itself. */
	char version[32];
	if (strncmp(name, "nvmlInit", strlen("nvmlInit")) != 0 || gpusim_attach((const void *)gpusim_enter, &file, version) != 0)
		return NVML_SUCCESS;
	return obey(file, name, first);
}
