"""Shuffles, votes and other operations of a warp."""
import numpy as np
from numba import cuda

import check

FULL = 0xFFFFFFFF
rng = np.random.default_rng(5)


@cuda.jit
def total(x, out):
    v = x[cuda.grid(1)]
    for step in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(FULL, v, step)
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = v


for dtype in (np.int32, np.int64, np.float32, np.float64):
    x, out = rng.integers(0, 100, 256).astype(dtype), np.zeros(8, dtype)
    total[2, 128](x, out)
    check.equal(f"a sum by shuffles of {dtype.__name__}", out, x.reshape(8, 32).sum(1))


@cuda.jit
def shuffles(x, out):
    i = cuda.grid(1)
    out[0, i] = cuda.shfl_sync(FULL, x[i], 5)
    out[1, i] = cuda.shfl_up_sync(FULL, x[i], 1)
    out[2, i] = cuda.shfl_xor_sync(FULL, x[i], 3)


x, out = np.arange(32, dtype=np.int32), np.zeros((3, 32), np.int32)
shuffles[1, 32](x, out)
check.equal("shuffles", out, [np.full(32, 5), np.r_[0, np.arange(31)], np.arange(32) ^ 3])


@cuda.jit
def votes(x, out):
    i = cuda.grid(1)
    p = x[i] > 10
    out[0, i] = cuda.all_sync(FULL, p)
    out[1, i] = cuda.any_sync(FULL, p)
    out[2, i] = cuda.eq_sync(FULL, p)
    out[3, i] = cuda.popc(cuda.ballot_sync(FULL, p))
    out[4, i] = cuda.popc(cuda.match_any_sync(FULL, x[i] % 4))
    out[5, i] = cuda.popc(cuda.activemask())
    out[6, i] = cuda.lanemask_lt()
    out[7, i] = cuda.ffs(x[i]) + cuda.clz(x[i])


out = np.zeros((8, 32), np.uint32)
votes[1, 32](x, out)
lanes = np.arange(32)
ffs = np.array([(v & -v).bit_length() for v in lanes.tolist()])
clz = np.array([32 - v.bit_length() for v in lanes.tolist()])
check.equal("votes", out, [0 * lanes, 1 + 0 * lanes, 0 * lanes, 21 + 0 * lanes, 8 + 0 * lanes, 32 + 0 * lanes, (1 << lanes) - 1, ffs + clz])


@cuda.jit
def apart(out):
    i = cuda.laneid
    if i % 3 == 0:
        out[i] = cuda.popc(cuda.activemask())
        cuda.syncwarp(0x49249249)
    else:
        out[i] = -1


out = np.zeros(32, np.int32)
apart[1, 32](out)
check.equal("lanes that part", out, np.where(lanes % 3 == 0, 11, -1))
