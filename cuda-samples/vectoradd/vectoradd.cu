// c[i] = a[i] + b[i], one element a thread. It needs no CUDA headers: see generate.sh.
#define __global__ __attribute__((global))

extern "C" __global__ void vectorAdd(const float *a, const float *b, float *c, int n)
{
	int i = __nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() +
	        __nvvm_read_ptx_sreg_tid_x();

	if (i < n)
		c[i] = a[i] + b[i];
}
