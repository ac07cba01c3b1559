/*
 * mma.m16n8k16 and .m16n8k8: D = A×B + C of bfloat16 matrices, added up in
 * single precision. A product of two bfloat16 numbers is exact in single
 * precision; the ISA leaves open in which order products are added and how
 * sums are rounded. Here: d = c, then d = fma(a[k], b[k], d) for k = 0, 1, …,
 * each rounded to nearest even; subnormal numbers are kept.
 */
#include "mma.h"
#include "ops.h"
#include "real.h"
#include "warp.h"

struct matrices { float a[MMA_M][MMA_K], b[MMA_K][MMA_N], d[MMA_M][MMA_N]; };

static float low(uint32_t pair) { return float_of(pair << 16); }
static float high(uint32_t pair) { return float_of(pair & 0xffff0000u); }

/*
 * Lane l holds, with g = l / 4 and t = l % 4: of A the pairs in columns 2t and
 * 2t + 1 (and again 8 further on) of rows g and g + 8, of B those in rows 2t and
 * 2t + 1 (and 8 further on) of column g, of C and D columns 2t and 2t + 1 of
 * rows g and g + 8 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
 */
static void gather(const struct warp *w, const struct mma *f, struct matrices *m)
{
	for (unsigned i = 0; i < f->k / 4u; i++) {
		const u32a *a = row32(w, f->a[i]);

		for (int l = 0; l < LANES; l++) {
			float *at = &m->a[l / 4 + 8 * (i & 1)][l % 4 * 2 + 8 * (i / 2)];

			at[0] = low(a[l]);
			at[1] = high(a[l]);
		}
	}
	for (unsigned i = 0; i < f->k / 8u; i++) {
		const u32a *b = row32(w, f->b[i]);

		for (int l = 0; l < LANES; l++) {
			m->b[l % 4 * 2 + 8 * i][l / 4] = low(b[l]);
			m->b[l % 4 * 2 + 8 * i + 1][l / 4] = high(b[l]);
		}
	}
	for (unsigned i = 0; i < 4; i++) {
		const f32a *c = row32(w, f->c[i]);

		for (int l = 0; l < LANES; l++)
			m->d[l / 4 + 8 * (i / 2)][l % 4 * 2 + (i & 1)] = c[l];
	}
}

static void scatter(struct warp *w, const struct mma *f, const struct matrices *m)
{
	for (unsigned i = 0; i < 4; i++) {
		f32a *d = row32(w, f->d[i]);

		for (int l = 0; l < LANES; l++) {
			float r = m->d[l / 4 + 8 * (i / 2)][l % 4 * 2 + (i & 1)];

			d[l] = r == r ? r : float_of(0x7fffffffu);
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
