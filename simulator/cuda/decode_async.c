/*
 * cp.async, the copy from global to shared memory that compilers emit for pipelines (PTX ISA,
 * 9.7.8.22). The copy is done when it is issued, which is one of the moments that the ISA
 * allows, so that waiting for it is nothing. ldmatrix, which follows it, is here, too.
 */
#include "ops.h"
#include "parse.h"

#include <string.h>

static bool is_one_of(const char *word, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], word) == 0)
			return true;
	return false;
}
#define ONE_OF(word, list) is_one_of(word, list, sizeof(list) / sizeof *(list))

/* A row with the whole address. */
static ref source_address(struct parser *p, const struct statement *s, struct operand *o)
{
	struct insn in = {.a = REF_NONE, .space = SP_GLOBAL};

	decode_address(p, s, &in, o);
	if (in.imm == 0)
		return in.a;
	ref d = new_row(p, T_U64), offset = const64(p->m, (uint64_t)in.imm);
	struct insn *lea = emit(p, op_lea64, s->line, s->guard);

	lea->d = d;
	lea->a = in.a;
	lea->b = offset;
	return d;
}

void decode_async(struct parser *p, struct statement *s)
{
	static const char *const hints[] = {".L2::64B", ".L2::128B", ".L2::256B"}, *const shared[] = {".shared", ".shared::cta"};
	const char *what = s->nwords > 2 ? s->word[2] : "";
	bool all = s->nwords == 3 && strcmp(what, ".wait_group") != 0;

	if (s->nwords < 3 || strcmp(s->word[1], ".async") != 0)
		fail_decode(p, s, "Unknown modifier");
	need_feature(p, s, "cp.async", 80, 70);
	if (s->nwords == 3) {
		if (all && strcmp(what, ".commit_group") != 0 && strcmp(what, ".wait_all") != 0)
			fail_decode(p, s, "Unknown modifier");
		need_operands(p, s, !all, !all);
		if (!all && s->op[0]->kind != OP_INT)
			fail_decode(p, s, "A constant is needed");
		emit(p, op_nop, s->line, s->guard);
		return;
	}
	bool cg = strcmp(what, ".cg") == 0, hint = s->nwords == 6 && ONE_OF(s->word[5], hints);

	if ((!cg && strcmp(what, ".ca") != 0) || s->nwords != 5u + hint || !ONE_OF(s->word[3], shared) ||
	    strcmp(s->word[4], ".global") != 0)
		fail_decode(p, s, "Unknown modifier");
	need_operands(p, s, 3, 4);
	uint64_t size = s->op[2]->kind == OP_INT ? s->op[2]->bits : 0;

	if (size != 16 && (cg || (size != 4 && size != 8)))
		fail_decode(p, s, "Arguments mismatch");
	struct insn to = {.a = REF_NONE, .space = SP_SHARED};

	decode_address(p, s, &to, s->op[0]);
	ref b = source_address(p, s, s->op[1]), c = s->nops == 4 ? decode_source(p, s, s->op[3], T_U32) : REF_NONE;
	struct insn *in = emit(p, op_copy, s->line, s->guard);

	in->a = to.a;
	in->imm = to.imm;
	in->wide_address = to.wide_address;
	in->space = to.space;
	in->b = b;
	in->c = c;
	in->size = (uint8_t)size;
}

void decode_ldmatrix(struct parser *p, struct statement *s)
{
	static const char *const before[] = {".sync", ".aligned", ".m8n8"}, *const shared[] = {".shared", ".shared::cta"};
	bool trans = s->nwords == 8 && strcmp(s->word[5], ".trans") == 0, right = s->nwords == 7u + trans;

	for (uint32_t i = 0; i < 3 && right; i++)
		right = strcmp(s->word[1 + i], before[i]) == 0;
	unsigned n = !right                             ? 0
	             : strcmp(s->word[4], ".x1") == 0   ? 1
	             : strcmp(s->word[4], ".x2") == 0   ? 2
	             : strcmp(s->word[4], ".x4") == 0   ? 4
	                                                : 0;

	if (!n || !ONE_OF(s->word[5 + trans], shared) || strcmp(s->word[6 + trans], ".b16") != 0)
		fail_decode(p, s, "Unknown modifier");
	need_feature(p, s, "ldmatrix", 75, 65);
	need_operands(p, s, 2, 2);
	struct insn from = {.a = REF_NONE, .space = SP_SHARED};

	if (s->op[0]->kind != OP_VECTOR || s->op[0]->n != n)
		fail_decode(p, s, "Arguments mismatch");
	ref x[4] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE};

	for (unsigned i = 0; i < n; i++)
		x[i] = decode_dest(p, s, &s->op[0]->item[i], T_B32);
	decode_address(p, s, &from, s->op[1]);
	struct insn *in = emit(p, op_ldmatrix, s->line, s->guard);

	memcpy(in->x, x, sizeof x);
	in->d = x[0];
	in->a = from.a;
	in->imm = from.imm;
	in->wide_address = from.wide_address;
	in->space = from.space;
	in->vec = (uint8_t)n;
	in->sub = trans;
}
