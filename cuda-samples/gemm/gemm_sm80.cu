// C = A B of bfloat16 in the tensor cores, summed in single precision: a warp makes
// 16 x 8 of C. A is m x k, row after row; B is given column after column, so that
// two numbers that follow each other in k lie in one word. m, n and k are multiples
// of 16, 8 and 16: gemm/matrix.go fills up with zeros. Which lane holds what is in
// the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#define __global__ __attribute__((global))
typedef unsigned int u32;

static __attribute__((device)) void mma(float d[4], const u32 a[4], const u32 b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void bf16(const u32 *a, const u32 *b, float *c, int n, int k)
{
	int lane = __nvvm_read_ptx_sreg_tid_x(), warp = __nvvm_read_ptx_sreg_tid_y();
	int warps = __nvvm_read_ptx_sreg_ntid_y();
	int group = lane / 4, of_four = lane % 4;
	int row = 16 * __nvvm_read_ptx_sreg_ctaid_y() + group;
	int column = 8 * (warps * __nvvm_read_ptx_sreg_ctaid_x() + warp);
	int words = k / 2;
	float sum[4] = {0, 0, 0, 0};

	if (column >= n)
		return;
	const u32 *upper = a + (long)row * words + of_four, *lower = upper + 8l * words;
	const u32 *right = b + (long)(column + group) * words + of_four;

	for (int p = 0; p < words; p += 8) {
		u32 fa[4] = {upper[p], lower[p], upper[p + 4], lower[p + 4]};
		u32 fb[2] = {right[p], right[p + 4]};

		mma(sum, fa, fb);
	}
	float *top = c + (long)row * n + column + 2 * of_four, *bottom = top + 8l * n;

	top[0] = sum[0];
	top[1] = sum[1];
	bottom[0] = sum[2];
	bottom[1] = sum[3];
}
