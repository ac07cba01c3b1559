/* Warp collectives (PTX ISA, 9.7.12.2 and following). */
#include "collective.h"
#include "ops.h"
#include "warp.h"

/* Waits for the lanes that the .sync mask names; false: not yet, or a fault. */
static bool members(struct warp *w, const struct insn *in)
{
	if (in->e == REF_NONE)
		return true;
	return warp_gather(w, in, ((const u32a *)row32(w, in->e))[__builtin_ctz(w->m)]);
}

void op_warp_sync(struct warp *w, const struct insn *in) { members(w, in); }

void op_vote(struct warp *w, const struct insn *in)
{
	if (!members(w, in))
		return;
	uint32_t yes = pred_get(w, in->c) & w->m;

	if (in->sub == VOTE_BALLOT) {
		u32a *d = row32(w, in->d);

		EACH_LANE(d[l] = yes);
		return;
	}
	bool r = in->sub == VOTE_ALL ? yes == w->m : in->sub == VOTE_ANY ? yes != 0 : yes == 0 || yes == w->m;

	pred_set(w, in->d, r ? FULL : 0);
}

void op_activemask(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	uint32_t m = w->m;

	EACH_LANE(d[l] = m);
}

void op_shfl(struct warp *w, const struct insn *in)
{
	if (!members(w, in))
		return;
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b), *c = row32(w, in->c);
	uint32_t out[LANES], valid = 0;

	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);
		int by = (int)(b[l] & 31), clamp = (int)(c[l] & 31), segment = (int)(c[l] >> 8 & 31);
		int most = (l & segment) | (clamp & ~segment), least = l & segment, from;
		bool ok;

		switch (in->sub) {
		case SHFL_UP: from = l - by; ok = from >= most; break;
		case SHFL_DOWN: from = l + by; ok = from <= most; break;
		case SHFL_BFLY: from = l ^ by; ok = from <= most; break;
		default: from = least | (by & ~segment); ok = from <= most;
		}
		if (!ok)
			from = l;
		out[l] = a[from & 31];
		valid |= (uint32_t)ok << l;
	}
	EACH_LANE(d[l] = out[l]);
	pred_set(w, in->x[0], valid);
}

void op_match(struct warp *w, const struct insn *in)
{
	if (!members(w, in))
		return;
	u32a *d = row32(w, in->d);
	uint64_t value[LANES];
	uint32_t out[LANES], all = 0;

	EACH_LANE(value[l] = in->size == 8 ? ((const u64a *)row64(w, in->a))[l]
	                                   : ((const u32a *)row32(w, in->a))[l]);
	EACH_LANE(out[l] = 0;
	          for (uint32_t k = w->m; k; k &= k - 1)
	              out[l] |= (uint32_t)(value[__builtin_ctz(k)] == value[l]) << __builtin_ctz(k);
	          all |= (uint32_t)(out[l] == w->m) << l);
	EACH_LANE(d[l] = in->sub ? (all ? w->m : 0) : out[l]);
	pred_set(w, in->x[0], all);
}

void op_redux(struct warp *w, const struct insn *in)
{
	if (!members(w, in))
		return;
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a);
	uint32_t r = a[__builtin_ctz(w->m)];

	for (uint32_t left = w->m & (w->m - 1); left; left &= left - 1) {
		uint32_t v = a[__builtin_ctz(left)];
		bool less = in->type == T_S32 ? (int32_t)v < (int32_t)r : v < r;

		switch (in->sub) {
		case REDUX_ADD: r += v; break;
		case REDUX_MIN: r = less ? v : r; break;
		case REDUX_MAX: r = less ? r : v; break;
		case REDUX_AND: r &= v; break;
		case REDUX_OR: r |= v; break;
		default: r ^= v;
		}
	}
	EACH_LANE(d[l] = r);
}

void op_elect(struct warp *w, const struct insn *in)
{
	if (!members(w, in))
		return;
	u32a *d = row32(w, in->d);
	uint32_t leader = (uint32_t)__builtin_ctz(w->m);

	EACH_LANE(d[l] = leader);
	pred_set(w, in->x[0], 1u << leader);
}
