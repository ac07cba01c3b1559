/* mma of floating-point fragments (PTX ISA, 9.7.14.5); other tensor core types are not served. */
#include "mma.h"
#include "ops.h"
#include "parse.h"

#include <string.h>

static const struct served {
	const char *shape, *types; /* of d, a, b, c */
	const char *feature;
	uint8_t target, version; /* what the module must be for */
	uint8_t k;
	enum type type;
	bool half;
} served[] = {
	{".m16n8k8", ".f32.bf16.bf16.f32", ".bf16", 80, 70, 8, T_BF16, false},
	{".m16n8k16", ".f32.bf16.bf16.f32", ".bf16", 80, 70, 16, T_BF16, false},
	{".m16n8k8", ".f32.f16.f16.f32", "mma with shape .m16n8k8", 75, 65, 8, T_F16, false},
	{".m16n8k16", ".f32.f16.f16.f32", "mma with shape .m16n8k16", 80, 70, 16, T_F16, false},
	{".m16n8k8", ".f16.f16.f16.f16", "mma with shape .m16n8k8", 75, 65, 8, T_F16, true},
	{".m16n8k16", ".f16.f16.f16.f16", "mma with shape .m16n8k16", 80, 70, 16, T_F16, true},
	{".m16n8k4", ".f32.tf32.tf32.f32", ".tf32", 80, 70, 4, T_F32, false},
	{".m16n8k8", ".f32.tf32.tf32.f32", ".tf32", 80, 70, 8, T_F32, false},
};

/* NULL: valid PTX, but not served. */
static const struct served *find_served(const struct statement *s)
{
	char types[64] = "";

	if (s->nwords != 10 || strcmp(s->word[4], ".row") != 0 || strcmp(s->word[5], ".col") != 0)
		return NULL;
	for (uint32_t i = 6; i < 10; i++)
		if (strlen(s->word[i]) < 12)
			strcat(types, s->word[i]);
	for (size_t i = 0; i < sizeof served / sizeof *served; i++)
		if (strcmp(served[i].shape, s->word[3]) == 0 && strcmp(served[i].types, types) == 0)
			return &served[i];
	return NULL;
}

static void fragment(struct parser *p, const struct statement *s, uint32_t at, enum type t, uint32_t n, ref *rows)
{
	struct operand *o = s->op[at];

	if (o->kind != OP_VECTOR || o->n != n)
		decode_wrong(p, s, "Arguments mismatch");
	for (uint32_t i = 0; i < n; i++)
		rows[i] = at == 0 ? decode_dest(p, s, &o->item[i], t) : decode_source(p, s, &o->item[i], t);
}

void decode_mma(struct parser *p, struct statement *s)
{
	const struct served *form = find_served(s);

	if (s->nwords < 3 || strcmp(s->word[1], ".sync") != 0 || strcmp(s->word[2], ".aligned") != 0)
		decode_wrong(p, s, "Modifiers are missing");
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
	fragment(p, s, 0, sum, f->nc, f->d);
	fragment(p, s, 1, T_B32, f->na, f->a);
	fragment(p, s, 2, T_B32, f->nb, f->b);
	fragment(p, s, 3, sum, f->nc, f->c);
	struct insn *in = emit(p, op_mma, s->line, s->guard);

	in->mma = f;
	in->d = f->d[0];
	in->computes = form->half ? 0 : 32;
}
