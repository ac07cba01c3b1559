/* Blocks and warps while they run. */
#ifndef WARP_H
#define WARP_H

#include "ptx.h"

#include <stdatomic.h>

#define MAX_WARPS 32
#define BARRIERS 16
#define MAX_DEPTH 1024 /* of calls */

/* Why a group stands still. */
enum group_state { G_RUN, G_BARRIER, G_TOGETHER };

/* A call that has not returned. Groups that split inside a function share it. */
struct frame {
	struct frame *up;
	const struct func *func;
	const struct insn *call; /* execution goes on after it */
	uint32_t base32, base64, basep; /* first byte, or predicate, of the window */
	uint64_t local;          /* first byte of the frame in each lane's local memory */
	uint32_t refs, depth;
};

struct group { /* lanes that stand at the same place */
	uint32_t mask;
	const struct insn *pc;
	struct frame *frame;
	enum group_state state;
	uint8_t barrier;
	const struct insn *waiting; /* bar.red: where its result goes */
	uint32_t wanted; /* lanes that a .sync waits for */
};

enum stop { S_NONE, S_GROUPS, S_FAULT };

struct block;
struct warp {
	/* Of the group that runs. */
	uint8_t *r32, *r64;   /* register windows */
	uint32_t *p;
	const uint8_t *consts;
	uint32_t m;           /* lanes that this instruction is for */
	uint32_t active;      /* lanes of the group */
	const struct insn *pc;
	enum stop stop;
	struct frame *frame;
	uint32_t carry;       /* condition code register, one bit a lane */
	uint64_t executed;    /* instructions since the group was entered */
	struct extent near;   /* the memory that was used last */

	struct block *block;
	uint32_t index, live; /* lanes that have not exited */
	int current, ngroups;
	struct group group[LANES];
	uint32_t fairness, ticks;
	uint8_t *file32, *file64; /* whole register files */
	uint32_t *filep;
	size_t cap32, cap64, capp; /* bytes, bytes, masks */
	uint8_t *local;       /* LANES × block->stride */
};

struct barrier {
	uint32_t arrived, expected; /* expected 0: all that live */
	uint32_t popc, all, any;    /* of bar.red */
};

struct run; /* one launch, pool.c */
struct block {
	struct run *run;
	const struct ptx_launch *launch;
	uint32_t ctaid[3];
	uint32_t nwarps, live; /* threads that have not exited */
	uint64_t stride;       /* bytes of local memory of one thread */
	uint8_t *shared;
	uint64_t shared_size;
	struct barrier barrier[BARRIERS];
	struct warp *warp;
	struct frame *free_frames;
	uint64_t instructions;
	uint32_t sm;
	size_t local_bytes;
};

/* block.c */
int block_prepare(struct block *b, struct run *run, uint32_t sm);
void block_run(struct block *b, uint64_t linear);
void block_release(struct block *b);
void barrier_arrive(struct warp *w, uint32_t id, uint32_t expected, uint32_t threads);
void barrier_recheck(struct block *b);

/* Changes of place after which a warp lets others have their turn. */
#define TICKS 4096

/* warp.c */
void warp_start(struct warp *w, uint32_t index, uint32_t lanes);
/* Runs until nothing in the warp can go on, or its time slice is over; true if anything ran. */
bool warp_run(struct warp *w);
void warp_exit_lanes(struct warp *w, uint32_t mask);
struct group *warp_split(struct warp *w, uint32_t mask, const struct insn *pc);
bool warp_push(struct warp *w, const struct func *f, const struct insn *call);
void warp_load(struct warp *w); /* window pointers after frame has changed */
bool warp_gather(struct warp *w, const struct insn *in, uint32_t wanted);
void frame_drop(struct block *b, struct frame *f);

/* pool.c */
const struct ptx_launch *run_launch(const struct run *run);
bool run_stopped(struct run *run);
/* Records the first error of the launch; every block stops soon after. */
void run_fault(struct warp *w, const struct insn *in, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Adds what a block executed; false when the launch's limit is reached. */
bool run_account(struct run *run, uint64_t instructions);

/* Registers may be read as any type of their width. */
typedef uint32_t __attribute__((may_alias)) u32a;
typedef int32_t __attribute__((may_alias)) s32a;
typedef uint64_t __attribute__((may_alias)) u64a;
typedef int64_t __attribute__((may_alias)) s64a;
typedef float __attribute__((may_alias)) f32a;
typedef double __attribute__((may_alias)) f64a;

static inline void *row32(const struct warp *w, ref r)
{
	return (r & REF_CONST) ? (uint8_t *)w->consts + (r & ~REF_CONST) : w->r32 + r;
}

static inline void *row64(const struct warp *w, ref r)
{
	return (r & REF_CONST) ? (uint8_t *)w->consts + (r & ~REF_CONST) : w->r64 + r;
}

static inline uint32_t pred_get(const struct warp *w, ref r)
{
	return w->p[r >> 1] ^ (uint32_t) - (int32_t)(r & 1);
}

static inline void pred_set(struct warp *w, ref r, uint32_t value)
{
	if (r != REF_NONE)
		w->p[r >> 1] = (w->p[r >> 1] & ~w->m) | (value & w->m);
}

/*
 * The body for each lane that the instruction is for; the whole warp is one
 * loop without branches, which the compiler turns into vector instructions
 * (rows are the same or do not overlap, so lanes do not depend on each other).
 */
#define EACH_LANE(body)                                                         \
	do {                                                                        \
		if (w->m == FULL) {                                                     \
			_Pragma("GCC ivdep") for (int l = 0; l < LANES; l++) { body; }      \
		} else {                                                                \
			for (uint32_t left_ = w->m; left_; left_ &= left_ - 1) {            \
				int l = __builtin_ctz(left_);                                   \
				body;                                                           \
			}                                                                   \
		}                                                                       \
	} while (0)

#endif
