/* Floating-point values as bits, and the half-width formats. */
#ifndef REAL_H
#define REAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

static inline uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	return bits;
}

static inline double double_of(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, 8);
	return d;
}

static inline uint64_t bits_of_double(double d)
{
	uint64_t bits;

	memcpy(&bits, &d, 8);
	return bits;
}

/* Subnormal numbers become zero of the same sign (.ftz). */
static inline float flush(float x)
{
	uint32_t b = bits_of(x);

	return (b & 0x7f800000u) == 0 ? float_of(b & 0x80000000u) : x;
}

/* Into [0, 1]; NaN becomes +0 (.sat). */
static inline float saturate(float x) { return !(x > 0.0f) ? 0.0f : x > 1.0f ? 1.0f : x; }

/*
 * Rounds d to a format of p bits of precision whose normal numbers have
 * exponents emin … emax; flags is one of F_RN, F_RZ, F_RM, F_RP (or 0: RN).
 */
double round_to(double d, int p, int emin, int emax, unsigned flags);

/* Rounded once from d, which is exact for f16, bf16 and f32 sources. */
uint16_t half_from(double d, unsigned flags);
uint16_t bfloat_from(double d, unsigned flags);
double half_value(uint16_t h);
static inline double bfloat_value(uint16_t b) { return (double)float_of((uint32_t)b << 16); }

#endif
