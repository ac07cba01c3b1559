"""Matrix products: one thread for an element, and tiles in shared memory behind barriers."""
import numpy as np
from numba import cuda, float32, int32

import check

TILE = 16
rng = np.random.default_rng(2)


@cuda.jit
def naive(a, b, c):
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@cuda.jit
def tiled(a, b, c):
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    i, j = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for t in range((a.shape[1] + TILE - 1) // TILE):
        k = t * TILE
        sa[x, y] = a[i, k + y] if i < a.shape[0] and k + y < a.shape[1] else float32(0)
        sb[x, y] = b[k + x, j] if k + x < b.shape[0] and j < b.shape[1] else float32(0)
        cuda.syncthreads()
        for n in range(TILE):
            total += sa[x, n] * sb[n, y]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


a, b = rng.random((50, 70)).astype(np.float32), rng.random((70, 60)).astype(np.float32)
for kernel in (naive, tiled):
    c = np.zeros((50, 60), np.float32)
    kernel[(4, 4), (TILE, TILE)](a, b, c)
    check.equal(f"{kernel.py_func.__name__} product", c, a @ b, rtol=1e-5)


@cuda.jit
def reverse(x):
    s = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    x[i] = s[x.size - 1 - i]


x = np.arange(256, dtype=np.float32)
reverse[1, 256, 0, 256 * 4](x)
check.equal("shared memory sized at the launch", x, np.arange(256)[::-1])


@cuda.jit
def counted(x, out):
    i = cuda.threadIdx.x
    n = cuda.syncthreads_count(int32(x[i] > 0.5))
    both = cuda.syncthreads_and(int32(x[i] >= 0)) + 2 * cuda.syncthreads_or(int32(x[i] > 2))
    if i == 0:
        out[0], out[1] = n, both


x, out = rng.random(200), np.zeros(2, np.int32)
counted[1, 200](x, out)
check.equal("barriers that count", out, [(x > 0.5).sum(), 1])
