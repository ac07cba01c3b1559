// What the kernels need of CUDA, for clang without its headers and for nvcc.
#ifndef __CUDACC_VER_MAJOR__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define TID_X __nvvm_read_ptx_sreg_tid_x()
#define TID_Y __nvvm_read_ptx_sreg_tid_y()
#define NTID_X __nvvm_read_ptx_sreg_ntid_x()
#define CTAID_X __nvvm_read_ptx_sreg_ctaid_x()
#define CTAID_Y __nvvm_read_ptx_sreg_ctaid_y()
#define NCTAID_X __nvvm_read_ptx_sreg_nctaid_x()
#define ATOMIC_ADD(p, v) __nvvm_atom_add_gen_i((int *)(p), (int)(v))
#define ATOMIC_MAX(p, v) __nvvm_atom_max_gen_i(p, v)
#define ATOMIC_CAS(p, c, v) __nvvm_atom_cas_gen_i(p, c, v)
#define SHFL_UP(v, n) __nvvm_shfl_up_i32(v, n, 0)
#define FMA(a, b, c) __nvvm_fma_rn_f(a, b, c)
struct alignas(16) vec4 { float x, y, z, w; };
#else
#define TID_X threadIdx.x
#define TID_Y threadIdx.y
#define NTID_X blockDim.x
#define CTAID_X blockIdx.x
#define CTAID_Y blockIdx.y
#define NCTAID_X gridDim.x
#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define ATOMIC_MAX(p, v) atomicMax(p, v)
#define ATOMIC_CAS(p, c, v) atomicCAS(p, c, v)
#define SHFL_UP(v, n) __shfl_up_sync(0xffffffffu, v, n)
#define FMA(a, b, c) __fmaf_rn(a, b, c)
typedef float4 vec4;
#endif
typedef unsigned int u32;
typedef unsigned long long u64;
