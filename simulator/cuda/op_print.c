/* What device code may call in the driver: vprintf and __assertfail. */
#include "memory_ops.h"
#include "ops.h"

#include <stdio.h>
#include <string.h>

/* Argument i of a builtin, from its .param variable in the caller's frame. */
static uint64_t argument(const struct warp *w, const struct insn *in, uint32_t i, int lane)
{
	const struct arg *a = &in->call->args[i];
	uint64_t v = 0;

	memcpy(&v, w->local + (uint64_t)lane * w->block->stride + w->frame->local + a->offset,
	       a->size < 8 ? a->size : 8);
	return v;
}

/* A string of device memory, cut where the buffer ends; false after a fault. */
static bool read_string(struct warp *w, const struct insn *in, int lane, uint64_t addr, char *out, size_t size)
{
	for (size_t n = 0; n + 1 < size; n++) {
		uint8_t *p = lane_memory(w, in, lane, SP_GENERIC, addr + n, 1, false);

		if (!p)
			return false;
		out[n] = (char)*p;
		out[n + 1] = 0;
		if (*p == 0)
			return true;
	}
	return true;
}

/* One conversion of a format, such as "%-8.3f"; *at moves past its argument. */
static bool print_one(struct warp *w, const struct insn *in, int lane, const char *spec, uint64_t *at)
{
	char kind = spec[strlen(spec) - 1];
	bool wide = strstr(spec, "ll") || strchr(spec, 'l') || strchr(spec, 'z') || strchr(spec, 'j') ||
	            strchr(spec, 't') || strchr("sfFeEgGaAp", kind);
	unsigned size = wide ? 8 : 4;
	uint64_t v = 0;

	*at = (*at + size - 1) & ~(uint64_t)(size - 1);
	uint8_t *p = lane_memory(w, in, lane, SP_GENERIC, *at, size, false);

	if (!p)
		return false;
	memcpy(&v, p, size);
	*at += size;
	/* The host's printf gets flags, width and precision, and a type of our own choice. */
	char format[40];
	size_t n = strspn(spec, "%-+ #0123456789.");
	char text[512];

	if (n > 24)
		return true;
	memcpy(format, spec, n);
	if (strchr("fFeEgGaA", kind)) {
		double d;

		memcpy(&d, &v, 8);
		snprintf(format + n, 4, "%c", kind);
		printf(format, d);
	} else if (kind == 's') {
		if (!read_string(w, in, lane, v, text, sizeof text))
			return false;
		snprintf(format + n, 4, "s");
		printf(format, text);
	} else if (kind == 'c') {
		snprintf(format + n, 4, "c");
		printf(format, (int)v);
	} else if (kind == 'd' || kind == 'i') {
		snprintf(format + n, 4, "lld");
		printf(format, wide ? (long long)v : (long long)(int32_t)v);
	} else if (kind == 'p') {
		printf("0x%llx", (unsigned long long)v);
	} else {
		snprintf(format + n, 4, "ll%c", kind);
		printf(format, (unsigned long long)v);
	}
	return true;
}

static bool print_all(struct warp *w, const struct insn *in, int lane, const char *format, uint64_t args)
{
	while (*format) {
		size_t plain = strcspn(format, "%");

		fwrite(format, 1, plain, stdout);
		format += plain;
		if (!*format)
			break;
		size_t n = 1 + strspn(format + 1, "-+ #0123456789.hljztL");
		char spec[64] = "";

		if (format[n] == '%' && n == 1) {
			putchar('%');
			format += 2;
			continue;
		}
		if (!format[n] || !strchr("diouxXcsfFeEgGaAp", format[n]) || n > 60)
			return true;
		memcpy(spec, format, n + 1);
		if (!print_one(w, in, lane, spec, &args))
			return false;
		format += n + 1;
	}
	return true;
}

void op_vprintf(struct warp *w, const struct insn *in)
{
	if (in->call->nargs != 2 || in->call->nrets > 1) {
		run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "vprintf takes a format and its arguments");
		return;
	}
	for (uint32_t left = w->m; left; left &= left - 1) {
		int l = __builtin_ctz(left);
		char format[1024];

		if (!read_string(w, in, l, argument(w, in, 0, l), format, sizeof format) ||
		    !print_all(w, in, l, format, argument(w, in, 1, l)))
			return;
		if (in->call->nrets && in->call->rets[0].space == SP_LOCAL)
			memset(w->local + (uint64_t)l * w->block->stride + w->frame->local + in->call->rets[0].offset, 0,
			       in->call->rets[0].size);
	}
	fflush(stdout); /* a Go or Python host never flushes ours */
}

void op_assertfail(struct warp *w, const struct insn *in)
{
	int l = __builtin_ctz(w->m);
	char text[256] = "", file[256] = "", function[256] = "";

	if (in->call->nargs < 4 || !read_string(w, in, l, argument(w, in, 0, l), text, sizeof text) ||
	    !read_string(w, in, l, argument(w, in, 1, l), file, sizeof file) ||
	    !read_string(w, in, l, argument(w, in, 3, l), function, sizeof function)) {
		run_fault(w, in, PTX_ASSERT, "assertion failed");
		return;
	}
	fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], warp: %u, lane: %d Assertion `%s` failed.\n", file,
	        (unsigned)argument(w, in, 2, l), function, w->block->ctaid[0], w->block->ctaid[1],
	        w->block->ctaid[2], w->index, l, text);
	run_fault(w, in, PTX_ASSERT, "assertion `%.80s` failed", text);
}
