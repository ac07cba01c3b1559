// Fused multiply-adds, as many as the GPU can do. It needs no CUDA headers: see generate.sh.
#define __global__ __attribute__((global))
typedef unsigned int u32;

#define CHAINS 8 // independent of each other: together they hide the latency of one step

// Each chain is a pendulum in small steps, x += y·step, y -= x·step: it swings on
// for ever and loses nothing, so a wrong step is still there at the end. A chain
// starts by its number and the lane alone, so that the host computes 32 lanes and knows all.
extern "C" __global__ void fp32(u32 *out, float step, float spread, int steps)
{
	u32 lane = __nvvm_read_ptx_sreg_tid_x() & 31, bits = 0;
	float x[CHAINS], y[CHAINS], back = -step;

#pragma unroll
	for (int k = 0; k < CHAINS; k++) {
		x[k] = (float)(lane * CHAINS + k + 1) * spread;
		y[k] = 1.0f;
	}
#pragma unroll 8
	for (int i = 0; i < steps; i++) {
#pragma unroll
		for (int k = 0; k < CHAINS; k++)
			x[k] = __nvvm_fma_rn_f(y[k], step, x[k]);
#pragma unroll
		for (int k = 0; k < CHAINS; k++)
			y[k] = __nvvm_fma_rn_f(x[k], back, y[k]);
	}
#pragma unroll
	for (int k = 0; k < CHAINS; k++)
		bits = (bits << 1 | bits >> 31) ^ __nvvm_bitcast_f2i(x[k]) ^ __nvvm_bitcast_f2i(y[k]) << 16;
	out[__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() + __nvvm_read_ptx_sreg_tid_x()] = bits;
}
