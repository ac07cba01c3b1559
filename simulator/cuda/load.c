/* A module from its text, and what the interpreter itself provides. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "ops.h"
#include "parse.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct chunk {
	struct chunk *next;
};

static pthread_once_t windows_once = PTHREAD_ONCE_INIT;

static void reserve(void)
{
	void *p = mmap(NULL, 3 * (size_t)WINDOW_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	/* Where nothing can be reserved, addresses that no program on this processor has. */
	uint64_t at = p == MAP_FAILED ? (uint64_t)1 << 56 : (uint64_t)(uintptr_t)p;

	ptx_windows = (struct windows){at, at + WINDOW_SIZE, at + 2 * WINDOW_SIZE};
}

void ptx_reserve_windows(void) { pthread_once(&windows_once, reserve); }

/* Functions that compilers declare and the driver defines. */
static op_fn *builtin_named(const char *name)
{
	if (strcmp(name, "vprintf") == 0)
		return op_vprintf;
	if (strcmp(name, "__assertfail") == 0)
		return op_assertfail;
	return NULL;
}

static void link_functions(struct module *m)
{
	m->by_index = ptx_alloc(m, m->nfuncs * sizeof *m->by_index);
	for (struct func *f = m->funcs; f; f = f->next) {
		m->by_index[f->index] = f;
		if (!f->defined)
			f->builtin = builtin_named(f->name);
		if (!f->defined && !f->builtin && !m->host.partial)
			ptx_fail(m, 0, PTX_INVALID, "Unresolved extern function '%s'", f->name);
	}
}

/*
 * Shared memory: first what the module and device functions declare, then the
 * kernel's own, then, at one offset for all kernels, what is sized at launch.
 */
static void link_shared(struct module *m)
{
	uint64_t most = m->shared_module = (m->shared_module + 127) & ~(uint64_t)127;

	for (struct func *f = m->funcs; f; f = f->next) {
		if (m->shared_module + f->shared_size > m->host.shared_limit)
			ptx_fail(m, 0, PTX_INVALID, "'%s' uses too much shared memory (%llu bytes, %llu at most)", f->name,
			         (unsigned long long)(m->shared_module + f->shared_size),
			         (unsigned long long)m->host.shared_limit);
		if (f->entry && m->shared_module + f->shared_size > most)
			most = m->shared_module + f->shared_size;
	}
	m->shared_dynamic = (most + 127) & ~(uint64_t)127;
	for (struct var *v = m->shared; v; v = v->next_shared) {
		if (v->external)
			v->address = m->shared_dynamic;
		else if (v->owner && v->owner->entry)
			v->address += m->shared_module;
		if (v->row32 != REF_NONE)
			fill_row(m, v->row32, v->address, false);
		if (v->row64 != REF_NONE)
			fill_row(m, v->row64, v->address, true);
	}
}

static void free_globals(struct module *m)
{
	for (struct var *v = m->globals; v; v = v->next)
		if (v->host)
			m->host.free(m->host.owner, v->address);
}

void ptx_unload(struct module *m)
{
	free_globals(m);
	while (m->chunks) {
		struct chunk *next = m->chunks->next;

		free(m->chunks);
		m->chunks = next;
	}
	free(m->consts);
	free(m->const_hash);
	free(m);
}

int ptx_load(const char *text, size_t len, const struct ptx_host *host, struct module **out, char *log,
             size_t log_size)
{
	struct module *m = calloc(1, sizeof *m);
	jmp_buf fail;

	if (log_size)
		log[0] = 0;
	if (!m)
		return PTX_OUT_OF_MEMORY;
	ptx_reserve_windows();
	m->host = *host;
	m->fail = &fail;
	if (setjmp(fail)) {
		int code = m->error_code;

		if (log_size && m->error_line)
			snprintf(log, log_size, "ptxas application ptx input, line %u; error   : %s", m->error_line, m->error);
		else if (log_size)
			snprintf(log, log_size, "ptxas application ptx input; error   : %s", m->error);
		ptx_unload(m);
		return code;
	}
	struct parser p = {.m = m, .lx = {text, text + len, 1}};

	parse_module(&p);
	link_functions(m);
	link_shared(m);
	m->fail = NULL;
	*out = m;
	return 0;
}

struct func *ptx_entry(const struct module *m, const char *name)
{
	struct func *f = find_func(m, name, strlen(name));

	return f && f->entry && f->defined ? f : NULL;
}

struct var *ptx_global(const struct module *m, const char *name)
{
	struct var *v = find_var(m->globals, name, strlen(name));

	return v && v->host ? v : NULL;
}

/* What the functions that it calls use is not known apart. */
uint64_t ptx_static_shared(const struct module *m, const struct func *f)
{
	return (f->calls ? m->shared_module : f->shared_used) + f->shared_size;
}

uint64_t ptx_const_size(const struct module *m)
{
	uint64_t n = 0;

	for (const struct var *v = m->globals; v; v = v->next)
		n += v->space == SP_CONST ? v->size : 0;
	return n;
}
