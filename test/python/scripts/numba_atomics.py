"""Atomic operations in global and shared memory."""
import numpy as np
from numba import cuda, int32

import check

rng = np.random.default_rng(3)


@cuda.jit
def histogram(x, bins):
    own = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 64:
        own[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(own, x[i], 1)
    cuda.syncthreads()
    if t < 64:
        cuda.atomic.add(bins, t, own[t])


x, bins = rng.integers(0, 64, 20000), np.zeros(64, np.int32)
histogram[6, 128](x, bins)
check.equal("histogram", bins, np.bincount(x, minlength=64))


@cuda.jit
def extremes(x, high, low, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(high, 0, x[i])
        cuda.atomic.min(low, 0, x[i])
        cuda.atomic.add(total, 0, x[i])


for dtype in (np.int32, np.int64, np.float32, np.float64):
    x = rng.integers(-1000, 1000, 3000).astype(dtype)
    high, low, total = np.full(1, -9999, dtype), np.full(1, 9999, dtype), np.zeros(1, dtype)
    extremes[12, 256](x, high, low, total)
    check.equal(f"max, min and add of {dtype.__name__}", [high[0], low[0], total[0]], [x.max(), x.min(), x.sum()])


@cuda.jit
def bits(x, out):
    i = cuda.grid(1)
    cuda.atomic.or_(out, 0, x[i])
    cuda.atomic.and_(out, 1, x[i])
    cuda.atomic.xor(out, 2, x[i])
    cuda.atomic.inc(out, 3, 9)
    cuda.atomic.dec(out, 4, 9)


x = rng.integers(0, 2**31, 128).astype(np.uint32)
out = np.array([0, 0xFFFFFFFF, 0, 0, 0], np.uint32)
bits[2, 64](x, out)
check.equal("or, and, xor, inc, dec", out, [np.bitwise_or.reduce(x), np.bitwise_and.reduce(x), np.bitwise_xor.reduce(x), 128 % 10, (10 - 128 % 10) % 10])


@cuda.jit
def locked(mutex, count):
    for _ in range(2):
        done = False
        while not done:
            if cuda.atomic.compare_and_swap(mutex, 0, 1) == 0:
                count[0] += 1
                cuda.threadfence()
                cuda.atomic.exch(mutex, 0, 0)
                done = True


mutex, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
locked[2, 64](mutex, count)
check.equal("a lock of compare-and-swap", count, [256])
