// Writes patterns to memory and reads them back. It needs no CUDA headers: see generate.sh.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 vec4 __attribute__((ext_vector_type(4)));

#define THREADS ((u64)__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_nctaid_x())
#define THREAD ((u64)__nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() + \
                __nvvm_read_ptx_sreg_tid_x())

// pattern.go computes the same.
enum { CONSTANT, WALKING, ADDRESS, RANDOM };

struct pattern {
	u32 kind, seed, invert;
};

// The word that belongs to address, the i-th of all that are tested.
static inline __device__ u32 word(pattern p, u64 i, u64 address)
{
	u32 v = p.seed;

	switch (p.kind) {
	case WALKING:
		v = 1u << ((u32)(i + p.seed) & 31);
		break;
	case ADDRESS: // of two addresses that differ in one bit, the words differ, too
		v = (u32)(address >> 2) ^ (u32)(address >> 34) * 0x9e3779b1u;
		break;
	case RANDOM: // MurmurHash3's last step
		v = ((u32)i ^ (u32)(i >> 32)) + p.seed * 0x9e3779b9u;
		v = (v ^ v >> 16) * 0x85ebca6bu;
		v = (v ^ v >> 13) * 0xc2b2ae35u;
		v ^= v >> 16;
	}
	return v ^ p.invert;
}

// Four words, of which i is the first one's index.
static inline __device__ vec4 words(pattern p, u64 i, u64 address)
{
	return (vec4){word(p, i, address), word(p, i + 1, address + 4), word(p, i + 2, address + 8), word(p, i + 3, address + 12)};
}

// The bad words, as many as there is room for, and how many there are: not counted
// on when it is full. It lies in the host's memory, which is not what is tested.
struct bad {
	u64 address;
	u32 want, got;
};
struct log {
	u32 count, room;
	bad found[1];
};

static inline __device__ void note(log *l, u64 address, u32 want, u32 got)
{
	if (*(volatile u32 *)&l->count >= l->room) // an atomic over the host link is dear
		return;
	u32 i = (u32)__nvvm_atom_add_gen_i((int *)&l->count, 1);

	if (i < l->room)
		l->found[i] = (bad){address, want, got};
}

static inline __device__ void compare(log *l, u64 address, vec4 want, vec4 got)
{
	if (((want.x ^ got.x) | (want.y ^ got.y) | (want.z ^ got.z) | (want.w ^ got.w)) == 0)
		return;
	for (int k = 0; k < 4; k++)
		if (want[k] != got[k])
			note(l, address + 4 * k, want[k], got[k]);
}

// memory holds 4 × n words; first is the index of its first word among all that are tested.
extern "C" __global__ void write(vec4 *memory, u64 n, u64 first, u32 kind, u32 seed, u32 invert)
{
	pattern p = {kind, seed, invert};

	for (u64 i = THREAD; i < n; i += THREADS)
		memory[i] = words(p, first + 4 * i, (u64)(memory + i));
}

extern "C" __global__ void verify(const vec4 *memory, u64 n, u64 first, u32 kind, u32 seed, u32 invert, log *l)
{
	pattern p = {kind, seed, invert};

	for (u64 i = THREAD; i < n; i += THREADS)
		compare(l, (u64)(memory + i), words(p, first + 4 * i, (u64)(memory + i)), memory[i]);
}

// Verifies each word and writes its inverse at once, as moving inversions do.
extern "C" __global__ void turn(vec4 *memory, u64 n, u64 first, u32 kind, u32 seed, u32 invert, log *l)
{
	pattern p = {kind, seed, invert};

	for (u64 i = THREAD; i < n; i += THREADS) {
		vec4 want = words(p, first + 4 * i, (u64)(memory + i));

		compare(l, (u64)(memory + i), want, memory[i]);
		memory[i] = ~want;
	}
}
