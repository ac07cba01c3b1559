// Each block reduces its share of the elements to one: first every thread its own,
// a grid apart, then the block in halves through shared memory. It needs no CUDA
// headers: see generate.sh. The order of the additions is that of reference.go.
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define THREADS 256

struct add {
	static constexpr float none = 0;
	static __attribute__((device)) float of(float a, float b) { return a + b; }
};

struct max {
	static constexpr float none = -__builtin_inff();
	static __attribute__((device)) float of(float a, float b) { return b > a ? b : a; }
};

template <class op> static __attribute__((device)) void reduce(const float *in, float *out, int n)
{
	__shared__ float part[THREADS];
	int thread = __nvvm_read_ptx_sreg_tid_x();
	int block = __nvvm_read_ptx_sreg_ctaid_x();
	int all = THREADS * __nvvm_read_ptx_sreg_nctaid_x();
	float own = op::none;

	for (long i = THREADS * (long)block + thread; i < n; i += all)
		own = op::of(own, in[i]);
	part[thread] = own;
	__syncthreads();
	for (int half = THREADS / 2; half > 0; half /= 2) {
		if (thread < half)
			part[thread] = op::of(part[thread], part[thread + half]);
		__syncthreads();
	}
	if (thread == 0)
		out[block] = part[0];
}

extern "C" __global__ void sum(const float *in, float *out, int n) { reduce<add>(in, out, n); }
extern "C" __global__ void maximum(const float *in, float *out, int n) { reduce<max>(in, out, n); }
