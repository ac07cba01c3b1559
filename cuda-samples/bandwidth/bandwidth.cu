// Memory at full speed, and what shows that the right bytes were moved. It needs
// no CUDA headers: see generate.sh.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float vec4 __attribute__((ext_vector_type(4)));

#define THREADS ((u64)__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_nctaid_x())
#define THREAD ((u64)__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() + \
                __nvvm_read_ptx_sreg_tid_x())

// One vector a thread, in small blocks: on an NVIDIA H200 that copies 4.29 TB/s, where
// fewer threads with four loads under way each copy 4.24.
extern "C" __global__ void copy(const vec4 *from, vec4 *to, u64 n)
{
	u64 i = THREAD;

	if (i < n)
		to[i] = from[i];
}

// to = b + factor × c, the triad of STREAM.
extern "C" __global__ void triad(const vec4 *b, const vec4 *c, vec4 *to, float factor, u64 n)
{
	u64 i = THREAD;

	if (i < n)
		to[i] = b[i] + factor * c[i];
}

// A word that depends on every bit of its index and of the seed (MurmurHash3's last step).
static inline __device__ u32 word(u64 i, u32 seed)
{
	u32 v = ((u32)i ^ (u32)(i >> 32)) + seed * 0x9e3779b9u;

	v = (v ^ v >> 16) * 0x85ebca6bu;
	v = (v ^ v >> 13) * 0xc2b2ae35u;
	return v ^ v >> 16;
}

// A whole number below 65536, so that sums of a few are exact.
static inline __device__ float whole(u64 i, u32 seed) { return (float)(word(i, seed) >> 16); }

extern "C" __global__ void fill(u32 *to, u64 n, u32 seed)
{
	for (u64 i = THREAD; i < n; i += THREADS)
		to[i] = word(i, seed);
}

extern "C" __global__ void fillWhole(float *to, u64 n, u32 seed)
{
	for (u64 i = THREAD; i < n; i += THREADS)
		to[i] = whole(i, seed);
}

// What a check found: how many words are wrong, and the first: its index in the upper
// half, what it is in the lower. It lies in the host's memory, and an atomic over the
// host link is dear: ENOUGH wrong words are.
#define ENOUGH 4096
struct found {
	u32 count, unused;
	u64 first;
};

static inline __device__ void wrong(found *f, u64 i, u32 got)
{
	if (*(volatile u32 *)&f->count >= ENOUGH)
		return;
	__nvvm_atom_add_gen_i((int *)&f->count, 1);
	__nvvm_atom_min_gen_ull(&f->first, i << 32 | got);
}

extern "C" __global__ void check(const u32 *from, u64 n, u32 seed, found *f)
{
	for (u64 i = THREAD; i < n; i += THREADS)
		if (from[i] != word(i, seed))
			wrong(f, i, from[i]);
}

extern "C" __global__ void checkTriad(const float *from, u64 n, u32 seedB, u32 seedC, float factor, found *f)
{
	for (u64 i = THREAD; i < n; i += THREADS)
		if (from[i] != whole(i, seedB) + factor * whole(i, seedC))
			wrong(f, i, __nvvm_bitcast_f2i(from[i]));
}
