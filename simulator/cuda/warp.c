/*
 * A warp: groups of lanes, each at one place. With one group the warp is in
 * lockstep and this file is out of the way. Groups part at branches and meet
 * again where they stand at the same instruction with the same calls above
 * them: the group deepest in calls, then first in the text, runs first, so that
 * the others are caught up with at the end of a branch or loop. Now and then
 * another one has its turn, so that lanes that wait for lanes of their own warp
 * (a lock) get there.
 */
#include "warp.h"

#include "ops.h"

#include <stdlib.h>
#include <string.h>

#define SLICES 1024 /* changes of group before other warps have their turn */

static struct frame *new_frame(struct block *b)
{
	struct frame *f = b->free_frames;

	if (f)
		b->free_frames = f->up;
	else
		f = malloc(sizeof *f);
	return f;
}

void frame_drop(struct block *b, struct frame *f)
{
	while (f && --f->refs == 0) {
		struct frame *up = f->up;

		f->up = b->free_frames;
		b->free_frames = f;
		f = up;
	}
}

static bool same_place(const struct group *a, const struct group *b)
{
	const struct frame *f = a->frame, *g = b->frame;

	if (a->pc != b->pc || f->depth != g->depth)
		return false;
	for (; f != g; f = f->up, g = g->up)
		if (f->call != g->call)
			return false;
	return true;
}

static bool grow(uint8_t **file, size_t *cap, size_t need)
{
	if (need <= *cap)
		return true;
	uint8_t *p = realloc(*file, need * 2);

	if (!p)
		return false;
	memset(p + *cap, 0, need * 2 - *cap);
	*file = p;
	*cap = need * 2;
	return true;
}

static bool make_room(struct warp *w, const struct frame *f)
{
	return grow(&w->file32, &w->cap32, f->base32 + (size_t)f->func->n32 * ROW32 + ROW32) &&
	       grow(&w->file64, &w->cap64, f->base64 + (size_t)f->func->n64 * ROW64 + ROW64) &&
	       grow((uint8_t **)(void *)&w->filep, &w->capp, (f->basep + (size_t)f->func->npred + 1) * 4);
}

void warp_load(struct warp *w)
{
	w->r32 = w->file32 + w->frame->base32;
	w->r64 = w->file64 + w->frame->base64;
	w->p = w->filep + w->frame->basep;
}

bool warp_push(struct warp *w, const struct func *f, const struct insn *call)
{
	struct frame *up = w->frame, *n = new_frame(w->block);

	if (!n)
		return false;
	*n = (struct frame){.up = up, .func = f, .call = call, .refs = 1};
	if (up) {
		n->base32 = up->base32 + up->func->n32 * ROW32;
		n->base64 = up->base64 + up->func->n64 * ROW64;
		n->basep = up->basep + up->func->npred;
		n->local = (up->local + up->func->local_size + 15) & ~(uint64_t)15;
		n->depth = up->depth + 1;
	}
	if (n->depth > MAX_DEPTH || n->local + f->local_size > w->block->stride || !make_room(w, n)) {
		n->up = w->block->free_frames;
		w->block->free_frames = n;
		return false;
	}
	w->frame = n; /* the group's reference to up is now n's */
	warp_load(w);
	return true;
}

void warp_start(struct warp *w, uint32_t index, uint32_t lanes)
{
	const struct ptx_launch *launch = w->block->launch;
	uint32_t mask = lanes >= LANES ? FULL : (1u << lanes) - 1;

	w->index = index;
	w->live = mask;
	w->frame = NULL;
	w->consts = launch->module->consts;
	w->carry = w->ticks = w->fairness = 0;
	w->executed = 0;
	w->ngroups = 0;
	if (!warp_push(w, launch->func, NULL)) {
		run_fault(w, NULL, PTX_OUT_OF_MEMORY, "out of host memory for registers");
		return;
	}
	w->ngroups = 1;
	w->group[0] = (struct group){.mask = mask, .pc = launch->func->code, .frame = w->frame};
}

static void count(struct warp *w)
{
	w->block->instructions += w->executed * (uint64_t)__builtin_popcount(w->active);
	w->executed = 0;
}

/* Lanes of the running group go their own way: a group of their own. */
struct group *warp_split(struct warp *w, uint32_t mask, const struct insn *pc)
{
	struct group *g = &w->group[w->ngroups++];

	count(w);
	*g = (struct group){.mask = mask, .pc = pc, .frame = w->frame};
	w->frame->refs++;
	w->active &= ~mask;
	return g;
}

void warp_exit_lanes(struct warp *w, uint32_t mask)
{
	count(w);
	w->live &= ~mask;
	w->active &= ~mask;
	w->block->live -= (uint32_t)__builtin_popcount(mask);
	if (w->block->live)
		barrier_recheck(w->block);
	if (w->active == 0 || w->ngroups > 1)
		w->stop = S_GROUPS; /* others may have waited for these */
}

bool warp_gather(struct warp *w, const struct insn *in, uint32_t wanted)
{
	if (w->m != w->active) {
		warp_split(w, w->active & ~w->m, w->pc);
		w->stop = S_GROUPS;
	}
	if ((wanted & w->live & ~w->active) == 0)
		return true;
	w->pc = in;
	w->executed--; /* it counts when it is done */
	w->group[w->current].state = G_TOGETHER;
	w->group[w->current].wanted = wanted;
	w->stop = S_GROUPS;
	return false;
}

static void merge(struct warp *w)
{
	for (int i = 0; i < w->ngroups; i++) {
		struct group *g = &w->group[i];

		for (int k = i + 1; k < w->ngroups; k++) {
			struct group *h = &w->group[k];

			if (g->state == G_BARRIER || g->state != h->state || !same_place(g, h))
				continue;
			g->mask |= h->mask;
			g->wanted |= h->wanted;
			frame_drop(w->block, h->frame);
			*h = w->group[--w->ngroups];
			k--;
		}
		if (g->state == G_TOGETHER && (g->wanted & w->live & ~g->mask) == 0)
			g->state = G_RUN;
	}
}

/* Which group runs next; -1: all wait, or the warp is done. */
static int choose(struct warp *w)
{
	int best = -1, runnable = 0;

	if (w->ngroups == 1)
		return w->group[0].state == G_RUN ||
		               (w->group[0].state == G_TOGETHER &&
		                (w->group[0].wanted & w->live & ~w->group[0].mask) == 0)
		           ? 0
		           : -1;
	merge(w);
	for (int i = 0; i < w->ngroups; i++) {
		const struct group *g = &w->group[i], *b = best < 0 ? NULL : &w->group[best];

		if (g->state != G_RUN)
			continue;
		runnable++;
		if (!b || g->frame->depth > b->frame->depth ||
		    (g->frame->depth == b->frame->depth && (uintptr_t)g->pc < (uintptr_t)b->pc))
			best = i;
	}
	if (runnable > 1 && ++w->fairness % 64 == 0) {
		int turn = (int)(w->fairness / 64 % (uint32_t)runnable);

		for (int i = 0; i < w->ngroups; i++)
			if (w->group[i].state == G_RUN && turn-- == 0)
				return i;
	}
	return best;
}

/* On a GPU that computes wrong: inverts a bit of each result whose turn it is. */
__attribute__((cold)) static void spoil(struct warp *w, const struct insn *in)
{
	const struct wrong *wrong = &w->block->launch->wrong;
	uint64_t seen = __atomic_fetch_add(wrong->results, (uint64_t)__builtin_popcount(w->m), __ATOMIC_RELAXED);

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);

		if (++seen % wrong->every)
			continue;
		if (in->computes == 64)
			((u64a *)row64(w, in->d))[l] ^= (uint64_t)1 << (wrong->bit + 32);
		else
			((u32a *)row32(w, in->d))[l] ^= 1u << wrong->bit;
	}
}

static inline __attribute__((always_inline)) void steps(struct warp *w, bool wrong)
{
	while (w->stop == S_NONE) {
		const struct insn *in = w->pc++;
		uint32_t m = w->active;

		w->executed++;
		if (in->guard != REF_NONE) {
			m &= pred_get(w, in->guard);
			if (m == 0)
				continue;
		}
		w->m = m;
		in->fn(w, in);
		if (wrong && in->computes && w->pc == in + 1 && w->stop != S_FAULT)
			spoil(w, in);
	}
}

static void step(struct warp *w) { steps(w, false); }
__attribute__((cold)) static void step_wrong(struct warp *w) { steps(w, true); }

bool warp_run(struct warp *w)
{
	bool ran = false;
	int slices = 0, next;

	while (slices++ < SLICES && w->ticks < TICKS && (next = choose(w)) >= 0) {
		struct group *g = &w->group[next];

		ran = true;
		w->current = next;
		w->active = g->mask;
		w->frame = g->frame;
		w->pc = g->pc;
		g->state = G_RUN;
		w->stop = S_NONE;
		warp_load(w);
		if (w->block->launch->wrong.every)
			step_wrong(w);
		else
			step(w);
		count(w);
		if (w->stop == S_FAULT)
			return true;
		g = &w->group[next];
		g->mask = w->active;
		g->frame = w->frame;
		g->pc = w->pc;
		if (g->mask == 0) {
			frame_drop(w->block, g->frame);
			*g = w->group[--w->ngroups];
		}
	}
	w->ticks = 0;
	return ran;
}
