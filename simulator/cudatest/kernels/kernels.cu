// Kernels that together use what compilers emit for everyday CUDA.
#include "device.h"

extern "C" __global__ void vectoradd(const float *a, const float *b, float *c, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i < n)
		c[i] = a[i] + b[i];
}

extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
	for (int i = CTAID_X * NTID_X + TID_X; i < n; i += NTID_X * NCTAID_X)
		y[i] = FMA(a, x[i], y[i]);
}

// One sum for each block of 256 threads.
extern "C" __global__ void reduce(const float *in, float *out, int n)
{
	__shared__ float part[256];
	int t = TID_X, i = CTAID_X * 256 + t;

	part[t] = i < n ? in[i] : 0.0f;
	__syncthreads();
	for (int s = 128; s > 0; s >>= 1) {
		if (t < s)
			part[t] += part[t + s];
		__syncthreads();
	}
	if (t == 0)
		out[CTAID_X] = part[0];
}

// c = a × b, all n × n, n a multiple of 16; blocks of 16 × 16.
extern "C" __global__ void gemm(const float *a, const float *b, float *c, int n)
{
	__shared__ float ta[16][16], tb[16][16];
	int x = TID_X, y = TID_Y, row = CTAID_Y * 16 + y, column = CTAID_X * 16 + x;
	float sum = 0.0f;

	for (int k = 0; k < n; k += 16) {
		ta[y][x] = a[row * n + k + x];
		tb[y][x] = b[(k + y) * n + column];
		__syncthreads();
		for (int i = 0; i < 16; i++)
			sum = FMA(ta[y][i], tb[i][x], sum);
		__syncthreads();
	}
	c[row * n + column] = sum;
}

extern "C" __global__ void copy4(const vec4 *from, vec4 *to, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i < n)
		to[i] = from[i];
}

// A pattern that depends on every bit of the address, as memory tests write it.
extern "C" __global__ void pattern(u64 *to, u64 seed, int n)
{
	for (int i = CTAID_X * NTID_X + TID_X; i < n; i += NTID_X * NCTAID_X) {
		u64 v = seed + (u64)i * 0x9e3779b97f4a7c15ull;
		v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
		v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
		to[i] = v ^ (v >> 31);
	}
}

// Counts bytes: first in shared memory, then for the whole grid.
extern "C" __global__ void histogram(const unsigned char *in, u32 *bins, int n)
{
	__shared__ u32 local[256];

	for (int i = TID_X; i < 256; i += NTID_X)
		local[i] = 0;
	__syncthreads();
	for (int i = CTAID_X * NTID_X + TID_X; i < n; i += NTID_X * NCTAID_X)
		ATOMIC_ADD(&local[in[i]], 1u);
	__syncthreads();
	for (int i = TID_X; i < 256; i += NTID_X)
		ATOMIC_ADD(&bins[i], local[i]);
}

// Running sums within each warp.
extern "C" __global__ void scan(const int *in, int *out)
{
	int i = CTAID_X * NTID_X + TID_X, lane = TID_X & 31, v = in[i];

	for (int step = 1; step < 32; step <<= 1) {
		int other = SHFL_UP(v, step);
		if (lane >= step)
			v += other;
	}
	out[i] = v;
}

__device__ __noinline__ int gcd(int a, int b)
{
	while (b) {
		int r = a % b;
		a = b;
		b = r;
	}
	return a;
}

__device__ __noinline__ int fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

struct pair { int first; double second; };

__device__ __noinline__ pair both(int a, double b)
{
	pair p;
	p.first = gcd(a, 36);
	p.second = b / 3.0;
	return p;
}

// Calls in calls, a struct as a result, and a recursion as deep as the data says.
extern "C" __global__ void calls(const int *in, int *out, double *real, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i < n) {
		pair p = both(in[i], (double)in[i]);
		out[i] = p.first + fib(in[i] % 10);
		real[i] = p.second;
	}
}

// Loops whose length differs from lane to lane, with an early way out.
extern "C" __global__ void collatz(const u32 *in, u32 *steps, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i >= n)
		return;
	u32 v = in[i], k = 0;
	while (v != 1) {
		if (v & 1) {
			if (v > 1000000000u) {
				k = 0xffffffffu;
				break;
			}
			v = 3 * v + 1;
		} else {
			v >>= 1;
		}
		k++;
	}
	steps[i] = k;
}

// A choice of many ways, from a jump table or a chain of branches.
extern "C" __global__ void choices(const int *in, int *out, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i >= n)
		return;
	int v = in[i];
	switch (v & 7) {
	case 0: v = v * 3; break;
	case 1: v = v + 100; break;
	case 2: v = v ^ 0x55; break;
	case 3: v = ~v; break;
	case 4: v = v << 3; break;
	case 5: v = v >> 2; break;
	case 6: v = -v; break;
	default: v = v % 11;
	}
	out[i] = v;
}

// An array of each thread's own, indexed by data.
extern "C" __global__ void locals(const int *in, int *out, int n)
{
	int i = CTAID_X * NTID_X + TID_X, seen[16];
	if (i >= n)
		return;
	for (int k = 0; k < 16; k++)
		seen[k] = k * in[i];
	for (int k = 0; k < 16; k++)
		seen[in[(i + k) % n] & 15] += k;
	int sum = 0;
	for (int k = 0; k < 16; k++)
		sum = sum * 31 + seen[k];
	out[i] = sum;
}

// A lock that lanes of one warp fight for.
extern "C" __global__ void lock(int *mutex, int *count, int rounds)
{
	for (int k = 0; k < rounds; k++) {
		bool done = false;
		while (!done) {
			if (ATOMIC_CAS(mutex, 0, 1) == 0) {
				*(volatile int *)count = *(volatile int *)count + 1;
#ifndef __CUDACC_VER_MAJOR__
				__nvvm_membar_gl();
				__nvvm_atom_xchg_gen_i(mutex, 0);
#else
				__threadfence();
				atomicExch(mutex, 0);
#endif
				done = true;
			}
		}
	}
}

__constant__ float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
__device__ int launches = 41;

// A filter with weights in constant memory; a variable that outlives the launch.
extern "C" __global__ void filter(const float *in, float *out, int n)
{
	int i = CTAID_X * NTID_X + TID_X;
	if (i == 0)
		launches++;
	if (i < 2 || i >= n - 2)
		return;
	float sum = 0.0f;
	for (int k = 0; k < 5; k++)
		sum = FMA(weights[k], in[i + k - 2], sum);
	out[i] = sum;
}
