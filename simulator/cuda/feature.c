/* What an instruction needs of the module's .target and .version (PTX ISA, "Target ISA Notes"). */
#include "parse.h"

void need_feature(struct parser *p, const struct statement *s, const char *feature, uint32_t target, uint32_t version)
{
	if (p->m->target < target)
		ptx_fail(p->m, s->line, PTX_INVALID, "Feature '%s' requires .target sm_%u or higher", feature, target);
	if (p->m->version < version)
		ptx_fail(p->m, s->line, PTX_INVALID, "Feature '%s' requires PTX ISA .version %u.%u or later", feature,
		         version / 10, version % 10);
}

/* Between bfloat16 and single precision from sm_80 on, with any other type from sm_90 on. */
void need_bfloat_cvt(struct parser *p, const struct statement *s, enum type to, enum type from)
{
	if (to == T_BF16X2 || (to == T_BF16 && from == T_F32))
		need_feature(p, s, ".bf16", 80, 70);
	else if (to == T_F32 && from == T_BF16)
		need_feature(p, s, "cvt with .f32.bf16", 80, 71);
	else if (to == T_BF16 || from == T_BF16)
		need_feature(p, s, "cvt with .bf16", 90, 78);
}
