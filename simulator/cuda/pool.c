/*
 * Launches: blocks in parallel on all cores that this process may use. The
 * thread that launches works too; helpers are started when they are first
 * needed, sleep between launches and end with the process.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "warp.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct run {
	const struct ptx_launch *launch;
	atomic_uint_fast64_t next, instructions;
	uint64_t blocks;
	atomic_bool stopped;
	int64_t deadline_ns; /* 0: none */
	pthread_mutex_t lock;
	int code;
	char message[PTX_MESSAGE];
	/* Under pool.lock: */
	unsigned helpers, most;
	struct run *link;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	struct run *runs;
	unsigned threads;
	pid_t owner; /* a forked child has no helpers */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

const struct ptx_launch *run_launch(const struct run *run) { return run->launch; }

bool run_stopped(struct run *run)
{
	return atomic_load_explicit(&run->stopped, memory_order_relaxed);
}

static void record(struct run *run, int code, const char *message)
{
	pthread_mutex_lock(&run->lock);
	if (run->code == 0) {
		run->code = code;
		snprintf(run->message, sizeof run->message, "%s", message);
	}
	pthread_mutex_unlock(&run->lock);
	atomic_store(&run->stopped, true);
}

void run_fault(struct warp *w, const struct insn *in, int code, const char *fmt, ...)
{
	char what[160], message[PTX_MESSAGE];
	const struct block *b = w->block;
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof what, fmt, args);
	va_end(args);
	/* A mangled name may be long: what is cut off is its end. */
	snprintf(message, sizeof message, "line %u, block (%u,%u,%u), warp %u: %s, in %s", in ? in->line : 0, b->ctaid[0],
	         b->ctaid[1], b->ctaid[2], w->index, what, b->launch->func->name);
	record(b->run, code, message);
	w->stop = S_FAULT;
}

bool run_account(struct run *run, uint64_t instructions)
{
	uint64_t sum = atomic_fetch_add(&run->instructions, instructions) + instructions;
	uint64_t limit = run->launch->instruction_limit;

	if (limit && sum > limit)
		record(run, PTX_TIMEOUT, "the launch exceeds GPUSIM_INSTRUCTION_LIMIT");
	if (run->deadline_ns && now_ns() > run->deadline_ns)
		record(run, PTX_TIMEOUT, "the launch exceeds GPUSIM_WATCHDOG_MS");
	return !run_stopped(run);
}

static void work(struct run *run, uint32_t sm)
{
	struct block b;
	uint64_t i;

	/* A block is only prepared by who still finds one to run. */
	if ((i = atomic_fetch_add(&run->next, 1)) >= run->blocks)
		return;
	int rc = block_prepare(&b, run, sm);

	if (rc)
		record(run, rc, "out of host memory for a block");
	for (; !rc && i < run->blocks && !run_stopped(run); i = atomic_fetch_add(&run->next, 1))
		block_run(&b, i);
	block_release(&b);
}

static struct run *find_work(void)
{
	for (struct run *r = pool.runs; r; r = r->link)
		if (r->helpers < r->most && atomic_load(&r->next) < r->blocks && !run_stopped(r))
			return r;
	return NULL;
}

static void *helper(void *arg)
{
	uint32_t sm = (uint32_t)(uintptr_t)arg;

	pthread_mutex_lock(&pool.lock);
	for (;;) {
		struct run *r = find_work();

		if (!r) {
			pthread_cond_wait(&pool.work, &pool.lock);
			continue;
		}
		r->helpers++;
		pthread_mutex_unlock(&pool.lock);
		work(r, sm % (r->launch->sm_count ? r->launch->sm_count : 1));
		pthread_mutex_lock(&pool.lock);
		r->helpers--;
		r->most = 0; /* it found no more blocks: nobody else will */
		pthread_cond_broadcast(&pool.idle);
	}
	return NULL;
}

static unsigned cores(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof set, &set) == 0)
		return (unsigned)CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (unsigned)n : 1;
}

/* Starts what is missing of the helpers. They take no signals: those are the program's. */
static void start_helpers(unsigned wanted)
{
	sigset_t all, old;
	pthread_attr_t attr;

	if (pool.owner != getpid()) {
		pool.owner = getpid();
		pool.threads = 0;
	}
	if (pool.threads >= wanted || pthread_attr_init(&attr))
		return;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (pool.threads < wanted) {
		pthread_t t;

		if (pthread_create(&t, &attr, helper, (void *)(uintptr_t)(pool.threads + 1)))
			break; /* fewer helpers only make it slower */
		pool.threads++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
}

void ptx_run(const struct ptx_launch *launch, struct ptx_result *result)
{
	struct run run = {.launch = launch, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct run **at;
	unsigned n = cores();

	run.blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
	run.most = run.blocks < n ? (unsigned)run.blocks - 1 : n - 1;
	bool shared = run.most > 0; /* the pool's from here on */

	if (launch->watchdog_ms > 0)
		run.deadline_ns = now_ns() + launch->watchdog_ms * 1000000;
	if (shared) {
		pthread_mutex_lock(&pool.lock);
		start_helpers(run.most);
		run.link = pool.runs;
		pool.runs = &run;
		pthread_cond_broadcast(&pool.work);
		pthread_mutex_unlock(&pool.lock);
	}
	work(&run, 0);
	if (shared) {
		pthread_mutex_lock(&pool.lock);
		for (at = &pool.runs; *at != &run; at = &(*at)->link)
			;
		*at = run.link;
		while (run.helpers)
			pthread_cond_wait(&pool.idle, &pool.lock);
		pthread_mutex_unlock(&pool.lock);
	}
	result->code = run.code;
	result->instructions = atomic_load(&run.instructions);
	memcpy(result->message, run.message, sizeof result->message);
}
