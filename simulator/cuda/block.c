/* A block: its memory, its warps in turn, its barriers. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "collective.h"
#include "ops.h"
#include "warp.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Local memory of a thread whose kernel calls functions, at least. */
#define CALL_STACK 16384u

int block_prepare(struct block *b, struct run *run, uint32_t sm)
{
	const struct ptx_launch *launch = run_launch(run);
	const struct func *f = launch->func;
	uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];

	memset(b, 0, sizeof *b);
	b->run = run;
	b->launch = launch;
	b->sm = sm;
	b->nwarps = (uint32_t)((threads + LANES - 1) / LANES);
	b->stride = f->local_size;
	if (f->calls)
		b->stride += launch->stack > CALL_STACK ? launch->stack : CALL_STACK;
	b->stride = (b->stride + 15) & ~(uint64_t)15;
	b->shared_size = launch->module->shared_dynamic + launch->shared;
	b->shared = calloc(1, b->shared_size + 16);
	b->warp = calloc(b->nwarps, sizeof *b->warp);
	if (!b->shared || !b->warp)
		return PTX_OUT_OF_MEMORY;
	b->local_bytes = b->stride * LANES * b->nwarps;
	uint8_t *local = NULL;

	if (b->local_bytes) {
		/* Pages are taken when a thread first touches its stack. */
		local = mmap(NULL, b->local_bytes, PROT_READ | PROT_WRITE,
		             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (local == MAP_FAILED) {
			b->local_bytes = 0;
			return PTX_OUT_OF_MEMORY;
		}
	}
	for (uint32_t i = 0; i < b->nwarps; i++) {
		b->warp[i].block = b;
		b->warp[i].local = local ? local + i * b->stride * LANES : NULL;
	}
	return 0;
}

void block_release(struct block *b)
{
	if (b->warp && b->local_bytes)
		munmap(b->warp[0].local, b->local_bytes);
	for (uint32_t i = 0; b->warp && i < b->nwarps; i++) {
		free(b->warp[i].file32);
		free(b->warp[i].file64);
		free(b->warp[i].filep);
	}
	free(b->warp);
	free(b->shared);
	while (b->free_frames) {
		struct frame *up = b->free_frames->up;

		free(b->free_frames);
		b->free_frames = up;
	}
}

/* A fault leaves groups behind; their frames go back to the list. */
static void drop_groups(struct block *b)
{
	for (uint32_t i = 0; i < b->nwarps; i++) {
		struct warp *w = &b->warp[i];

		for (int k = 0; k < w->ngroups; k++)
			frame_drop(b, k == w->current && w->stop == S_FAULT ? w->frame : w->group[k].frame);
		w->ngroups = 0;
		w->stop = S_NONE;
	}
}

static uint32_t where_stuck(const struct block *b)
{
	for (uint32_t i = 0; i < b->nwarps; i++)
		if (b->warp[i].ngroups)
			return b->warp[i].group[0].state == G_TOGETHER ? b->warp[i].group[0].pc->line
			                                                 : b->warp[i].group[0].pc[-1].line;
	return 0;
}

void block_run(struct block *b, uint64_t linear)
{
	const struct ptx_launch *launch = b->launch;
	uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
	bool progress = true;

	b->ctaid[0] = (uint32_t)(linear % launch->grid[0]);
	b->ctaid[1] = (uint32_t)(linear / launch->grid[0] % launch->grid[1]);
	b->ctaid[2] = (uint32_t)(linear / launch->grid[0] / launch->grid[1]);
	b->live = threads;
	memset(b->barrier, 0, sizeof b->barrier);
	for (uint32_t i = 0; i < b->nwarps; i++)
		warp_start(&b->warp[i], i, threads - i * LANES);
	while (b->live && progress && !run_stopped(b->run)) {
		progress = false;
		for (uint32_t i = 0; i < b->nwarps; i++)
			if (b->warp[i].live && !run_stopped(b->run))
				progress |= warp_run(&b->warp[i]);
		run_account(b->run, b->instructions);
		b->instructions = 0;
	}
	if (b->live && !progress && !run_stopped(b->run)) {
		struct insn at = {.line = where_stuck(b)};

		/* A GPU would hang here until its watchdog fires. */
		run_fault(&b->warp[0], &at, PTX_TIMEOUT, "%u threads wait for each other for ever", b->live);
		b->warp[0].stop = S_NONE;
	}
	run_account(b->run, b->instructions);
	b->instructions = 0;
	drop_groups(b);
}

static void deliver(struct warp *w, struct group *g, const struct barrier *bar)
{
	const struct insn *in = g->waiting;
	const struct frame *f = g->frame;

	if (in->sub == RED_POPC) {
		u32a *d = (void *)(w->file32 + f->base32 + in->d);

		for (uint32_t left = g->mask; left; left &= left - 1)
			d[__builtin_ctz(left)] = bar->popc;
		return;
	}
	uint32_t *p = w->filep + f->basep + (in->d >> 1);
	bool yes = in->sub == RED_AND ? bar->all : bar->any;

	*p = (*p & ~g->mask) | (yes ? g->mask : 0);
}

static void release(struct block *b, uint32_t id)
{
	struct barrier done = b->barrier[id];

	b->barrier[id] = (struct barrier){0};
	for (uint32_t i = 0; i < b->nwarps; i++) {
		struct warp *w = &b->warp[i];

		for (int k = 0; k < w->ngroups; k++) {
			struct group *g = &w->group[k];

			if (g->state != G_BARRIER || g->barrier != id)
				continue;
			g->state = G_RUN;
			if (g->waiting)
				deliver(w, g, &done);
			g->waiting = NULL;
		}
	}
}

static void check(struct block *b, uint32_t id)
{
	struct barrier *bar = &b->barrier[id];

	if (bar->arrived && bar->arrived >= (bar->expected ? bar->expected : b->live))
		release(b, id);
}

void barrier_arrive(struct warp *w, uint32_t id, uint32_t expected, uint32_t threads)
{
	struct barrier *bar = &w->block->barrier[id];

	bar->arrived += threads;
	bar->expected = expected;
	check(w->block, id);
}

/* Threads that have exited are not waited for. */
void barrier_recheck(struct block *b)
{
	for (uint32_t id = 0; id < BARRIERS; id++)
		if (!b->barrier[id].expected)
			check(b, id);
}
