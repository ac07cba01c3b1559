/* Special registers. */
#define _GNU_SOURCE /* clock_gettime */
#include "special.h"
#include "warp.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	SR_TID_X, SR_TID_Y, SR_TID_Z, SR_NTID_X, SR_NTID_Y, SR_NTID_Z, SR_CTAID_X, SR_CTAID_Y, SR_CTAID_Z,
	SR_NCTAID_X, SR_NCTAID_Y, SR_NCTAID_Z, SR_LANEID, SR_WARPID, SR_NWARPID, SR_SMID, SR_NSMID,
	SR_GRIDID, SR_EQ, SR_LE, SR_LT, SR_GE, SR_GT, SR_CLOCK, SR_CLOCK_HI, SR_CLOCK64, SR_TIMER,
	SR_TIMER_LO, SR_TIMER_HI, SR_DYNAMIC_SMEM, SR_TOTAL_SMEM, SR_ZERO, SR_ONE,
};

static const struct { const char *name; int special; } names[] = {
	{"%tid.x", SR_TID_X}, {"%tid.y", SR_TID_Y}, {"%tid.z", SR_TID_Z},
	{"%ntid.x", SR_NTID_X}, {"%ntid.y", SR_NTID_Y}, {"%ntid.z", SR_NTID_Z},
	{"%ctaid.x", SR_CTAID_X}, {"%ctaid.y", SR_CTAID_Y}, {"%ctaid.z", SR_CTAID_Z},
	{"%nctaid.x", SR_NCTAID_X}, {"%nctaid.y", SR_NCTAID_Y}, {"%nctaid.z", SR_NCTAID_Z},
	{"%laneid", SR_LANEID}, {"%warpid", SR_WARPID}, {"%nwarpid", SR_NWARPID},
	{"%smid", SR_SMID}, {"%nsmid", SR_NSMID}, {"%gridid", SR_GRIDID},
	{"%lanemask_eq", SR_EQ}, {"%lanemask_le", SR_LE}, {"%lanemask_lt", SR_LT},
	{"%lanemask_ge", SR_GE}, {"%lanemask_gt", SR_GT},
	{"%clock", SR_CLOCK}, {"%clock_hi", SR_CLOCK_HI}, {"%clock64", SR_CLOCK64},
	{"%globaltimer", SR_TIMER}, {"%globaltimer_lo", SR_TIMER_LO}, {"%globaltimer_hi", SR_TIMER_HI},
	{"%dynamic_smem_size", SR_DYNAMIC_SMEM}, {"%total_smem_size", SR_TOTAL_SMEM},
	/* Without clusters, a block is a cluster of its own. */
	{"%clusterid.x", SR_CTAID_X}, {"%clusterid.y", SR_CTAID_Y}, {"%clusterid.z", SR_CTAID_Z},
	{"%nclusterid.x", SR_NCTAID_X}, {"%nclusterid.y", SR_NCTAID_Y}, {"%nclusterid.z", SR_NCTAID_Z},
	{"%cluster_ctaid.x", SR_ZERO}, {"%cluster_ctaid.y", SR_ZERO}, {"%cluster_ctaid.z", SR_ZERO},
	{"%cluster_nctaid.x", SR_ONE}, {"%cluster_nctaid.y", SR_ONE}, {"%cluster_nctaid.z", SR_ONE},
	{"%cluster_ctarank", SR_ZERO}, {"%cluster_nctarank", SR_ONE},
};

/* %envreg0 … 31, which this driver leaves at 0, and %pm0 … 7, which count nothing. */
static bool is_numbered(const char *name)
{
	unsigned n = 0;
	char end;

	return (sscanf(name, "%%envreg%2u%c", &n, &end) == 1 && n < 32) || (sscanf(name, "%%pm%1u%c", &n, &end) == 1 && n < 8);
}

int special_named(const char *name)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i].name, name) == 0)
			return names[i].special;
	return is_numbered(name) ? SR_ZERO : -1;
}

bool special_is_wide(int s)
{
	return s == SR_CLOCK64 || s == SR_TIMER || s == SR_GRIDID;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t thread_index(const struct warp *w, int lane, int axis)
{
	const uint32_t *size = w->block->launch->block;
	uint32_t linear = w->index * LANES + (uint32_t)lane;

	if (axis == 0)
		return linear % size[0];
	if (axis == 1)
		return linear / size[0] % size[1];
	return linear / size[0] / size[1];
}

static uint64_t value_of(const struct warp *w, int s)
{
	const struct block *b = w->block;
	const struct ptx_launch *launch = b->launch;

	switch (s) {
	case SR_NTID_X: case SR_NTID_Y: case SR_NTID_Z: return launch->block[s - SR_NTID_X];
	case SR_CTAID_X: case SR_CTAID_Y: case SR_CTAID_Z: return b->ctaid[s - SR_CTAID_X];
	case SR_NCTAID_X: case SR_NCTAID_Y: case SR_NCTAID_Z: return launch->grid[s - SR_NCTAID_X];
	case SR_WARPID: return w->index;
	case SR_NWARPID: return b->nwarps;
	case SR_SMID: return b->sm;
	case SR_NSMID: return launch->sm_count;
	case SR_CLOCK: return (uint32_t)now_ns();
	case SR_CLOCK_HI: case SR_TIMER_HI: return now_ns() >> 32;
	case SR_CLOCK64: case SR_TIMER: return now_ns();
	case SR_TIMER_LO: return (uint32_t)now_ns();
	case SR_DYNAMIC_SMEM: return launch->shared;
	case SR_TOTAL_SMEM: return b->shared_size;
	case SR_ONE: return 1;
	default: return 0; /* SR_GRIDID, SR_ZERO */
	}
}

static uint32_t lane_value(const struct warp *w, int s, int l)
{
	uint32_t eq = 1u << l, lt = eq - 1;

	switch (s) {
	case SR_TID_X: case SR_TID_Y: case SR_TID_Z: return thread_index(w, l, s - SR_TID_X);
	case SR_LANEID: return (uint32_t)l;
	case SR_EQ: return eq;
	case SR_LE: return eq | lt;
	case SR_LT: return lt;
	case SR_GE: return ~lt;
	default: return ~(eq | lt); /* SR_GT */
	}
}

void op_special(struct warp *w, const struct insn *in)
{
	int s = in->sub;

	if (special_is_wide(s)) {
		u64a *d = row64(w, in->d);
		uint64_t v = value_of(w, s);

		EACH_LANE(d[l] = v);
		return;
	}
	u32a *d = row32(w, in->d);

	if ((s >= SR_TID_X && s <= SR_TID_Z) || s == SR_LANEID || (s >= SR_EQ && s <= SR_GT)) {
		EACH_LANE(d[l] = lane_value(w, s, l));
		return;
	}
	uint32_t v = (uint32_t)value_of(w, s);

	EACH_LANE(d[l] = v);
}
