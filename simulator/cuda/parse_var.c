/* Declarations of variables and parameters, and initial values. */
#include "parse.h"

#include <string.h>

#define VARIABLE_LIMIT ((uint64_t)1 << 36)
#define FRAME_LIMIT ((uint64_t)512 << 10) /* local memory of one thread, PTX ISA 5.1.5 */

static const struct { const char *name; enum type type; unsigned size; } type_list[] = {
	{".b8", T_B8, 1}, {".u8", T_U8, 1}, {".s8", T_S8, 1}, {".b16", T_B16, 2}, {".u16", T_U16, 2},
	{".s16", T_S16, 2}, {".f16", T_F16, 2}, {".bf16", T_BF16, 2}, {".b32", T_B32, 4},
	{".u32", T_U32, 4}, {".s32", T_S32, 4}, {".f32", T_F32, 4}, {".f16x2", T_F16X2, 4},
	{".bf16x2", T_BF16X2, 4}, {".b64", T_B64, 8}, {".u64", T_U64, 8}, {".s64", T_S64, 8},
	{".f64", T_F64, 8}, {".pred", T_PRED, 0},
};

enum type type_named(const char *name)
{
	for (size_t i = 0; i < sizeof type_list / sizeof *type_list; i++)
		if (strcmp(type_list[i].name, name) == 0)
			return type_list[i].type;
	return T_NONE;
}

unsigned type_size(enum type t)
{
	for (size_t i = 0; i < sizeof type_list / sizeof *type_list; i++)
		if (type_list[i].type == t)
			return type_list[i].size;
	return 0;
}

static enum type parse_type(struct parser *p)
{
	for (size_t i = 0; i < sizeof type_list / sizeof *type_list; i++)
		if (parse_accept(p, type_list[i].name))
			return type_list[i].type;
	refuse_name(p, p->t.line, p->t.s, p->t.len);
	parse_wrong(p, "a type");
}

static uint32_t parse_align(struct parser *p)
{
	uint64_t n = parse_uint(p, 1 << 20);

	if (n == 0 || (n & (n - 1)))
		ptx_fail(p->m, p->t.line, PTX_INVALID, "an alignment must be a power of two");
	return (uint32_t)n;
}

static uint64_t round_up(uint64_t n, uint64_t align) { return (n + align - 1) & ~(align - 1); }

/* [4][8] after a name; returns the number of elements; 0 with *open for []. */
static uint64_t parse_dimensions(struct parser *p, bool *open, bool *array)
{
	uint64_t n = 1;

	*open = *array = false;
	while (parse_accept(p, "[")) {
		*array = true;
		if (parse_accept(p, "]")) {
			*open = true;
			n = 0;
			continue;
		}
		uint64_t d = parse_uint(p, VARIABLE_LIMIT);

		if (d && n > VARIABLE_LIMIT / d)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "an array is too large");
		n *= d;
		parse_expect(p, "]");
	}
	return n;
}

static uint64_t symbol_address(struct parser *p)
{
	struct var *v = find_var(p->m->globals, p->t.s, p->t.len);
	struct func *f = v ? NULL : find_func(p->m, p->t.s, p->t.len);
	uint64_t address;

	if (v && v->space != SP_SHARED)
		address = v->address;
	else if (f)
		address = FUNC_ADDRESS + (uint64_t)f->index * FUNC_STRIDE;
	else
		parse_wrong(p, "a variable or function that was declared before");
	parse_next(p);
	return address;
}

static uint64_t parse_initial(struct parser *p, enum type t, unsigned size)
{
	bool minus = false;
	uint64_t v;

	while (token_is(&p->t, "-") || token_is(&p->t, "+")) {
		minus ^= token_is(&p->t, "-");
		parse_next(p);
	}
	if (p->t.kind == TK_INT) {
		v = p->t.bits;
		parse_next(p);
		if (t == T_F32 || t == T_F64) {
			double d = minus ? -(double)v : (double)v;
			float f = (float)d;

			v = 0;
			memcpy(&v, t == T_F32 ? (void *)&f : (void *)&d, size);
			return v;
		}
		return minus ? -v : v;
	}
	if (p->t.kind == TK_F32 || p->t.kind == TK_F64) {
		double d;
		float f;

		v = p->t.bits;
		if (p->t.kind == TK_F32) {
			memcpy(&f, &v, 4);
			d = (double)f;
		} else {
			memcpy(&d, &v, 8);
			f = (float)d;
		}
		/* A 0f constant keeps its bits, whatever NaN it is. */
		bool same = (p->t.kind == TK_F32) == (size == 4);

		parse_next(p);
		if (!same && size == 4)
			memcpy(&v, &f, 4);
		else if (!same && size == 8)
			memcpy(&v, &d, 8);
		return minus ? v ^ (1ull << (size * 8 - 1)) : v;
	}
	if (parse_accept(p, "generic")) {
		parse_expect(p, "(");
		v = symbol_address(p);
		parse_expect(p, ")");
	} else {
		v = symbol_address(p);
	}
	if (parse_accept(p, "+"))
		v += parse_uint(p, UINT64_MAX);
	else if (parse_accept(p, "-"))
		v -= parse_uint(p, UINT64_MAX);
	return v;
}

static void parse_initials(struct parser *p, struct var *v, unsigned size, uint64_t *at, int depth)
{
	if (depth > 16)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "an initial value is nested too deeply");
	if (parse_accept(p, "{")) {
		while (!token_is(&p->t, "}")) {
			parse_initials(p, v, size, at, depth + 1);
			if (!parse_accept(p, ","))
				break;
		}
		parse_expect(p, "}");
		return;
	}
	uint32_t line = p->t.line;
	uint64_t value = parse_initial(p, v->type, size);

	if (*at + size > v->size)
		ptx_fail(p->m, line, PTX_INVALID, "'%s' has more initial values than elements", v->name);
	memcpy(v->host + *at, &value, size);
	*at += size;
}

static void place(struct parser *p, struct var *v)
{
	struct module *m = p->m;
	uint64_t *frame = NULL, limit = m->host.shared_limit;

	v->owner = p->f;
	switch (v->space) {
	case SP_GLOBAL:
	case SP_CONST: {
		int rc = m->host.alloc(m->host.owner, v->size ? v->size : 1, v->align,
		                       v->space == SP_CONST, &v->address, &v->host);

		if (rc)
			ptx_fail(m, p->t.line, rc, "no device memory for '%s' (%llu bytes)", v->name,
			         (unsigned long long)v->size);
		return;
	}
	case SP_SHARED:
		v->next_shared = m->shared;
		m->shared = v;
		if (v->external)
			return;
		/* A kernel's own; what device functions and the module declare is laid out before it. */
		frame = p->f && p->f->entry ? &p->f->shared_size : &m->shared_module;
		break;
	default:
		frame = &p->f->local_size;
		limit = FRAME_LIMIT;
	}
	v->address = round_up(*frame, v->align);
	if (v->size > limit || v->address + v->size > limit)
		ptx_fail(m, p->t.line, PTX_INVALID, "'%s' does not fit: %s has %llu bytes at most", v->name,
		         v->space == SP_SHARED ? "shared memory" : "a thread's local memory",
		         (unsigned long long)limit);
	*frame = v->address + v->size;
}

static void parse_declarator(struct parser *p, struct var *v, unsigned vector)
{
	unsigned size = type_size(v->type);
	bool open, array;
	uint32_t line = p->t.line;
	struct var **list = p->scope ? &p->scope->vars : &p->m->globals;

	v->name = parse_name(p);
	v->row32 = v->row64 = v->reg = REF_NONE;
	struct var *known = find_var(*list, v->name, strlen(v->name));

	if (known && (known->space != v->space || v->linkage < WEAK))
		ptx_fail(p->m, line, PTX_INVALID, "'%s' is declared twice", v->name);
	v->size = size * vector * parse_dimensions(p, &open, &array);
	if (v->external && v->space != SP_SHARED && !known && !p->m->host.partial)
		ptx_fail(p->m, line, PTX_INVALID, "Unresolved extern variable '%s'", v->name);
	if (v->size > VARIABLE_LIMIT || (open && !v->external))
		ptx_fail(p->m, line, PTX_INVALID, "'%s' has no size that can be used", v->name);
	if (v->align < size * vector)
		v->align = v->align ? v->align : size * vector;
	if (known) { /* it is the one of another text */
		v->host = ptx_alloc(p->m, v->size);
	} else {
		place(p, v);
		v->next = *list;
		*list = v;
	}
	if (parse_accept(p, "=")) {
		uint64_t at = 0;

		if (v->space != SP_GLOBAL && v->space != SP_CONST)
			ptx_fail(p->m, line, PTX_INVALID, "'%s' cannot have an initial value", v->name);
		parse_initials(p, v, size, &at, 0);
	}
}

struct var *parse_variable(struct parser *p, enum space space, enum linkage linkage)
{
	struct var head = {.space = space, .external = linkage == EXTERNAL, .linkage = linkage};
	struct var *v;
	unsigned vector = 1;

	for (;;) {
		if (parse_accept(p, ".align")) {
			head.align = parse_align(p);
		} else if (parse_accept(p, ".attribute")) {
			parse_expect(p, "(");
			while (p->t.kind != TK_END && !token_is(&p->t, ")"))
				parse_next(p);
			parse_expect(p, ")");
		} else if (parse_accept(p, ".v2")) {
			vector = 2;
		} else if (parse_accept(p, ".v4")) {
			vector = 4;
		} else {
			break;
		}
	}
	head.type = parse_type(p);
	if (head.type == T_PRED)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "a predicate cannot be in memory");
	do {
		v = ptx_alloc(p->m, sizeof *v);
		*v = head;
		parse_declarator(p, v, vector);
	} while (parse_accept(p, ","));
	return v;
}

/* ( .param .u64 .ptr .global .align 4 a, .param .align 8 .b8 b[24], .reg .u32 c ) */
void parse_parameters(struct parser *p, struct func *f, bool returns)
{
	struct var **tail = returns ? &f->rets : &f->params;
	uint32_t *count = returns ? &f->nrets : &f->nparams;

	parse_expect(p, "(");
	while (!token_is(&p->t, ")")) {
		struct var *v = ptx_alloc(p->m, sizeof *v);
		bool open, array;

		v->row32 = v->row64 = v->reg = REF_NONE;
		v->owner = f;
		if (!f->entry && parse_accept(p, ".reg"))
			v->space = SP_REG;
		else {
			parse_expect(p, ".param");
			v->space = f->entry ? SP_PARAM : SP_LOCAL; /* a device function's lie in its frame */
		}
		if (parse_accept(p, ".align"))
			v->align = parse_align(p);
		v->type = parse_type(p);
		if (v->type == T_PRED)
			ptx_fail(p->m, p->t.line, PTX_INVALID, "a parameter cannot be a predicate");
		while (p->t.kind == TK_DOT) { /* .ptr [.space] [.align n] */
			bool align = token_is(&p->t, ".align");

			if (!align && !token_is(&p->t, ".ptr") && !token_is(&p->t, ".global") &&
			    !token_is(&p->t, ".const") && !token_is(&p->t, ".local") && !token_is(&p->t, ".shared"))
				parse_wrong(p, "the name of a parameter");
			parse_next(p);
			if (align)
				parse_align(p); /* of what it points to */
		}
		uint32_t line = p->t.line;

		v->name = parse_name(p);
		v->size = type_size(v->type) * parse_dimensions(p, &open, &array);
		if (v->align == 0)
			v->align = type_size(v->type);
		if (open || v->size > 32764)
			ptx_fail(p->m, line, PTX_INVALID, "parameter '%s' has no size that can be used", v->name);
		if (find_var(f->params, v->name, strlen(v->name)) || find_var(f->rets, v->name, strlen(v->name)))
			ptx_fail(p->m, line, PTX_INVALID, "parameter '%s' is declared twice", v->name);
		*tail = v;
		tail = &v->next;
		(*count)++;
		if (!parse_accept(p, ","))
			break;
	}
	parse_expect(p, ")");
}

/* A kernel's parameters are one buffer; a device function's lie in its frame. */
void layout_parameters(struct func *f)
{
	uint64_t at = 0;

	for (int returns = 0; returns < 2; returns++) {
		for (struct var *v = returns ? f->rets : f->params; v; v = v->next) {
			v->address = round_up(at, v->align);
			at = v->address + v->size;
		}
	}
	if (f->entry)
		f->param_size = (uint32_t)at;
	else
		f->local_size = at;
}
