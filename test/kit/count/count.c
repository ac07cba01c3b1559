/*
 * Counts a program's calls of NVML and measures their time: LD_PRELOAD it, with NVML_COUNTS naming a file. The
 * file is this array, in the order of calls.h. A function that NVML calls itself is not counted.
 *
 * Each function is a stub, which enters note and goes on in libnvidia-ml. For the time, the stub puts its own
 * return address in place of the caller's. So nothing depends on a function's arguments.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
#define CALL(name) N_##name,
#include "calls.h"
#undef CALL
	CALLS
};

static const char *const name[] = {
#define CALL(name) #name,
#include "calls.h"
#undef CALL
};

static struct { _Atomic uint64_t calls, ns; } own[CALLS], (*counts)[CALLS] = &own;
static void *target[CALLS];
static __thread struct { void *back; uint64_t began; uint32_t call; } inside;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("NVML_COUNTS");
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
	if (fd < 0 || ftruncate(fd, sizeof own))
		return;
	void *at = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		counts = at;
	close(fd);
}

/* A return value as of a function that the library lacks (NVML_ERROR_FUNCTION_NOT_FOUND). */
static int missing(void) { return 13; }

/* note_entry returns where to go on. It replaces the return address, unless NVML calls itself. */
__attribute__((used)) static void *note_entry(uint32_t call, void **back)
{
	extern char count_return[];
	if (!target[call]) {
		void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
		void *found = library ? dlsym(library, name[call]) : NULL;
		target[call] = found ? found : (void *)missing;
	}
	if (!inside.back) {
		inside.back = *back, inside.call = call;
		*back = count_return;
		inside.began = now();
	}
	return target[call];
}

__attribute__((used)) static void *note_return(void)
{
	void *back = inside.back;
	(*counts)[inside.call].ns += now() - inside.began;
	(*counts)[inside.call].calls++;
	inside.back = NULL;
	return back;
}

__asm__(
	"count_entry:\n" /* eax: the call */
	"	push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rbp\n"
	"	mov %rsp, %rbp; and $-16, %rsp; sub $64, %rsp\n"
	"	movsd %xmm0, (%rsp); movsd %xmm1, 8(%rsp)\n"
	"	mov %eax, %edi; lea 56(%rbp), %rsi\n"
	"	call note_entry\n"
	"	movsd (%rsp), %xmm0; movsd 8(%rsp), %xmm1\n"
	"	mov %rbp, %rsp; pop %rbp; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\n"
	"	jmp *%rax\n"
	".globl count_return\n.hidden count_return\n"
	"count_return:\n"
	"	push %rax; push %rax; push %rdx; push %rdx\n"
	"	call note_return\n"
	"	mov %rax, %rcx; pop %rdx; pop %rdx; pop %rax; pop %rax\n"
	"	jmp *%rcx\n");

#define CALL(name) \
	__attribute__((naked)) void name(void) { __asm__("mov %0, %%eax; jmp count_entry" : : "i"(N_##name)); }
#include "calls.h"
