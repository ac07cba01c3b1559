/* Control flow, calls and barriers. */
#include "collective.h"
#include "ops.h"
#include "warp.h"

#include <string.h>

void op_label(struct warp *w, const struct insn *in)
{
	(void)in;
	w->executed--; /* no instruction of the program's */
	/* A group that runs for long lets other warps, and the watchdog, have their turn. */
	if (w->ngroups > 1 || ++w->ticks >= TICKS)
		w->stop = S_GROUPS;
}

void op_bra(struct warp *w, const struct insn *in)
{
	if (w->m != w->active) {
		warp_split(w, w->active & ~w->m, w->pc);
		w->stop = S_GROUPS;
	}
	w->pc = in->target;
}

void op_brx(struct warp *w, const struct insn *in)
{
	const u32a *index = row32(w, in->a);

	if (w->m != w->active)
		warp_split(w, w->active & ~w->m, w->pc);
	/* One group for each target that a lane chooses; the last goes on as this one. */
	for (;;) {
		uint32_t chosen = index[__builtin_ctz(w->active)], same = 0;

		if (chosen >= in->table->n) {
			run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "brx.idx with index %u of %u", chosen, in->table->n);
			return;
		}
		for (uint32_t left = w->active; left; left &= left - 1)
			if (index[__builtin_ctz(left)] == chosen)
				same |= left & -left;
		if (same == w->active) {
			w->pc = in->table->target[chosen];
			w->stop = S_GROUPS;
			return;
		}
		warp_split(w, same, in->table->target[chosen]);
	}
}

void op_exit(struct warp *w, const struct insn *in)
{
	(void)in;
	warp_exit_lanes(w, w->m);
}

void op_trap(struct warp *w, const struct insn *in)
{
	run_fault(w, in, PTX_LAUNCH_FAILED, "trap");
}

/* Between a .param variable, or a register, of the caller's frame and one of the callee's. */
static void pass(struct warp *w, const struct frame *caller, const struct frame *callee,
                 const struct arg *a, const struct var *v, bool back, uint32_t mask)
{
	uint64_t stride = w->block->stride;

	for (; mask; mask &= mask - 1) {
		int l = __builtin_ctz(mask);
		uint8_t *outer, *inner;

		if (a->space == SP_LOCAL) {
			uint8_t *stack = w->local + (uint64_t)l * stride;

			outer = stack + caller->local + a->offset;
			inner = stack + callee->local + v->address;
			memcpy(back ? outer : inner, back ? inner : outer, v->size);
			continue;
		}
		bool wide = type_size(a->type) == 8;
		unsigned lane = (unsigned)l * (wide ? 8 : 4);

		inner = (wide ? w->file64 + callee->base64 : w->file32 + callee->base32) + v->reg + lane;
		outer = (a->reg & REF_CONST) ? (uint8_t *)w->consts + (a->reg & ~REF_CONST)
		        : wide               ? w->file64 + caller->base64 + a->reg
		                             : w->file32 + caller->base32 + a->reg;
		outer += lane;
		memcpy(back ? outer : inner, back ? inner : outer, wide ? 8 : 4);
	}
}

/* The function that the lanes in w->m call; lanes that call another wait as a group of their own. */
static const struct func *callee_of(struct warp *w, const struct insn *in)
{
	const struct module *m = w->block->launch->module;

	if (in->call->func)
		return in->call->func;
	const u64a *address = row64(w, in->a);
	uint64_t chosen = address[__builtin_ctz(w->m)];
	uint32_t same = 0;

	for (uint32_t left = w->m; left; left &= left - 1)
		if (address[__builtin_ctz(left)] == chosen)
			same |= left & -left;
	if (same != w->m)
		warp_split(w, w->m & ~same, in);
	w->m = same;
	uint64_t index = (chosen - FUNC_ADDRESS) / FUNC_STRIDE;
	const struct func *f =
		chosen >= FUNC_ADDRESS && chosen % FUNC_STRIDE == 0 && index < m->nfuncs ? m->by_index[index] : NULL;
	const struct var *v = f ? f->params : NULL, *r = f ? f->rets : NULL;
	bool fits = f && !f->entry && in->call->nargs == f->nparams && in->call->nrets == f->nrets;

	for (uint32_t i = 0; fits && i < f->nparams; i++, v = v->next)
		fits = v->space == SP_LOCAL && in->call->args[i].size == v->size;
	for (uint32_t i = 0; fits && i < f->nrets; i++, r = r->next)
		fits = r->space == SP_LOCAL && in->call->rets[i].size == r->size;
	if (!fits) {
		run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "call of 0x%llx, which is no such function",
		          (unsigned long long)chosen);
		return NULL;
	}
	return f;
}

void op_call(struct warp *w, const struct insn *in)
{
	if (w->m != w->active)
		warp_split(w, w->active & ~w->m, w->pc);
	const struct func *f = callee_of(w, in);

	if (!f)
		return;
	w->active = w->m;
	if (f->builtin) {
		f->builtin(w, in);
		if (w->ngroups > 1)
			w->stop = S_GROUPS;
		return;
	}
	struct frame *caller = w->frame;

	if (!warp_push(w, f, in)) {
		run_fault(w, in, PTX_STACK, "the call of %s exceeds the stack", f->name);
		return;
	}
	const struct var *v = f->params;

	for (uint32_t i = 0; i < in->call->nargs; i++, v = v->next)
		pass(w, caller, w->frame, &in->call->args[i], v, false, w->active);
	w->pc = f->code;
	if (w->ngroups > 1)
		w->stop = S_GROUPS;
}

void op_ret(struct warp *w, const struct insn *in)
{
	struct frame *callee = w->frame, *caller = callee->up;

	(void)in;
	if (!caller) {
		warp_exit_lanes(w, w->m);
		return;
	}
	if (w->m != w->active)
		warp_split(w, w->active & ~w->m, w->pc);
	const struct call *call = callee->call->call;
	const struct var *v = callee->func->rets;

	for (uint32_t i = 0; i < call->nrets; i++, v = v->next)
		pass(w, caller, callee, &call->rets[i], v, true, w->active);
	w->pc = callee->call + 1;
	caller->refs++;
	w->frame = caller;
	frame_drop(w->block, callee);
	warp_load(w);
	if (w->ngroups > 1)
		w->stop = S_GROUPS;
}

/* Puts the running group to sleep at a barrier; the last to come wakes all. */
static void wait_at(struct warp *w, const struct insn *in, bool wait)
{
	uint32_t id = ((const u32a *)row32(w, in->a))[__builtin_ctz(w->m)];
	uint32_t expected = in->b == REF_NONE ? 0 : ((const u32a *)row32(w, in->b))[__builtin_ctz(w->m)];
	uint32_t threads = (uint32_t)__builtin_popcount(w->active);

	if (id >= BARRIERS || expected % LANES != 0) {
		run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "barrier %u for %u threads does not exist", id, expected);
		return;
	}
	/* With a count, barriers count in whole warps. */
	if (expected && w->active == w->live)
		threads = LANES;
	if (wait) {
		struct group *g = &w->group[w->current];

		g->state = G_BARRIER;
		g->barrier = (uint8_t)id;
		g->waiting = in->fn == op_barrier_red ? in : NULL;
		w->stop = S_GROUPS;
	}
	barrier_arrive(w, id, expected, threads);
}

static void only_these(struct warp *w)
{
	if (w->m != w->active)
		warp_split(w, w->active & ~w->m, w->pc);
}

void op_barrier(struct warp *w, const struct insn *in)
{
	only_these(w);
	wait_at(w, in, true);
}

void op_arrive(struct warp *w, const struct insn *in)
{
	only_these(w);
	wait_at(w, in, false);
}

void op_barrier_red(struct warp *w, const struct insn *in)
{
	uint32_t id = ((const u32a *)row32(w, in->a))[__builtin_ctz(w->m)];

	only_these(w);
	if (id < BARRIERS) {
		struct barrier *b = &w->block->barrier[id];
		uint32_t yes = pred_get(w, in->c) & w->active;

		if (b->arrived == 0) {
			b->popc = b->any = 0;
			b->all = 1;
		}
		b->popc += (uint32_t)__builtin_popcount(yes);
		b->any |= yes != 0;
		b->all &= yes == w->active;
	}
	wait_at(w, in, true);
}
