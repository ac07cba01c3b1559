// Products of bf16 matrices on tensor cores, as many as the GPU can do; sm_80 and newer.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef unsigned int u32;

// A warp multiplies ROWS fragments of A (16 × 16) with COLUMNS of B (16 × 8) into
// ROWS × COLUMNS tiles, which do not depend on each other: 8 of them, and as many
// warps as fit, hide the latency of a step; all of it stays in registers.
#define ROWS 2
#define COLUMNS 4

// A small whole number as bf16, by the place in the register file it goes to: -3 to 3.
static inline __device__ u32 number(u32 place)
{
	int v = (int)(place * 2654435761u >> 29) - 3;

	return (u32)__nvvm_bitcast_f2i((float)(v > 3 ? 3 : v)) >> 16;
}

static inline __device__ u32 pair(u32 place) { return number(2 * place) | number(2 * place + 1) << 16; }

// Adds the same products steps times: all sums are whole numbers below 2^24, and so exact.
extern "C" __global__ void bf16(u32 *out, int steps)
{
	u32 lane = __nvvm_read_ptx_sreg_tid_x() & 31, a[ROWS][4], b[COLUMNS][2];
	float d[ROWS][COLUMNS][4];

#pragma unroll
	for (int r = 0; r < ROWS; r++)
#pragma unroll
		for (int k = 0; k < 4; k++)
			a[r][k] = pair((r * 4 + k) * 32 + lane);
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
#pragma unroll
		for (int k = 0; k < 2; k++)
			b[c][k] = pair((ROWS * 4 + c * 2 + k) * 32 + lane);
#pragma unroll
	for (int r = 0; r < ROWS; r++)
#pragma unroll
		for (int c = 0; c < COLUMNS; c++)
#pragma unroll
			for (int k = 0; k < 4; k++)
				d[r][c][k] = 0;
	for (int i = 0; i < steps; i++)
#pragma unroll
		for (int r = 0; r < ROWS; r++)
#pragma unroll
			for (int c = 0; c < COLUMNS; c++)
				asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
				    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
				    : "+f"(d[r][c][0]), "+f"(d[r][c][1]), "+f"(d[r][c][2]), "+f"(d[r][c][3])
				    : "r"(a[r][0]), "r"(a[r][1]), "r"(a[r][2]), "r"(a[r][3]), "r"(b[c][0]), "r"(b[c][1]));
	u32 bits = 0;
#pragma unroll
	for (int r = 0; r < ROWS; r++)
#pragma unroll
		for (int c = 0; c < COLUMNS; c++)
#pragma unroll
			for (int k = 0; k < 4; k++)
				bits = (bits << 1 | bits >> 31) ^ __nvvm_bitcast_f2i(d[r][c][k]);
	out[__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() + __nvvm_read_ptx_sreg_tid_x()] = bits;
}
