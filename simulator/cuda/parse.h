/* What the parser hands to the decoder. */
#ifndef PARSE_H
#define PARSE_H

#include "lex.h"

#define MAX_OPERANDS 8
#define MAX_WORDS 16

/* A declared family of registers: %r<10>, or one register (count 0). */
struct regs {
	const char *prefix;
	uint32_t prefix_len, count;
	enum type type;
	struct regs *next;
};

struct reg { /* one that is used */
	const char *name;
	uint32_t len;
	uint64_t hash;
	enum type type;
	ref row; /* byte offset, or predicate number × 2 */
	struct reg *next;
};

struct label {
	const char *name;
	uint32_t len, index;
	bool defined;
	struct table *table; /* .branchtargets */
	struct label *next;
};

struct scope { /* { … } */
	struct regs *regs;
	struct reg *used[64];
	struct var *vars;
	struct label *labels;
	struct scope *up;
	struct scope *all; /* of the function */
};

struct fixup { /* a branch whose label may still come */
	uint32_t insn, line;
	const char *name;
	uint32_t len;
	struct scope *scope;
	struct table *table; /* instead of the instruction's target */
	uint32_t entry;
	struct fixup *next;
};

enum operand_kind {
	OP_REG, OP_PRED, OP_INT, OP_F32, OP_F64, OP_SPECIAL, OP_VAR, OP_FUNC, OP_LABEL, OP_SINK,
	OP_VECTOR, OP_MEMORY, OP_LIST,
};

struct operand {
	enum operand_kind kind;
	enum type type;  /* of a register */
	ref row;         /* of a register; a negated predicate has bit 0 set */
	uint64_t bits;   /* of a constant */
	int64_t offset;  /* MEMORY: [base + offset]; VAR: var + offset */
	struct var *var;
	struct func *func;
	int special;
	const char *name; /* LABEL */
	uint32_t len;
	uint32_t n;      /* VECTOR and LIST */
	struct operand *item;
	struct operand *base; /* MEMORY: register, variable or constant */
	struct operand *second; /* p|q */
	bool negated;
};

struct statement {
	uint32_t line;
	ref guard;
	const char *opcode;  /* whole, with dots, NUL-terminated */
	const char *word[MAX_WORDS]; /* word[0] is the base; the others begin with a dot */
	uint32_t nwords;
	struct operand *op[MAX_OPERANDS];
	uint32_t nops;
};

struct parser {
	struct module *m;
	struct lexer lx;
	struct token t; /* the one being looked at */
	struct func *f; /* whose body this is */
	struct scope *scope, *scopes;
	struct fixup *fixups;
	int depth;
};

/* parse.c */
void parse_module(struct parser *p);
void parse_next(struct parser *p);
bool parse_accept(struct parser *p, const char *text);
void parse_expect(struct parser *p, const char *text);
char *parse_name(struct parser *p);
uint64_t parse_uint(struct parser *p, uint64_t limit);
_Noreturn void parse_wrong(struct parser *p, const char *expected);
struct var *find_var(struct var *list, const char *name, size_t len);
struct func *find_func(const struct module *m, const char *name, size_t len);

/* parse_var.c: declarations of variables, and their initial values */
struct var *parse_variable(struct parser *p, enum space space, enum linkage linkage);
void parse_parameters(struct parser *p, struct func *f, bool returns);
void layout_parameters(struct func *f);

/* parse_body.c */
void parse_body(struct parser *p);
struct var *find_scoped_var(struct parser *p, const char *name, size_t len);

/* parse_operand.c */
struct operand *parse_operand(struct parser *p);
struct operand *parse_register(struct parser *p, const char *name, uint32_t len);

/* rows.c: constants and registers become rows */
ref const32(struct module *m, uint32_t value);
ref const64(struct module *m, uint64_t value);
ref new_row(struct parser *p, enum type t);
ref var_row(struct parser *p, struct var *v, bool wide);
void fill_row(struct module *m, ref row, uint64_t value, bool wide);

/* decode*.c: one statement becomes instructions */
void decode(struct parser *p, struct statement *s);
struct insn *emit(struct parser *p, op_fn *fn, uint32_t line, ref guard);
_Noreturn void fail_decode(struct parser *p, const struct statement *s, const char *why);
/* The row that holds operand o as a value of type t; adds instructions where it must be computed. */
ref decode_source(struct parser *p, const struct statement *s, struct operand *o, enum type t);
ref decode_dest(struct parser *p, const struct statement *s, struct operand *o, enum type t);
bool types_agree(enum type reg, enum type t);
ref decode_pred(struct parser *p, const struct statement *s, const struct operand *o);
void need_operands(struct parser *p, const struct statement *s, uint32_t least, uint32_t most);
void decode_memory(struct parser *p, struct statement *s);  /* ld, st, atom, red, … */
void decode_control(struct parser *p, struct statement *s); /* bra, call, bar, shfl, … */
void decode_setp(struct parser *p, struct statement *s);
void decode_cvt(struct parser *p, struct statement *s);
void decode_mma(struct parser *p, struct statement *s);
void decode_async(struct parser *p, struct statement *s);
void decode_ldmatrix(struct parser *p, struct statement *s);
/* cvt to tf32, and cvt.pack; false: it is another conversion */
bool decode_special_cvt(struct parser *p, struct statement *s);
void decode_mov(struct parser *p, struct statement *s);
/* beyond.c: what is valid PTX and not served is refused, by name */
void refuse_instruction(struct parser *p, const struct statement *s);
void refuse_name(struct parser *p, uint32_t line, const char *name, size_t len);
/* feature.c: what the module's .target or .version is too old for is refused */
void need_feature(struct parser *p, const struct statement *s, const char *feature, uint32_t target, uint32_t version);
void need_bfloat_cvt(struct parser *p, const struct statement *s, enum type to, enum type from);
/* Sets the address operand (a row and an offset) of in. */
void decode_address(struct parser *p, const struct statement *s, struct insn *in,
                    struct operand *o);

#endif
