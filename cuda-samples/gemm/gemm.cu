// C = A B in single precision: a block makes a tile of C, a thread one element, and
// the tiles of A and B go through shared memory. It needs no CUDA headers: see
// generate.sh. A is m x k, B k x n, C m x n, each row after row.
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define TILE 16

extern "C" __global__ void fp32(const float *a, const float *b, float *c, int m, int n, int k)
{
	__shared__ float ta[TILE][TILE], tb[TILE][TILE];
	int x = __nvvm_read_ptx_sreg_tid_x(), y = __nvvm_read_ptx_sreg_tid_y();
	int column = TILE * __nvvm_read_ptx_sreg_ctaid_x() + x;
	int row = TILE * __nvvm_read_ptx_sreg_ctaid_y() + y;
	float sum = 0;

	for (int p = 0; p < k; p += TILE) {
		ta[y][x] = row < m && p + x < k ? a[(long)row * k + p + x] : 0;
		tb[y][x] = p + y < k && column < n ? b[(long)(p + y) * n + column] : 0;
		__syncthreads();
		for (int i = 0; i < TILE; i++)
			sum = __nvvm_fma_rn_f(ta[y][i], tb[i][x], sum);
		__syncthreads();
	}
	if (row < m && column < n)
		c[(long)row * n + column] = sum;
}
