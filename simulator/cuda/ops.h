/*
 * The handlers, by subject. Those of plain instructions – one result, sources
 * of fixed types – are listed in tables that name the opcode without the
 * modifiers that a handler reads from insn.flags.
 */
#ifndef OPS_H
#define OPS_H

#include "ptx.h"

/*
 * Operands of a plain instruction, the result first:
 * h r l  16, 32, 64 bits of integer       e f d  f16, f32, f64
 * x      f16x2                            p      predicate
 */
struct op {
	const char *key, *operands;
	op_fn *fn;      /* without modifiers, or with .rn alone */
	op_fn *flagged; /* with any other that is allowed; NULL: fn is for all */
	uint16_t allowed, sub;
};

extern const struct op ops_int[], ops_bits[], ops_float[], ops_half[];

op_fn op_label, op_ret, op_exit, op_bra, op_brx, op_call, op_trap, op_nop;
op_fn op_barrier, op_barrier_red, op_arrive, op_warp_sync, op_fence;
op_fn op_shfl, op_vote, op_activemask, op_match, op_redux, op_elect, op_mma, op_copy, op_ldmatrix;
op_fn op_mov32, op_mov64, op_movp, op_movp_const, op_local_address, op_pack, op_unpack, op_lea32, op_lea64;
op_fn op_selp32, op_selp64, op_cvta_to, op_cvta_from, op_isspacep;
op_fn op_ld, op_ld32, op_ld64, op_st, op_st32, op_st64, op_ld_param, op_atom;
op_fn op_cvt, op_cvt_int, op_cvt_tf32, op_cvt_pack, op_pred_logic, op_testp, op_cmp_pair;
op_fn op_vprintf, op_assertfail;

op_fn *cmp_handler(enum type t);       /* setp and set */
op_fn *fast_cvt(enum type to, enum type from); /* integers; NULL: none */

/* Comparison operators, in insn.sub of setp. */
enum { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_EQU, CMP_NEU, CMP_LTU, CMP_LEU, CMP_GTU,
       CMP_GEU, CMP_NUM, CMP_NAN };
enum { BOOL_NONE, BOOL_AND, BOOL_OR, BOOL_XOR };

#endif
