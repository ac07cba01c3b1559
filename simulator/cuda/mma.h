/* The fragments of mma: rows of registers that hold a warp's matrices. */
#ifndef MMA_H
#define MMA_H

#include "ptx.h"

#define MMA_M 16
#define MMA_N 8
#define MMA_K 16 /* at most */

struct mma {
	uint8_t k;      /* 4, 8 or 16 */
	enum type type; /* of a and b: T_BF16, T_F16, or T_F32 for tf32 */
	bool half;      /* c and d are f16 */
	uint8_t na, nb, nc;         /* registers of a, of b, and of c and d */
	ref d[4], a[4], b[2], c[4];
};

#endif
