"""Element-wise kernels of every type, grids of one to three dimensions, vectorize and reduce."""
import math

import numpy as np
from numba import cuda, float64, int32, vectorize

import check

rng = np.random.default_rng(1)


@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float32, np.float64, np.complex64, np.complex128):
    x, y = (rng.integers(0, 9, 1000).astype(dtype) for _ in range(2))
    out = np.zeros_like(x)
    axpy[4, 256](dtype(3), x, y, out)
    check.equal(f"axpy of {dtype.__name__}", out, 3 * x + y)


@cuda.jit
def index3(out):
    x, y, z = cuda.grid(3)
    if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
        out[x, y, z] = x * 10000 + y * 100 + z


out = np.zeros((9, 10, 11), np.int32)
index3[(3, 3, 3), (4, 4, 4)](out)
check.equal("a grid of three dimensions", out, np.fromfunction(lambda x, y, z: x * 10000 + y * 100 + z, out.shape))


@cuda.jit
def strided(x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = math.sqrt(x[i])


x = rng.random(5000)
want = np.sqrt(x)
strided[2, 64](x)
check.equal("a loop with the grid's stride", x, want)


@cuda.jit(device=True)
def clamp(v, low, high):
    return max(low, min(v, high))


@cuda.jit
def clamped(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = clamp(x[i], 0.25, 0.75)


x = rng.random(100)
want = x.clip(0.25, 0.75)
clamped[1, 128](x)
check.equal("a device function", x, want)


@vectorize([float64(float64, float64), int32(int32, int32)], target="cuda")
def ufunc(a, b):
    return a * a - b if a > b else b - a


a, b = rng.random(1000), rng.random(1000)
check.equal("vectorize", ufunc(a, b), np.where(a > b, a * a - b, b - a), rtol=1e-15)

add = cuda.reduce(lambda a, b: a + b)
check.equal("reduce", add(np.arange(12345.0)), np.arange(12345.0).sum())

record = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


@cuda.jit
def fields(r):
    i = cuda.grid(1)
    if i < r.size:
        r[i].b = r[i].a / 4


r = np.zeros(50, record)
r["a"] = np.arange(50)
fields[1, 64](r)
check.equal("fields of records", r["b"], np.arange(50) / 4)
