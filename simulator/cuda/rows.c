/* Memory of a module, its constants, and new register rows. */
#include "parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one module's text may make us allocate: a bound on hostile input. */
#define MODULE_LIMIT ((size_t)1 << 30)
#define CONSTS_LIMIT ((uint32_t)256 << 20)
#define ROWS_LIMIT 65536u /* registers of one function that are used */

struct chunk {
	struct chunk *next;
	size_t used, size;
	_Alignas(16) uint8_t data[];
};

void ptx_fail(struct module *m, uint32_t line, int code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(m->error, sizeof m->error, fmt, args);
	va_end(args);
	m->error_line = line;
	m->error_code = code;
	longjmp(*m->fail, 1);
}

void *ptx_alloc(struct module *m, size_t size)
{
	size_t want = (size + 15) & ~(size_t)15;
	struct chunk *c = m->chunks;

	if (!c || c->size - c->used < want) {
		size_t room = want > 65536 ? want : 65536;

		if (size > MODULE_LIMIT || m->allocated + room > MODULE_LIMIT)
			ptx_fail(m, 0, PTX_OUT_OF_MEMORY, "the module needs more than 1 GiB to be read");
		c = calloc(1, sizeof *c + room);
		if (!c)
			ptx_fail(m, 0, PTX_OUT_OF_MEMORY, "out of host memory");
		c->size = room;
		c->next = m->chunks;
		m->chunks = c;
		m->allocated += room;
	}
	void *p = c->data + c->used;
	c->used += want;
	return p;
}

char *ptx_copy(struct module *m, const char *s, size_t len)
{
	char *out = ptx_alloc(m, len + 1);

	memcpy(out, s, len);
	return out;
}

void fill_row(struct module *m, ref row, uint64_t value, bool wide)
{
	uint8_t *p = m->consts + (row & ~REF_CONST);

	for (int l = 0; l < LANES; l++) {
		if (wide)
			memcpy(p + 8 * l, &value, 8);
		else
			memcpy(p + 4 * l, &value, 4);
	}
}

static ref new_const(struct module *m, uint64_t value, bool wide)
{
	uint32_t size = wide ? ROW64 : ROW32;
	ref row = REF_CONST | m->nconsts;

	if (m->capconsts - m->nconsts < size) {
		uint32_t cap = m->capconsts ? m->capconsts * 2 : 16384;
		uint8_t *grown = cap > CONSTS_LIMIT ? NULL : realloc(m->consts, cap);

		if (!grown)
			ptx_fail(m, 0, PTX_OUT_OF_MEMORY, "too many constants");
		m->consts = grown;
		m->capconsts = cap;
	}
	m->nconsts += size;
	fill_row(m, row, value, wide);
	return row;
}

/* A row for each distinct value and width; the hash holds row numbers + 1. */
static ref find_const(struct module *m, uint64_t value, bool wide)
{
	if (m->const_count * 2 >= m->const_slots) {
		uint32_t *old = m->const_hash, n = m->const_slots;

		m->const_slots = n ? n * 2 : 256;
		m->const_hash = calloc(m->const_slots, 2 * sizeof *m->const_hash);
		if (!m->const_hash) {
			m->const_hash = old;
			m->const_slots = n;
			ptx_fail(m, 0, PTX_OUT_OF_MEMORY, "out of host memory");
		}
		for (uint32_t i = 0; i < n; i++) {
			if (!old[2 * i])
				continue;
			uint32_t at = old[2 * i + 1] & (m->const_slots - 1);

			while (m->const_hash[2 * at])
				at = (at + 1) & (m->const_slots - 1);
			m->const_hash[2 * at] = old[2 * i];
			m->const_hash[2 * at + 1] = old[2 * i + 1];
		}
		free(old);
	}
	uint32_t hash = (uint32_t)((value * 0x9e3779b97f4a7c15ull) >> 32) ^ (wide ? 0x55555u : 0);
	uint32_t at = hash & (m->const_slots - 1);

	for (; m->const_hash[2 * at]; at = (at + 1) & (m->const_slots - 1)) {
		if (m->const_hash[2 * at + 1] != hash)
			continue;
		uint32_t entry = m->const_hash[2 * at] - 1; /* offset / 64, low bit: wide */
		uint64_t have = 0;

		memcpy(&have, m->consts + (size_t)(entry >> 1) * 64, wide ? 8 : 4);
		if ((entry & 1) == wide && have == value)
			return REF_CONST | (entry >> 1) * 64;
	}
	ref row = new_const(m, value, wide);
	m->const_hash[2 * at] = ((row & ~REF_CONST) / 64 << 1 | wide) + 1;
	m->const_hash[2 * at + 1] = hash;
	m->const_count++;
	return row;
}

ref const32(struct module *m, uint32_t value) { return find_const(m, value, false); }
ref const64(struct module *m, uint64_t value) { return find_const(m, value, true); }

ref new_row(struct parser *p, enum type t)
{
	uint32_t *n = t == T_PRED ? &p->f->npred : type_size(t) == 8 ? &p->f->n64 : &p->f->n32;

	if (*n >= ROWS_LIMIT)
		ptx_fail(p->m, p->t.line, PTX_OUT_OF_MEMORY, "%s uses more than %u registers", p->f->name,
		         ROWS_LIMIT);
	uint32_t row = (*n)++;
	return t == T_PRED ? row * 2 : row * (type_size(t) == 8 ? ROW64 : ROW32);
}

/* A variable's address may be settled only when the module is complete: it gets a row of its own. */
ref var_row(struct parser *p, struct var *v, bool wide)
{
	ref *row = wide ? &v->row64 : &v->row32;

	if (*row == REF_NONE)
		*row = new_const(p->m, v->address, wide);
	if (v->space == SP_SHARED && !v->external && !v->owner && v->address + v->size > p->f->shared_used)
		p->f->shared_used = v->address + v->size;
	return *row;
}
