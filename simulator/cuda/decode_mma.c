/* mma of floating-point fragments (PTX ISA, 9.7.14.5); other tensor core types are not supported. */
#include "mma.h"
#include "ops.h"
#include "parse.h"

#include <string.h>

/* The supported forms of mma. */
static const struct mma_form {
	const char *shape;
	const char *types;   /* of d, a, b, c */
	const char *feature; /* name in the error of a module that is too old for the form */
	uint8_t target;      /* minimum target of the module: 80 is sm_80 */
	uint8_t version;     /* minimum PTX version of the module × 10 */
	uint8_t k;           /* columns of a, rows of b */
	enum type type;      /* of a and b; tf32 is T_F32: each element has a 32-bit register */
	bool half;           /* c and d are f16 */
} forms[] = {
	{".m16n8k8", ".f32.bf16.bf16.f32", ".bf16", 80, 70, 8, T_BF16, false},
	{".m16n8k16", ".f32.bf16.bf16.f32", ".bf16", 80, 70, 16, T_BF16, false},
	{".m16n8k8", ".f32.f16.f16.f32", "mma with shape .m16n8k8", 75, 65, 8, T_F16, false},
	{".m16n8k16", ".f32.f16.f16.f32", "mma with shape .m16n8k16", 80, 70, 16, T_F16, false},
	{".m16n8k8", ".f16.f16.f16.f16", "mma with shape .m16n8k8", 75, 65, 8, T_F16, true},
	{".m16n8k16", ".f16.f16.f16.f16", "mma with shape .m16n8k16", 80, 70, 16, T_F16, true},
	{".m16n8k4", ".f32.tf32.tf32.f32", ".tf32", 80, 70, 4, T_F32, false},
	{".m16n8k8", ".f32.tf32.tf32.f32", ".tf32", 80, 70, 8, T_F32, false},
};

/* find_form returns the form of a statement, or NULL if the simulator does not support it. */
static const struct mma_form *find_form(const struct statement *s)
{
	char types[64] = "";

	if (s->nwords != 10 || strcmp(s->word[4], ".row") != 0 || strcmp(s->word[5], ".col") != 0)
		return NULL;
	for (uint32_t i = 6; i < 10; i++)
		if (strlen(s->word[i]) < 12) /* four of these fit into types; a longer word is no type */
			strcat(types, s->word[i]);
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (strcmp(forms[i].shape, s->word[3]) == 0 && strcmp(forms[i].types, types) == 0)
			return &forms[i];
	return NULL;
}

/* decode_fragment decodes operand `at`, a vector of n registers. Operand 0 is the destination. */
static void decode_fragment(struct parser *p, const struct statement *s, uint32_t at, enum type t, uint32_t n, ref *rows)
{
	struct operand *o = s->op[at];

	if (o->kind != OP_VECTOR || o->n != n)
		fail_decode(p, s, "Arguments mismatch");
	for (uint32_t i = 0; i < n; i++)
		rows[i] = at == 0 ? decode_dest(p, s, &o->item[i], t) : decode_source(p, s, &o->item[i], t);
}

void decode_mma(struct parser *p, struct statement *s)
{
	const struct mma_form *form = find_form(s);

	if (s->nwords < 3 || strcmp(s->word[1], ".sync") != 0 || strcmp(s->word[2], ".aligned") != 0)
		fail_decode(p, s, "Modifiers are missing");
	if (!form)
		ptx_fail(p->m, s->line, PTX_NOT_SUPPORTED, "the simulator does not execute '%s'", s->opcode);
	need_feature(p, s, form->feature, form->target, form->version);
	need_operands(p, s, 4, 4);
	struct mma *f = ptx_alloc(p->m, sizeof *f);
	unsigned each = form->type == T_F32 ? 1 : 2; /* elements in a register */
	enum type sum = form->half ? T_B32 : T_F32;

	f->k = form->k;
	f->type = form->type;
	f->half = form->half;
	f->na = (uint8_t)(MMA_M * form->k / LANES / each);
	f->nb = (uint8_t)(MMA_N * form->k / LANES / each);
	f->nc = form->half ? 2 : 4;
	decode_fragment(p, s, 0, sum, f->nc, f->d);
	decode_fragment(p, s, 1, T_B32, f->na, f->a);
	decode_fragment(p, s, 2, T_B32, f->nb, f->b);
	decode_fragment(p, s, 3, sum, f->nc, f->c);
	struct insn *in = emit(p, op_mma, s->line, s->guard);

	in->mma = f;
	/*
	 * A simulated GPU that computes wrong (warp.c) inverts a bit of in->d in an instruction with
	 * in->computes. The first register is enough to make the product wrong.
	 */
	in->d = f->d[0];
	in->computes = form->half ? 0 : 32;
}
