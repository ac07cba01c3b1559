/* setp, set, selp, testp, cvt and mov. */
#include "ops.h"
#include "parse.h"
#include "special.h"

#include <string.h>

static int index_of(const char *word, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], word) == 0)
			return (int)i;
	return -1;
}
#define INDEX(word, list) index_of(word, list, sizeof(list) / sizeof *(list))

static bool is_real(enum type t) { return t == T_F16 || t == T_BF16 || t == T_F32 || t == T_F64; }
static bool is_pair(enum type t) { return t == T_F16X2 || t == T_BF16X2; }

/* The comparison as a handler knows it; -1 where the type has none. */
static int comparison(const char *word, enum type t)
{
	static const char *const names[] = {".eq", ".ne", ".lt", ".le", ".gt", ".ge", ".equ", ".neu",
	                                    ".ltu", ".leu", ".gtu", ".geu", ".num", ".nan"};
	static const char *const unsigned_names[] = {".lo", ".ls", ".hi", ".hs"};
	int i = INDEX(word, names);
	bool bits = t == T_B16 || t == T_B32 || t == T_B64;

	if (i >= 0)
		return (is_real(t) || is_pair(t) || i <= CMP_GE) && (!bits || i <= CMP_NE) ? i : -1;
	i = INDEX(word, unsigned_names);
	return i >= 0 && (t == T_U16 || t == T_U32 || t == T_U64) ? CMP_LT + i : -1;
}

/* What set gives where a comparison of type t holds; 0: there is no such set. */
static uint32_t set_value(enum type result, enum type t)
{
	bool half = t == T_F16 || t == T_BF16;

	switch (result) {
	case T_U32: case T_S32: case T_B32: return is_pair(t) ? 0 : 0xffffffffu;
	case T_F32: return half || is_pair(t) ? 0 : 0x3f800000u;
	case T_U16: case T_S16: return half ? 0xffffu : 0;
	case T_F16: case T_F16X2: return t == result ? 0x3c00u : 0;
	case T_BF16: case T_BF16X2: return t == result ? 0x3f80u : 0;
	default: return 0;
	}
}

static void decode_compare(struct parser *p, struct statement *s)
{
	static const char *const bools[] = {"", ".and", ".or", ".xor"};
	bool set = strcmp(s->word[0], "set") == 0;
	uint32_t i = 2;
	int how = 0;
	bool ftz = false;
	enum type result = T_PRED;

	if (s->nwords < 3)
		fail_decode(p, s, "Modifiers are missing");
	if (i < s->nwords && (how = INDEX(s->word[i], bools)) > 0)
		i++;
	if (i < s->nwords && (ftz = strcmp(s->word[i], ".ftz") == 0))
		i++;
	if (set && i < s->nwords)
		result = type_named(s->word[i++]);
	enum type t = i < s->nwords ? type_named(s->word[i++]) : T_NONE;
	op_fn *fn = cmp_handler(t);
	int cmp = comparison(s->word[1], t);

	if (i != s->nwords || !fn || cmp < 0 || (ftz && t != T_F32 && t != T_F16 && t != T_F16X2) ||
	    (set && !set_value(result, t)))
		fail_decode(p, s, "Unknown modifier");
	how = how < 0 ? 0 : how;
	need_operands(p, s, how ? 4 : 3, how ? 4 : 3);
	ref d = REF_NONE, e = REF_NONE;

	if (set) {
		d = decode_dest(p, s, s->op[0], result);
	} else {
		if (s->op[0]->kind != OP_SINK)
			d = decode_pred(p, s, s->op[0]);
		if (s->op[0]->second && s->op[0]->second->kind != OP_SINK)
			e = decode_pred(p, s, s->op[0]->second);
		if (s->op[0]->negated)
			fail_decode(p, s, "Arguments mismatch");
	}
	ref a = decode_source(p, s, s->op[1], t), b = decode_source(p, s, s->op[2], t);
	ref c = how ? decode_pred(p, s, s->op[3]) : REF_NONE;
	struct insn *in = emit(p, fn, s->line, s->guard);

	in->d = d;
	in->e = e;
	in->a = a;
	in->b = b;
	in->c = c;
	in->sub = (uint8_t)cmp;
	in->vec = (uint8_t)how;
	in->type = t;
	in->size = set ? (uint8_t)type_size(result) : 0;
	in->imm = set ? set_value(result, t) : 0;
	in->flags = ftz ? F_FTZ : 0;
}

static void decode_select(struct parser *p, struct statement *s)
{
	enum type t = s->nwords == 2 ? type_named(s->word[1]) : T_NONE;

	need_operands(p, s, 4, 4);
	if (type_size(t) < 2)
		fail_decode(p, s, "Unknown modifier");
	ref d = decode_dest(p, s, s->op[0], t), a = decode_source(p, s, s->op[1], t),
	    b = decode_source(p, s, s->op[2], t), c = decode_pred(p, s, s->op[3]);
	struct insn *in = emit(p, type_size(t) == 8 ? op_selp64 : op_selp32, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->b = b;
	in->c = c;
}

static void decode_test(struct parser *p, struct statement *s)
{
	static const char *const tests[] = {".finite", ".infinite", ".number", ".notanumber", ".normal",
	                                    ".subnormal"};
	enum type t = s->nwords == 3 ? type_named(s->word[2]) : T_NONE;
	int which = s->nwords == 3 ? INDEX(s->word[1], tests) : -1;

	need_operands(p, s, 2, 2);
	if (which < 0 || (t != T_F32 && t != T_F64))
		fail_decode(p, s, "Unknown modifier");
	ref d = decode_pred(p, s, s->op[0]), a = decode_source(p, s, s->op[1], t);
	struct insn *in = emit(p, op_testp, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->type = t;
	in->sub = (uint8_t)which;
}

void decode_setp(struct parser *p, struct statement *s)
{
	if (strcmp(s->word[0], "selp") == 0)
		decode_select(p, s);
	else if (strcmp(s->word[0], "testp") == 0)
		decode_test(p, s);
	else
		decode_compare(p, s);
}

/* A register of a conversion may be wider than the type (PTX ISA, 9.4.1). */
static ref relaxed(struct parser *p, const struct statement *s, const struct operand *o, enum type t)
{
	if (o->kind != OP_REG || type_size(o->type) < type_size(t) ||
	    (type_size(o->type) > type_size(t) && is_real(t)) || !types_agree(o->type, t))
		fail_decode(p, s, "Arguments mismatch");
	return o->row;
}

static void decode_cvt_pack(struct parser *p, struct statement *s, enum type to, uint16_t flags)
{
	need_operands(p, s, 3, 3);
	ref d = decode_dest(p, s, s->op[0], to), a = decode_source(p, s, s->op[1], T_F32),
	    b = decode_source(p, s, s->op[2], T_F32);
	struct insn *in = emit(p, op_cvt, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->b = b;
	in->type = to;
	in->flags = flags;
}

static bool cvt_modifiers(const struct statement *s, uint32_t *at, uint16_t *flags)
{
	static const char *const rounds[] = {".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rmi", ".rpi"};

	for (*flags = 0; *at < s->nwords; (*at)++) {
		int r = INDEX(s->word[*at], rounds);
		uint16_t flag = r >= 0 ? (uint16_t)(F_RN << (r & 3)) | (r > 3 ? F_INT : 0)
		                : strcmp(s->word[*at], ".ftz") == 0 ? F_FTZ
		                : strcmp(s->word[*at], ".sat") == 0 ? F_SAT
		                : strcmp(s->word[*at], ".relu") == 0 ? F_RELU
		                                                    : 0;

		if (!flag)
			return true;
		if ((*flags & flag) || (r >= 0 && (*flags & F_ROUND)))
			return false;
		*flags |= flag;
	}
	return false;
}

/* Where a rounding modifier is required, and which kind (PTX ISA, cvt). */
static bool rounding_is_right(enum type to, enum type from, uint16_t flags)
{
	bool round = flags & F_ROUND, whole = flags & F_INT;

	if (is_real(from) && !is_real(to))
		return round && whole;
	if (!is_real(from) && is_real(to))
		return round && !whole;
	if (!is_real(from))
		return !round;
	if (type_size(to) < type_size(from) || (to != from && type_size(to) == type_size(from)))
		return round && !whole;
	if (type_size(to) > type_size(from))
		return !round;
	return !round || whole;
}

void decode_cvt(struct parser *p, struct statement *s)
{
	uint32_t at = 1;
	uint16_t flags;

	if (decode_special_cvt(p, s))
		return;
	if (!cvt_modifiers(s, &at, &flags) || at + 2 != s->nwords)
		fail_decode(p, s, "Unknown modifier");
	enum type to = type_named(s->word[at]), from = type_named(s->word[at + 1]);

	if ((to == T_F16X2 || to == T_BF16X2) && from == T_F32 && (flags & (F_RN | F_RZ)) &&
	    !(flags & ~(F_RN | F_RZ | F_RELU))) {
		need_bfloat_cvt(p, s, to, from);
		decode_cvt_pack(p, s, to, flags);
		return;
	}
	if ((flags & F_RELU) && ((to != T_F16 && to != T_BF16) || from != T_F32))
		fail_decode(p, s, "Unknown modifier");
	if (to == T_NONE || from == T_NONE || to == T_F16X2 || from == T_F16X2 || to == T_BF16X2 ||
	    from == T_BF16X2 || to == T_PRED || from == T_PRED || to == T_B8 || to == T_B16 ||
	    to == T_B32 || to == T_B64 || from == T_B8 || from == T_B16 || from == T_B32 || from == T_B64)
		fail_decode(p, s, "Unknown modifier");
	need_bfloat_cvt(p, s, to, from);
	if (!rounding_is_right(to, from, flags))
		fail_decode(p, s, flags & F_ROUND ? "Illegal rounding modifier" : "Rounding modifier required");
	need_operands(p, s, 2, 2);
	if (s->op[0]->kind == OP_SINK)
		fail_decode(p, s, "Arguments mismatch");
	ref d = relaxed(p, s, s->op[0], to), a;
	unsigned bits = type_size(s->op[0]->type) * 8;
	bool wide, exact = bits == type_size(to) * 8;

	if (s->op[1]->kind == OP_REG) {
		a = relaxed(p, s, s->op[1], from);
		wide = type_size(s->op[1]->type) == 8;
		exact &= type_size(s->op[1]->type) == type_size(from);
	} else {
		a = decode_source(p, s, s->op[1], from);
		wide = type_size(from) == 8;
	}
	op_fn *fast = exact && !(flags & ~F_RN) ? fast_cvt(to, from) : NULL;
	struct insn *in = emit(p, fast ? fast : op_cvt, s->line, s->guard);

	in->d = d;
	in->a = a;
	in->type = to;
	in->type2 = from;
	in->flags = flags;
	in->sub = (uint8_t)bits;
	in->vec = wide;
}

/* mov.b64 {a,b}, c and mov.b64 c, {a,b}: in->vec elements of in->size bytes. */
static void decode_mov_vector(struct parser *p, struct statement *s, enum type t, bool unpack)
{
	struct operand *v = s->op[unpack ? 0 : 1], *whole = s->op[unpack ? 1 : 0];
	unsigned part = v->n ? type_size(t) / v->n : 0;
	enum type element = part == 1 ? T_B8 : part == 2 ? T_B16 : T_B32;
	ref x[4] = {REF_NONE, REF_NONE, REF_NONE, REF_NONE}, row;

	if ((v->n != 2 && v->n != 4) || part * v->n != type_size(t) || part == 0 || whole->kind == OP_VECTOR ||
	    (t != T_B16 && t != T_B32 && t != T_B64))
		fail_decode(p, s, "Arguments mismatch");
	row = unpack ? decode_source(p, s, whole, t) : decode_dest(p, s, whole, t);
	for (uint32_t i = 0; i < v->n; i++) {
		struct operand *o = &v->item[i];

		if (!unpack)
			x[i] = decode_source(p, s, o, element);
		else if (o->kind == OP_SINK)
			x[i] = REF_NONE;
		else if (part == 1)
			x[i] = decode_dest(p, s, o, o->kind == OP_REG ? o->type : element);
		else
			x[i] = decode_dest(p, s, o, element);
		if (unpack && part == 1 && type_size(o->type) == 8)
			fail_decode(p, s, "Arguments mismatch");
	}
	struct insn *in = emit(p, unpack ? op_unpack : op_pack, s->line, s->guard);

	in->d = in->a = row;
	memcpy(in->x, x, sizeof x);
	in->vec = (uint8_t)v->n;
	in->size = (uint8_t)part;
	in->sub = (uint8_t)type_size(t);
}

void decode_mov(struct parser *p, struct statement *s)
{
	enum type t = s->nwords == 2 ? type_named(s->word[1]) : T_NONE;

	need_operands(p, s, 2, 2);
	if (t == T_PRED) {
		ref d = decode_pred(p, s, s->op[0]);
		bool constant = s->op[1]->kind == OP_INT;
		ref a = constant ? 0 : decode_pred(p, s, s->op[1]);
		struct insn *in = emit(p, constant ? op_movp_const : op_movp, s->line, s->guard);

		in->d = d;
		in->a = a;
		in->imm = constant && s->op[1]->bits;
		return;
	}
	if (type_size(t) < 2)
		fail_decode(p, s, "Unknown modifier");
	if (s->op[0]->kind == OP_VECTOR || s->op[1]->kind == OP_VECTOR) {
		decode_mov_vector(p, s, t, s->op[0]->kind == OP_VECTOR);
		return;
	}
	ref d = decode_dest(p, s, s->op[0], t);

	if (s->op[1]->kind == OP_SPECIAL && special_is_wide(s->op[1]->special) == (type_size(t) == 8) &&
	    type_size(t) >= 4) {
		struct insn *in = emit(p, op_special, s->line, s->guard);

		in->d = d;
		in->sub = (uint8_t)s->op[1]->special;
		return;
	}
	ref a = decode_source(p, s, s->op[1], t);
	struct insn *in = emit(p, type_size(t) == 8 ? op_mov64 : op_mov32, s->line, s->guard);

	in->d = d;
	in->a = a;
}
