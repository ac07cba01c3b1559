/*
 * The PTX interpreter: what its parts share.
 *
 * A module's text is read once (lex.c, parse*.c) and each instruction becomes a
 * struct insn: a handler and operands that are already resolved to rows
 * (decode*.c). A launch runs blocks on all cores (pool.c); a block steps its
 * warps (block.c); a warp runs 32 threads in lockstep as long as they agree and
 * as separate groups where they do not (warp.c).
 *
 * A register is a row of 32 values, one for each lane of the warp. There are
 * three files of rows – 32-bit (narrower registers too), 64-bit, and predicates,
 * whose row is one 32-bit mask – and each call of a device function gets its own
 * window in each file. Because a lane always has the same column, groups of one
 * warp that stand in different functions never touch each other's values.
 */
#ifndef PTX_H
#define PTX_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 32
#define FULL 0xffffffffu
#define ROW32 ((uint32_t)(LANES * 4))
#define ROW64 ((uint32_t)(LANES * 8))

/* CUresult values that the interpreter answers. */
enum {
	PTX_OK = 0,
	PTX_INVALID_VALUE = 1,
	PTX_OUT_OF_MEMORY = 2,
	PTX_NO_BINARY = 209,
	PTX_INVALID = 218,
	PTX_UNSUPPORTED_VERSION = 222,
	PTX_ILLEGAL_ADDRESS = 700,
	PTX_TIMEOUT = 702,
	PTX_ASSERT = 710,
	PTX_STACK = 714,
	PTX_ILLEGAL_INSTRUCTION = 715,
	PTX_MISALIGNED = 716,
	PTX_LAUNCH_FAILED = 719,
	PTX_NOT_SUPPORTED = 801,
};

enum type {
	T_NONE, T_B8, T_U8, T_S8, T_B16, T_U16, T_S16, T_F16, T_BF16, T_B32, T_U32, T_S32,
	T_F32, T_F16X2, T_BF16X2, T_B64, T_U64, T_S64, T_F64, T_PRED,
};
unsigned type_size(enum type t); /* bytes; a predicate has 0 */
enum type type_named(const char *name);

enum space { SP_GENERIC, SP_GLOBAL, SP_CONST, SP_SHARED, SP_LOCAL, SP_PARAM, SP_REG };

/* Modifiers of an instruction that its handler looks at. */
enum {
	F_RN = 1 << 0, F_RZ = 1 << 1, F_RM = 1 << 2, F_RP = 1 << 3,
	F_FTZ = 1 << 4, F_SAT = 1 << 5, F_NAN = 1 << 6, F_INT = 1 << 7, /* .rni, .rzi, … */
	F_CC = 1 << 8, F_ABS = 1 << 9, F_RELU = 1 << 10,
	F_ROUND = F_RN | F_RZ | F_RM | F_RP,
};

struct warp;
struct insn;
struct func;
typedef void op_fn(struct warp *w, const struct insn *in);

/*
 * Where a 32- or 64-bit operand lives: a byte offset in the register window or,
 * with REF_CONST, in the module's constants. Predicates: row number × 2, plus 1
 * where it is negated.
 */
typedef uint32_t ref;
#define REF_CONST 0x80000000u
#define REF_NONE 0xffffffffu

struct insn {
	op_fn *fn;
	ref guard; /* REF_NONE: unconditional */
	ref d, a, b, c, e;
	ref x[4]; /* elements of a vector */
	uint16_t flags;
	uint8_t type, type2;
	uint8_t space, vec, size, sub; /* size of one element; sub: the handler's own */
	bool wide_address; /* address operand is 64-bit */
	uint8_t computes;  /* 32, 64: d is the result of floating-point arithmetic, of that many bits */
	uint32_t line;
	int64_t imm;
	union {
		const struct insn *target;
		uint32_t target_index;
		struct call *call;
		struct table *table;
		struct mma *mma;
	};
};

/* How a name is seen by texts that are linked; of several weak ones the first counts. */
enum linkage { LOCAL, VISIBLE, WEAK, EXTERNAL };

struct var {
	const char *name;
	enum space space;
	enum type type;
	uint32_t align;
	uint64_t size;
	uint64_t address;  /* global, const: device address; otherwise an offset */
	uint8_t *host;     /* of global and const */
	bool external;     /* .extern: dynamic shared memory, or undefined */
	enum linkage linkage;
	bool hidden;       /* local to a text before this one */
	ref row32, row64;  /* rows that hold the address; REF_NONE until one is needed */
	ref reg;           /* a parameter that is a register */
	struct func *owner; /* NULL: of the module */
	struct var *next, *next_shared;
};

struct call { /* operands of a call, and the function */
	struct func *func; /* NULL: indirect, through insn.a */
	uint32_t nargs, nrets;
	struct arg {
		enum space space; /* SP_LOCAL (a .param variable) or SP_REG */
		enum type type;
		uint64_t offset;
		ref reg;
		uint64_t size;
	} *args, *rets;
};

struct table { /* of brx.idx */
	uint32_t n;
	const struct insn **target;
	const char **label;
};

struct func {
	const char *name;
	bool entry, defined;
	enum linkage linkage;
	bool hidden; /* local to a text before this one */
	struct var *params, *rets; /* linked lists, in order */
	uint32_t nparams, nrets, param_size;
	struct insn *code;
	uint32_t ncode, capcode;
	uint32_t n32, n64, npred; /* rows of one window */
	uint64_t local_size;      /* .local and .param variables of one frame */
	uint64_t shared_size;     /* of this function's own */
	uint64_t shared_used;     /* of the module's: up to the end of the last variable that it names */
	uint32_t maxntid[3], reqntid[3], mincta, max_registers;
	uint32_t index;           /* in the module; its "address" derives from it */
	bool calls;
	op_fn *builtin;           /* vprintf, __assertfail */
	struct func *next;
};

/* What a module asks of whoever loads it: device memory for its variables. */
struct ptx_host {
	void *owner;
	int (*alloc)(void *owner, uint64_t size, uint32_t align, bool readonly, uint64_t *address,
	             uint8_t **host);
	void (*free)(void *owner, uint64_t address);
	uint32_t cc;          /* 90: compute capability 9.0 */
	uint32_t ptx_version; /* the newest that is understood: 90 is 9.0 */
	uint64_t shared_limit;
	bool partial; /* .extern functions and variables may stay undefined: nothing will run */
};

struct chunk;
struct module {
	struct chunk *chunks; /* everything that the module owns */
	size_t allocated;
	struct ptx_host host;
	struct var *globals, *shared;
	struct func *funcs;
	uint32_t nfuncs;
	struct func **by_index;
	uint8_t *consts;
	uint32_t nconsts, capconsts; /* bytes */
	uint32_t *const_hash;
	uint32_t const_slots, const_count;
	uint32_t version, target, address_size;
	uint32_t max_registers; /* of a thread; 0: what the hardware has */
	uint64_t shared_module;  /* module-scope and device functions' shared variables */
	uint64_t shared_dynamic; /* offset where dynamic shared memory begins */
	char error[512];
	uint32_t error_line;
	int error_code;
	jmp_buf *fail;
};

/*
 * ptx_load reads text (len bytes). It returns 0 and *out, or a CUresult and, in
 * log, a message that names the line.
 */
int ptx_load(const char *text, size_t len, const struct ptx_host *host, struct module **out,
             char *log, size_t log_size);
void ptx_unload(struct module *m);
struct func *ptx_entry(const struct module *m, const char *name);
struct var *ptx_global(const struct module *m, const char *name);
/* Bytes of shared memory that a kernel has without what is sized at launch, and of the module's constants. */
uint64_t ptx_static_shared(const struct module *m, const struct func *f);
uint64_t ptx_const_size(const struct module *m);

void *ptx_alloc(struct module *m, size_t size); /* zeroed; fails through m->fail */
char *ptx_copy(struct module *m, const char *s, size_t len);
_Noreturn void ptx_fail(struct module *m, uint32_t line, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Memory that a launch may use, sorted by address. */
struct extent {
	uint64_t address, size;
	uint8_t *host;
	bool readonly;
	struct stuck { bool is; uint8_t byte, bit, value; } stuck; /* a bit in it that cannot be written */
};

struct ptx_launch {
	const struct func *func;
	const struct module *module;
	uint32_t grid[3], block[3];
	uint32_t shared;        /* dynamic, bytes */
	const uint8_t *params;  /* func->param_size bytes */
	const struct extent *extents;
	size_t nextents;
	uint64_t stack;         /* bytes of local memory of one thread, at least */
	uint32_t sm_count;
	uint64_t instruction_limit; /* 0: none */
	int64_t watchdog_ms;        /* 0: none */
	struct wrong {              /* a GPU that computes wrong */
		uint64_t every;     /* 0: it does not */
		uint32_t bit;
		uint64_t *results;  /* so far */
	} wrong;
};

#define PTX_MESSAGE 512
struct ptx_result {
	int code;
	uint64_t instructions; /* executed by threads */
	char message[PTX_MESSAGE]; /* what went wrong, where */
};

void ptx_run(const struct ptx_launch *launch, struct ptx_result *result);

/*
 * Where shared, local and parameter memory lie in the generic address space: in
 * a reservation of our own, so that no pointer of the host program equals one.
 */
#define WINDOW_SIZE (16u << 20)
struct windows { uint64_t shared, local, param; };
extern struct windows ptx_windows;
void ptx_reserve_windows(void);

/* The "address" of a device function: never mapped. */
#define FUNC_ADDRESS 0x10000u
#define FUNC_STRIDE 16u

#endif
