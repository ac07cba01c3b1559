/* mma on bfloat16 fragments (PTX ISA, 9.7.14.5); other tensor core types are not served. */
#include "mma.h"
#include "ops.h"
#include "parse.h"

#include <string.h>

/* The inner dimension of a shape that we multiply; 0: valid PTX, but not served. */
static uint8_t served(const struct statement *s)
{
	static const char *const rest[] = {".row", ".col", ".f32", ".bf16", ".bf16", ".f32"};

	if (s->nwords != 10)
		return 0;
	for (uint32_t i = 0; i < 6; i++)
		if (strcmp(s->word[4 + i], rest[i]) != 0)
			return 0;
	return strcmp(s->word[3], ".m16n8k16") == 0 ? 16 : strcmp(s->word[3], ".m16n8k8") == 0 ? 8 : 0;
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
	uint8_t k = served(s);

	if (s->nwords < 3 || strcmp(s->word[1], ".sync") != 0 || strcmp(s->word[2], ".aligned") != 0)
		decode_wrong(p, s, "Modifiers are missing");
	if (!k)
		ptx_fail(p->m, s->line, PTX_NOT_SUPPORTED, "the simulator does not execute '%s'", s->opcode);
	need_feature(p, s, ".bf16", 80, 70);
	need_operands(p, s, 4, 4);
	struct mma *f = ptx_alloc(p->m, sizeof *f);

	f->k = k;
	fragment(p, s, 0, T_F32, 4, f->d);
	fragment(p, s, 1, T_B32, k / 4, f->a);
	fragment(p, s, 2, T_B32, k / 8, f->b);
	fragment(p, s, 3, T_F32, 4, f->c);
	struct insn *in = emit(p, op_mma, s->line, s->guard);

	in->mma = f;
	in->d = f->d[0];
	in->computes = 32;
}
