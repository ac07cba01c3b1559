/* cvt to tf32, and cvt.pack (PTX ISA, 9.7.8.20 and 9.7.8.21). */
#include "ops.h"
#include "parse.h"

#include <string.h>

static bool word_is(const struct statement *s, uint32_t i, const char *word)
{
	return i < s->nwords && strcmp(s->word[i], word) == 0;
}

/* cvt.rna.tf32.f32, cvt.rn{.relu}.tf32.f32, cvt.rz{.relu}.tf32.f32 */
static void decode_tf32(struct parser *p, struct statement *s)
{
	bool rna = word_is(s, 1, ".rna"), rz = word_is(s, 1, ".rz"), relu = word_is(s, 2, ".relu");

	if ((!rna && !rz && !word_is(s, 1, ".rn")) || (rna && relu) || s->nwords != 4u + relu || !word_is(s, 3u + relu, ".f32"))
		fail_decode(p, s, "Unknown modifier");
	need_feature(p, s, ".tf32", rna ? 80 : 90, rna ? 70 : 78);
	need_operands(p, s, 2, 2);
	ref d = decode_dest(p, s, s->op[0], T_B32), a = decode_source(p, s, s->op[1], T_F32);
	struct insn *in = emit(p, op_cvt_tf32, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->flags = (uint16_t)((rna ? 0 : rz ? F_RZ : F_RN) | (relu ? F_RELU : 0));
}

/* cvt.pack.sat.u16.s32 d, a, b and cvt.pack.sat.u8.s32.b32 d, a, b, c */
static void decode_pack(struct parser *p, struct statement *s)
{
	bool more = word_is(s, 5, ".b32");
	enum type to = s->nwords > 3 ? type_named(s->word[3]) : T_NONE;

	if (!word_is(s, 2, ".sat") || !word_is(s, 4, ".s32") || s->nwords != 5u + more ||
	    (more ? to != T_U8 && to != T_S8 : to != T_U16 && to != T_S16))
		fail_decode(p, s, "Unknown modifier");
	need_feature(p, s, "cvt.pack", 72, 65);
	need_operands(p, s, 3u + more, 3u + more);
	ref d = decode_dest(p, s, s->op[0], T_B32), a = decode_source(p, s, s->op[1], T_S32),
	    b = decode_source(p, s, s->op[2], T_S32), c = more ? decode_source(p, s, s->op[3], T_B32) : REF_NONE;
	struct insn *in = emit(p, op_cvt_pack, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->b = b;
	in->c = c;
	in->type = to;
}

bool decode_special_cvt(struct parser *p, struct statement *s)
{
	if (word_is(s, 1, ".pack")) {
		decode_pack(p, s);
		return true;
	}
	for (uint32_t i = 1; i < s->nwords; i++) {
		if (word_is(s, i, ".tf32")) {
			decode_tf32(p, s);
			return true;
		}
	}
	return false;
}
