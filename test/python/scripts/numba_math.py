"""Functions of libdevice in single and double precision, against numpy and Python."""
import math

import numpy as np
from numba import cuda, types

import check

UNARY = "acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 fabs floor gamma lgamma log log10 log1p log2 sin sinh sqrt tan tanh".split()
BINARY = "atan2 copysign fmod hypot pow".split()
DOMAIN = {"acosh": (1, 9), "acos": (-1, 1), "asin": (-1, 1), "atanh": (-0.99, 0.99), "gamma": (0.1, 20), "lgamma": (0.1, 20),
          "log": (0.01, 99), "log10": (0.01, 99), "log1p": (-0.9, 99), "log2": (0.01, 99), "sqrt": (0, 99)}
rng = np.random.default_rng(4)


def kernel(name, arguments):
    scope = {"cuda": cuda, "math": math}
    exec(f"def k({', '.join(arguments)}, out):\n i = cuda.grid(1)\n if i < out.size: out[i] = math.{name}({', '.join(a + '[i]' for a in arguments)})\n", scope)
    return cuda.jit(scope["k"])


for dtype, rtol in ((np.float32, 4e-6), (np.float64, 1e-14)):
    for name in UNARY:
        low, high = DOMAIN.get(name, (-9, 9))
        x = rng.uniform(low, high, 200).astype(dtype)
        out = np.zeros_like(x)
        kernel(name, ["x"])[1, 256](x, out)
        want = np.array([getattr(math, name)(v) for v in x.astype(np.float64)])
        check.equal(f"{name} of {dtype.__name__}", out, want, rtol=rtol, atol=rtol)
    for name in BINARY:
        x, y = rng.uniform(0.1, 5, (2, 200)).astype(dtype)
        out = np.zeros_like(x)
        kernel(name, ["x", "y"])[1, 256](x, y, out)
        want = np.array([getattr(math, name)(a, b) for a, b in zip(x.astype(np.float64), y.astype(np.float64))])
        check.equal(f"{name} of {dtype.__name__}", out, want, rtol=rtol, atol=rtol)


@cuda.jit(fastmath=True)
def fast(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.sin(x[i]) / math.cos(x[i]) + math.exp(x[i]) * math.log(x[i] + types.float32(2))


x = rng.random(200).astype(np.float32)
out = np.zeros_like(x)
fast[1, 256](x, out)
check.equal("fast math", out, np.tan(x) + np.exp(x) * np.log(x + 2), rtol=1e-4)
