/* The fragments of mma: rows of registers that hold a warp's matrices. */
#ifndef MMA_H
#define MMA_H

#include "ptx.h"

#define MMA_M 16
#define MMA_N 8
#define MMA_K 16 /* at most */

struct mma {
	uint8_t k;               /* 8 or 16 */
	ref d[4], a[4], b[2], c[4]; /* of a and b, k/4 and k/8 are in use */
};

#endif
