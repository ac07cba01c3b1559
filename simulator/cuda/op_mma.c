/*
 * mma.m16n8k16, .m16n8k8 and .m16n8k4: D = A×B + C of bfloat16, half-width or tf32
 * matrices, added up in single precision. A product of two such numbers is exact in
 * single precision; the ISA leaves open in which order products are added and how
 * sums are rounded. Here: d = c, then d = fma(a[k], b[k], d) for k = 0, 1, …,
 * each rounded to nearest even; subnormal numbers are kept. A result of half width
 * is rounded once, at the end.
 */
#include "mma.h"
#include "ops.h"
#include "real.h"
#include "warp.h"

struct matrices { float a[MMA_M][MMA_K], b[MMA_K][MMA_N], d[MMA_M][MMA_N]; };

/* Element i of a register: of two, or the one that there is. */
static float element(uint32_t bits, unsigned i, enum type t)
{
	switch (t) {
	case T_BF16: return float_of(i ? bits & 0xffff0000u : bits << 16);
	case T_F16: return (float)half_value((uint16_t)(bits >> 16 * i));
	default: return float_of(bits & ~0x1fffu); /* what tf32 has of single precision */
	}
}

/*
 * Lane l has g = l / 4 and t = l % 4. Of two elements in a register: of A those in columns 2t
 * and 2t + 1 (and again 8 further on) of rows g and g + 8, of B those in rows 2t and 2t + 1
 * (and 8 further on) of column g. Of one: column t (and 4 further on) of A and row t (and 4
 * further on) of B. Of C and D columns 2t and 2t + 1 of rows g and g + 8 (PTX ISA, "Matrix
 * Fragments for mma.m16n8k16" and the like).
 */
static void gather(const struct warp *w, const struct mma *f, struct matrices *m)
{
	unsigned each = f->type == T_F32 ? 1 : 2;

	for (unsigned i = 0; i < f->na; i++) {
		const u32a *a = row32(w, f->a[i]);

		for (unsigned l = 0; l < LANES; l++)
			for (unsigned e = 0; e < each; e++)
				m->a[l / 4 + 8 * (i & 1)][l % 4 * each + 4 * each * (i / 2) + e] = element(a[l], e, f->type);
	}
	for (unsigned i = 0; i < f->nb; i++) {
		const u32a *b = row32(w, f->b[i]);

		for (unsigned l = 0; l < LANES; l++)
			for (unsigned e = 0; e < each; e++)
				m->b[l % 4 * each + 4 * each * i + e][l / 4] = element(b[l], e, f->type);
	}
	for (unsigned i = 0; i < 4; i++) {
		const u32a *c = row32(w, f->c[f->half ? i / 2 : i]);

		for (int l = 0; l < LANES; l++)
			m->d[l / 4 + 8 * (i / 2)][l % 4 * 2 + (i & 1)] = f->half ? element(c[l], i & 1, T_F16) : float_of(c[l]);
	}
}

static void scatter(struct warp *w, const struct mma *f, const struct matrices *m)
{
	for (unsigned i = 0; i < f->nc; i++) {
		u32a *d = row32(w, f->d[i]);

		for (int l = 0; l < LANES; l++) {
			const float *r = &m->d[l / 4 + 8 * (f->half ? i : i / 2)][l % 4 * 2];

			if (f->half)
				d[l] = half_from((double)r[0], F_RN) | (uint32_t)half_from((double)r[1], F_RN) << 16;
			else
				d[l] = r[i & 1] == r[i & 1] ? bits_of(r[i & 1]) : 0x7fffffffu;
		}
	}
}

#define MULTIPLY(fma)                                                         \
	for (int i = 0; i < MMA_M; i++)                                           \
		for (unsigned k = 0; k < n; k++)                                      \
			for (int j = 0; j < MMA_N; j++)                                   \
				m->d[i][j] = fma(m->a[i][k], m->b[k][j], m->d[i][j])

static void multiply_any(struct matrices *m, unsigned n) { MULTIPLY(fmaf); }

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void multiply_fast(struct matrices *m, unsigned n)
{
	MULTIPLY(__builtin_fmaf);
}
#endif

static void multiply(struct matrices *m, unsigned n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
		multiply_fast(m, n);
		return;
	}
#endif
	multiply_any(m, n);
}

void op_mma(struct warp *w, const struct insn *in)
{
	struct matrices m;

	if (!warp_gather(w, in, FULL))
		return;
	if (w->m != FULL) {
		run_fault(w, in, PTX_ILLEGAL_INSTRUCTION, "mma needs all 32 threads of its warp, %d are there",
		          __builtin_popcount(w->m));
		return;
	}
	gather(w, in->mma, &m);
	multiply(&m, in->mma->k);
	scatter(w, in->mma, &m);
}
