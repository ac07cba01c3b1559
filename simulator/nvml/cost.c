/*
 * What calls cost. A real nvmlInit opens every GPU, and a real call asks the
 * kernel module and often the GPU itself; the simulator answers from memory. So
 * that figures taken on it mean something, gpusim gives both a price.
 *
 * The price of a call is asked for where a program enters the library, once for
 * each thread and call: bodies that use one another, as nvmlDeviceGetFieldValues
 * uses most others, pay no more than their caller. There are several hundred ways
 * in, so the compiler puts the question there (-finstrument-functions, in the
 * Makefile, for this folder alone).
 */
#include "internal.h"

#include <errno.h>
#include <time.h>

#define UNCOUNTED __attribute__((no_instrument_function))
#define SECOND 1000000000ull

/*
 * Below this the processor is kept busy, as it is by a driver that polls a
 * register, and a sleep would last several times as long as it should (a timer's
 * slack alone is 50 us). Above it the thread sleeps, as it does for an answer of
 * the GPU's firmware.
 */
#define BUSY_NS 1000000ull

/* How many functions of the library this thread is in. */
static __thread unsigned depth;

UNCOUNTED static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

UNCOUNTED static void take(uint64_t ns)
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
UNCOUNTED static uint64_t cost(const struct gpusim_file *file, size_t offset, uint64_t most)
{
	uint64_t ns;
	gpusim_copy(file, offset, &ns, sizeof ns);
	return ns <= most ? ns : 0;
}

UNCOUNTED void init_cost(const struct gpusim_file *file)
{
	take(cost(file, offsetof(struct gpusim_state, init_cost_ns), GPUSIM_MAX_INIT_COST));
}

UNCOUNTED void __cyg_profile_func_enter(void *function, void *caller);
UNCOUNTED void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller)
{
	(void)function, (void)caller;
	if (depth++ > 0)
		return;
	/* Without nvmlInit there is nothing that could be asked, and nvmlInit has its own price. */
	const struct gpusim_file *file = state();
	if (file)
		take(cost(file, offsetof(struct gpusim_state, call_cost_ns), GPUSIM_MAX_CALL_COST));
}

void __cyg_profile_func_exit(void *function, void *caller)
{
	(void)function, (void)caller;
	depth--;
}
