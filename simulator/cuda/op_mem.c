/* Loads, stores, moves and addresses. */
#include "memory_ops.h"
#include "ops.h"

#include <stdatomic.h>
#include <string.h>

struct windows ptx_windows;

static const struct extent *find_extent(const struct ptx_launch *launch, uint64_t addr)
{
	size_t lo = 0, hi = launch->nextents;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct extent *e = &launch->extents[mid];

		if (addr < e->address)
			hi = mid;
		else if (addr - e->address >= e->size)
			lo = mid + 1;
		else
			return e;
	}
	return NULL;
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
	return offset <= size && bytes <= size - offset;
}

static const char *const space_names[] = {"generic", "global", "const", "shared", "local", "param", "reg"};

static uint8_t *out_of_bounds(struct warp *w, const struct insn *in, int lane, enum space space,
                              uint64_t addr, unsigned bytes, bool write)
{
	run_fault(w, in, PTX_ILLEGAL_ADDRESS, "%s of %u bytes at %s address 0x%llx by lane %d is out of bounds",
	          write ? "store" : "load", bytes, space_names[space], (unsigned long long)addr, lane);
	return NULL;
}

/* What is read is what is there, but for the bit that is stuck; the next who reads finds it so again. */
__attribute__((cold)) static uint8_t *stuck_memory(const struct extent *e, uint64_t addr)
{
	uint8_t *cell = e->host + e->stuck.byte, mask = (uint8_t)(1u << e->stuck.bit);

	if (e->stuck.value)
		__atomic_fetch_or(cell, mask, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(cell, (uint8_t)~mask, __ATOMIC_RELAXED);
	return e->host + (addr - e->address);
}

static uint8_t *global_memory(struct warp *w, const struct insn *in, int lane, uint64_t addr,
                              unsigned bytes, bool write)
{
	if (!(addr >= w->near.address && inside(addr - w->near.address, bytes, w->near.size))) {
		const struct extent *e = find_extent(w->block->launch, addr);

		if (!e || !inside(addr - e->address, bytes, e->size))
			return out_of_bounds(w, in, lane, SP_GLOBAL, addr, bytes, write);
		if (e->stuck.is && !(write && e->readonly))
			return stuck_memory(e, addr); /* and never near: every access comes here */
		w->near = *e;
	}
	if (write && w->near.readonly)
		return out_of_bounds(w, in, lane, SP_CONST, addr, bytes, write);
	return w->near.host + (addr - w->near.address);
}

uint8_t *lane_memory(struct warp *w, const struct insn *in, int lane, enum space space,
                     uint64_t addr, unsigned bytes, bool write)
{
	struct block *b = w->block;

	if (addr & (bytes - 1)) {
		run_fault(w, in, PTX_MISALIGNED, "%s of %u bytes at %s address 0x%llx by lane %d is misaligned",
		          write ? "store" : "load", bytes, space_names[space], (unsigned long long)addr, lane);
		return NULL;
	}
	if (space == SP_GENERIC) {
		if (addr - ptx_windows.shared < WINDOW_SIZE) {
			space = SP_SHARED;
			addr -= ptx_windows.shared;
		} else if (addr - ptx_windows.local < WINDOW_SIZE) {
			space = SP_LOCAL;
			addr -= ptx_windows.local;
		} else if (addr - ptx_windows.param < WINDOW_SIZE) {
			space = SP_PARAM;
			addr -= ptx_windows.param;
		}
	}
	switch (space) {
	case SP_SHARED:
		if (inside(addr, bytes, b->shared_size))
			return b->shared + addr;
		break;
	case SP_LOCAL:
		if (inside(addr, bytes, b->stride))
			return w->local + (uint64_t)lane * b->stride + addr;
		break;
	case SP_PARAM:
		if (!write && inside(addr, bytes, b->launch->func->param_size))
			return (uint8_t *)b->launch->params + addr;
		break;
	default:
		return global_memory(w, in, lane, addr, bytes, write);
	}
	return out_of_bounds(w, in, lane, space, addr, bytes, write);
}

/* Other cores may write the same word: a load or store is never torn. */
static uint64_t read_value(const uint8_t *p, unsigned size)
{
	switch (size) {
	case 1: return __atomic_load_n(p, __ATOMIC_RELAXED);
	case 2: return __atomic_load_n((const uint16_t *)(const void *)p, __ATOMIC_RELAXED);
	case 4: return __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_RELAXED);
	default: return __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_RELAXED);
	}
}

static void write_value(uint8_t *p, uint64_t v, unsigned size)
{
	switch (size) {
	case 1: __atomic_store_n(p, (uint8_t)v, __ATOMIC_RELAXED); break;
	case 2: __atomic_store_n((uint16_t *)(void *)p, (uint16_t)v, __ATOMIC_RELAXED); break;
	case 4: __atomic_store_n((uint32_t *)(void *)p, (uint32_t)v, __ATOMIC_RELAXED); break;
	default: __atomic_store_n((uint64_t *)(void *)p, v, __ATOMIC_RELAXED);
	}
}

static uint64_t extend(uint64_t v, enum type t, bool wide)
{
	switch (t) {
	case T_S8: v = (uint64_t)(int64_t)(int8_t)v; break;
	case T_S16: v = (uint64_t)(int64_t)(int16_t)v; break;
	case T_S32: v = (uint64_t)(int64_t)(int32_t)v; break;
	default: break;
	}
	return wide ? v : (uint32_t)v;
}

static void set_lane(struct warp *w, ref row, bool wide, int lane, uint64_t v)
{
	if (wide)
		((u64a *)row64(w, row))[lane] = v;
	else
		((u32a *)row32(w, row))[lane] = (uint32_t)v;
}

static uint64_t get_lane(const struct warp *w, ref row, bool wide, int lane)
{
	return wide ? ((const u64a *)row64(w, row))[lane] : ((const u32a *)row32(w, row))[lane];
}

#define EACH_ADDRESS(bytes, write, body)                                                    \
	for (uint32_t left = w->m; left; left &= left - 1) {                                    \
		int l = __builtin_ctz(left);                                                        \
		uint8_t *p = lane_memory(w, in, l, in->space, lane_address(w, in, l), bytes, write);\
		if (!p)                                                                             \
			return;                                                                         \
		body;                                                                               \
	}

void op_ld(struct warp *w, const struct insn *in)
{
	EACH_ADDRESS(in->size * (unsigned)in->vec, false,
	             uint64_t v[4];
	             for (unsigned k = 0; k < in->vec; k++) v[k] = read_value(p + k * in->size, in->size);
	             for (unsigned k = 0; k < in->vec; k++)
	                 set_lane(w, in->x[k], in->sub, l, extend(v[k], in->type, in->sub)))
}

void op_st(struct warp *w, const struct insn *in)
{
	EACH_ADDRESS(in->size * (unsigned)in->vec, true,
	             for (unsigned k = 0; k < in->vec; k++)
	                 write_value(p + k * in->size, get_lane(w, in->x[k], in->sub, l), in->size))
}

void op_ld32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	EACH_ADDRESS(4, false, d[l] = (uint32_t)read_value(p, 4))
}

void op_ld64(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	EACH_ADDRESS(8, false, d[l] = read_value(p, 8))
}

void op_st32(struct warp *w, const struct insn *in)
{
	const u32a *d = row32(w, in->d);
	EACH_ADDRESS(4, true, write_value(p, d[l], 4))
}

void op_st64(struct warp *w, const struct insn *in)
{
	const u64a *d = row64(w, in->d);
	EACH_ADDRESS(8, true, write_value(p, d[l], 8))
}

/* A kernel's parameter: the same for all lanes. */
void op_ld_param(struct warp *w, const struct insn *in)
{
	unsigned bytes = in->size * (unsigned)in->vec;
	const uint8_t *p = lane_memory(w, in, __builtin_ctz(w->m), SP_PARAM, (uint64_t)in->imm, bytes, false);

	for (unsigned k = 0; p && k < in->vec; k++) {
		uint64_t v = extend(read_value(p + k * in->size, in->size), in->type, in->sub);

		EACH_LANE(set_lane(w, in->x[k], in->sub, l, v));
	}
}

void op_mov32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a);
	EACH_LANE(d[l] = a[l]);
}

void op_mov64(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a);
	EACH_LANE(d[l] = a[l]);
}

void op_lea32(struct warp *w, const struct insn *in)
{
	u32a *d = row32(w, in->d);
	const u32a *a = row32(w, in->a), *b = row32(w, in->b);
	EACH_LANE(d[l] = a[l] + b[l]);
}

void op_lea64(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a), *b = row64(w, in->b);
	EACH_LANE(d[l] = a[l] + b[l]);
}

void op_movp(struct warp *w, const struct insn *in) { pred_set(w, in->d, pred_get(w, in->a)); }
void op_movp_const(struct warp *w, const struct insn *in) { pred_set(w, in->d, in->imm ? FULL : 0); }

void op_local_address(struct warp *w, const struct insn *in)
{
	uint64_t v = w->frame->local + (uint64_t)in->imm;

	EACH_LANE(set_lane(w, in->d, in->size == 8, l, v));
}

void op_pack(struct warp *w, const struct insn *in)
{
	EACH_LANE(uint64_t v = 0;
	          for (unsigned k = 0; k < in->vec; k++) {
	              uint64_t part = get_lane(w, in->x[k], false, l);

	              v |= (in->size == 4 ? part : part & ((1u << in->size * 8) - 1)) << (k * in->size * 8);
	          }
	          set_lane(w, in->d, in->sub == 8, l, v));
}

void op_unpack(struct warp *w, const struct insn *in)
{
	EACH_LANE(uint64_t v = get_lane(w, in->a, in->sub == 8, l);
	          for (unsigned k = 0; k < in->vec; k++) {
	              uint64_t part = v >> (k * in->size * 8);

	              if (in->x[k] != REF_NONE)
	                  set_lane(w, in->x[k], false, l,
	                           in->size == 4 ? part : part & ((1u << in->size * 8) - 1));
	          });
}

static uint64_t window_of(enum space space)
{
	return space == SP_SHARED  ? ptx_windows.shared
	       : space == SP_LOCAL ? ptx_windows.local
	       : space == SP_PARAM ? ptx_windows.param
	                           : 0;
}

void op_cvta_from(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a);
	uint64_t window = window_of(in->space);
	EACH_LANE(d[l] = a[l] + window);
}

void op_cvta_to(struct warp *w, const struct insn *in)
{
	u64a *d = row64(w, in->d);
	const u64a *a = row64(w, in->a);
	uint64_t window = window_of(in->space);
	EACH_LANE(d[l] = a[l] - window);
}

void op_isspacep(struct warp *w, const struct insn *in)
{
	const u64a *a = row64(w, in->a);
	uint32_t bits = 0;

	for (int l = 0; l < LANES; l++) {
		uint64_t addr = a[l];
		bool is[] = {[SP_SHARED] = addr - ptx_windows.shared < WINDOW_SIZE,
		             [SP_LOCAL] = addr - ptx_windows.local < WINDOW_SIZE,
		             [SP_PARAM] = addr - ptx_windows.param < WINDOW_SIZE};
		const struct extent *e = find_extent(w->block->launch, addr);
		bool yes = in->space == SP_GLOBAL  ? e && !e->readonly
		           : in->space == SP_CONST ? e && e->readonly
		                                   : is[in->space];

		bits |= (uint32_t)yes << l;
	}
	pred_set(w, in->d, bits);
}

void op_fence(struct warp *w, const struct insn *in)
{
	(void)w;
	(void)in;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void op_nop(struct warp *w, const struct insn *in)
{
	(void)w;
	(void)in;
}
