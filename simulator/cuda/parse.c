/* A module: its directives, variables and functions (PTX ISA, chapters 5, 7 and 11). */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void parse_next(struct parser *p)
{
	p->t = lex_next(&p->lx);
	if (p->t.kind == TK_BAD)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "unexpected text '%.*s'",
		         p->t.len > 40 ? 40 : (int)p->t.len, p->t.s);
}

void parse_wrong(struct parser *p, const char *expected)
{
	if (p->t.kind == TK_END)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "expected %s, found the end of the text", expected);
	ptx_fail(p->m, p->t.line, PTX_INVALID, "expected %s, found '%.*s'", expected,
	         p->t.len > 40 ? 40 : (int)p->t.len, p->t.s);
}

bool parse_accept(struct parser *p, const char *text)
{
	if (!token_is(&p->t, text))
		return false;
	parse_next(p);
	return true;
}

void parse_expect(struct parser *p, const char *text)
{
	if (!parse_accept(p, text))
		parse_wrong(p, text);
}

char *parse_name(struct parser *p)
{
	if (p->t.kind != TK_WORD)
		parse_wrong(p, "a name");
	char *name = ptx_copy(p->m, p->t.s, p->t.len);
	parse_next(p);
	return name;
}

uint64_t parse_uint(struct parser *p, uint64_t limit)
{
	uint64_t v = p->t.bits;

	if (p->t.kind != TK_INT)
		parse_wrong(p, "an integer");
	if (v > limit)
		ptx_fail(p->m, p->t.line, PTX_INVALID, "%llu is too large here", (unsigned long long)v);
	parse_next(p);
	return v;
}

struct var *find_var(struct var *list, const char *name, size_t len)
{
	for (; list; list = list->next)
		if (strncmp(list->name, name, len) == 0 && list->name[len] == 0 && !list->hidden)
			return list;
	return NULL;
}

struct func *find_func(const struct module *m, const char *name, size_t len)
{
	for (struct func *f = m->funcs; f; f = f->next)
		if (strncmp(f->name, name, len) == 0 && f->name[len] == 0 && !f->hidden)
			return f;
	return NULL;
}

static void parse_version(struct parser *p)
{
	unsigned major = 0, minor = 0;
	char text[16] = "";

	if (p->t.kind != TK_F64 || p->t.len >= sizeof text)
		parse_wrong(p, "a version such as 7.0");
	memcpy(text, p->t.s, p->t.len);
	if (sscanf(text, "%2u.%2u", &major, &minor) != 2 || minor > 9)
		parse_wrong(p, "a version such as 7.0");
	p->m->version = major * 10 + minor;
	if (p->m->version > p->m->host.ptx_version)
		ptx_fail(p->m, p->t.line, PTX_UNSUPPORTED_VERSION,
		         "Unsupported .version %u.%u; current version is '%u.%u'", major, minor,
		         p->m->host.ptx_version / 10, p->m->host.ptx_version % 10);
	parse_next(p);
}

static void parse_target(struct parser *p)
{
	do {
		if (p->t.kind != TK_WORD)
			parse_wrong(p, "a target such as sm_70");
		if (p->t.len > 3 && memcmp(p->t.s, "sm_", 3) == 0) {
			char text[16] = "", *rest;

			memcpy(text, p->t.s + 3, p->t.len - 3 < 15 ? p->t.len - 3 : 15);
			p->m->target = (uint32_t)strtoul(text, &rest, 10);
			bool exact = *rest == 'a' && rest[1] == 0;

			if (rest == text || (*rest && !exact && strcmp(rest, "f") != 0))
				parse_wrong(p, "a target such as sm_70");
			if (p->m->target > p->m->host.cc || (exact && p->m->target != p->m->host.cc))
				ptx_fail(p->m, p->t.line, PTX_NO_BINARY,
				         "code for sm_%s cannot run on this device of compute capability %u.%u", text,
				         p->m->host.cc / 10, p->m->host.cc % 10);
		}
		parse_next(p);
	} while (parse_accept(p, ","));
	if (p->m->target < 10)
		ptx_fail(p->m, p->t.line, PTX_INVALID, ".target names no architecture");
}

/* .maxntid 256, 1, 1 and the like; what bounds a launch is kept. */
static void parse_performance(struct parser *p, struct func *f)
{
	static const char *const known[] = {
		".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster",
		".maxclusterrank", ".noreturn", ".explicitcluster", ".pragma", ".abi_preserve",
		".abi_preserve_control", ".blocksareclusters", ".unique",
	};

	while (p->t.kind == TK_DOT) {
		uint64_t v[3] = {1, 1, 1};
		uint32_t line = p->t.line;
		size_t which = 0;

		while (which < sizeof known / sizeof *known && !token_is(&p->t, known[which]))
			which++;
		if (which == sizeof known / sizeof *known)
			parse_wrong(p, "a directive of a function");
		parse_next(p);
		if (strcmp(known[which], ".pragma") == 0) {
			while (p->t.kind == TK_STRING || token_is(&p->t, ","))
				parse_next(p);
			parse_expect(p, ";");
			continue;
		}
		for (int i = 0; i < 3 && p->t.kind == TK_INT; i++) {
			v[i] = parse_uint(p, UINT32_MAX);
			if (!parse_accept(p, ","))
				break;
		}
		if (which <= 1 && (v[0] == 0 || v[1] == 0 || v[2] == 0))
			ptx_fail(p->m, line, PTX_INVALID, "%s must not be zero", known[which]);
		for (int i = 0; i < 3; i++) {
			if (which == 0)
				f->maxntid[i] = (uint32_t)v[i];
			else if (which == 4)
				f->max_registers = (uint32_t)v[0];
			else if (which == 1)
				f->reqntid[i] = (uint32_t)v[i];
		}
	}
}

static bool same_parameters(const struct var *a, const struct var *b)
{
	for (; a && b; a = a->next, b = b->next)
		if (a->size != b->size || a->space != b->space)
			return false;
	return !a && !b;
}

static void parse_function(struct parser *p, bool entry, enum linkage linkage)
{
	struct module *m = p->m;
	struct func *f = ptx_alloc(m, sizeof *f);
	uint32_t line = p->t.line;

	f->entry = entry;
	f->linkage = linkage;
	if (!entry && token_is(&p->t, "("))
		parse_parameters(p, f, true);
	if (p->t.kind != TK_WORD)
		parse_wrong(p, "the name of a function");
	struct func *known = find_func(m, p->t.s, p->t.len);
	f->name = parse_name(p);
	p->f = f;
	if (token_is(&p->t, "("))
		parse_parameters(p, f, false);
	layout_parameters(f);
	parse_performance(p, f);
	if (known) {
		if (known->entry != entry || !same_parameters(known->params, f->params) ||
		    !same_parameters(known->rets, f->rets))
			ptx_fail(m, line, PTX_INVALID, "'%s' was declared differently before", f->name);
		bool again = known->defined && token_is(&p->t, "{");

		if (again && linkage != WEAK)
			ptx_fail(m, line, PTX_INVALID, "'%s' is defined twice", f->name);
		if (!known->defined && token_is(&p->t, "{")) {
			/* The definition's parameter names count; whoever called it before holds known. */
			struct func *next = known->next;
			uint32_t index = known->index;

			*known = *f;
			known->next = next;
			known->index = index;
		}
		f = again ? f : known; /* a weak one that is there: this body is read and forgotten */
	} else {
		f->index = m->nfuncs++;
		f->next = m->funcs;
		m->funcs = f;
	}
	if (parse_accept(p, ";")) {
		p->f = NULL;
		return;
	}
	p->f = f;
	f->defined = true;
	parse_body(p);
	p->f = NULL;
}

static void skip_section(struct parser *p) /* .section .debug_str { … } */
{
	int depth = 0;

	while (p->t.kind != TK_END && !token_is(&p->t, "{"))
		parse_next(p);
	do {
		if (token_is(&p->t, "{"))
			depth++;
		else if (token_is(&p->t, "}"))
			depth--;
		else if (p->t.kind == TK_END)
			parse_wrong(p, "}");
		parse_next(p);
	} while (depth > 0);
}

static void parse_file(struct parser *p) /* .file 1 "name" [, time, size] */
{
	parse_uint(p, UINT32_MAX);
	if (p->t.kind != TK_STRING)
		parse_wrong(p, "the name of a file");
	parse_next(p);
	while (parse_accept(p, ","))
		parse_uint(p, UINT64_MAX);
}

/* Unknown ones are ignored (PTX ISA, 11.4); "maxnreg 32" is cuLinkComplete's own. */
static void parse_pragma(struct parser *p)
{
	static const char limit[] = "\"maxnreg ";

	while (p->t.kind == TK_STRING || token_is(&p->t, ",")) {
		if (p->t.kind == TK_STRING && strncmp(p->t.s, limit, sizeof limit - 1) == 0)
			p->m->max_registers = (uint32_t)strtoul(p->t.s + sizeof limit - 1, NULL, 10);
		parse_next(p);
	}
	parse_expect(p, ";");
}

/* .visible and the like; the last that is there counts. */
static enum linkage parse_linkage(struct parser *p)
{
	static const struct { const char *name; enum linkage linkage; } names[] = {
		{".visible", VISIBLE}, {".extern", EXTERNAL}, {".weak", WEAK}, {".common", WEAK},
	};
	enum linkage linkage = LOCAL;

	for (size_t i = 0; i < sizeof names / sizeof *names;) {
		if (parse_accept(p, names[i].name)) {
			linkage = names[i].linkage;
			i = 0;
		} else {
			i++;
		}
	}
	return linkage;
}

static void parse_toplevel(struct parser *p)
{
	static const struct { const char *name; enum space space; } spaces[] = {
		{".global", SP_GLOBAL}, {".const", SP_CONST}, {".shared", SP_SHARED},
	};
	enum linkage linkage = parse_linkage(p);

	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
		if (parse_accept(p, spaces[i].name)) {
			parse_variable(p, spaces[i].space, linkage);
			parse_expect(p, ";");
			return;
		}
	}
	if (parse_accept(p, ".entry"))
		parse_function(p, true, linkage);
	else if (parse_accept(p, ".func"))
		parse_function(p, false, linkage);
	else if (parse_accept(p, ".file"))
		parse_file(p);
	else if (parse_accept(p, ".section"))
		skip_section(p);
	else if (parse_accept(p, ".pragma"))
		parse_pragma(p);
	else {
		refuse_name(p, p->t.line, p->t.s, p->t.len);
		parse_wrong(p, "a directive");
	}
}

/* .version, .target and .address_size, with which a text begins. */
static void parse_header(struct parser *p)
{
	struct module *m = p->m;
	uint32_t version = m->version;

	parse_version(p);
	m->version = m->version > version ? m->version : version;
	parse_expect(p, ".target");
	parse_target(p);
	m->address_size = 32;
	if (parse_accept(p, ".address_size"))
		m->address_size = (uint32_t)parse_uint(p, 64);
	if (m->address_size != 64)
		ptx_fail(m, p->t.line, PTX_INVALID, "only .address_size 64 is supported");
}

/* What is local to a text that is linked with others is not seen by those that follow. */
static void hide_locals(struct module *m)
{
	for (struct var *v = m->globals; v; v = v->next)
		v->hidden |= v->linkage == LOCAL;
	for (struct func *f = m->funcs; f; f = f->next)
		f->hidden |= f->linkage == LOCAL;
}

void parse_module(struct parser *p)
{
	parse_next(p);
	parse_expect(p, ".version");
	parse_header(p);
	while (p->t.kind != TK_END) {
		if (parse_accept(p, ".version")) { /* cuLink… puts texts behind one another */
			hide_locals(p->m);
			parse_header(p);
		} else {
			parse_toplevel(p);
		}
	}
}
