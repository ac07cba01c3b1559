"""An access out of bounds ends in Numba's exception, with CUDA's words, and so does each call after it."""
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import check


@cuda.jit(debug=True, opt=False)
def strict(x):
    if x[0] == 0:
        raise ValueError("x is 0")


strict[1, 1](np.ones(1))
e = check.raises("an exception in a kernel", "tid=[0, 0, 0] ctaid=[0, 0, 0]: x is 0", lambda: strict[1, 1](np.zeros(1)))
assert isinstance(e, ValueError), e
check.raises("shared memory that no GPU has", "[1] Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE", lambda: strict[1, 1, 0, 1 << 20](np.ones(1)))
check.raises("too many threads", "[1] Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE", lambda: strict[1, 2048](np.ones(1)))


@cuda.jit
def wild(x):
    x[cuda.grid(1) + 1000000] = 1


x = cuda.to_device(np.zeros(8))


def launch():
    wild[1, 32](x)
    cuda.synchronize()


# Numba 0.56 has no name for it, on a GPU neither.
e = check.raises("an access out of bounds", "[700] Call to cuCtxSynchronize results in UNKNOWN_CUDA_ERROR", launch)
assert isinstance(e, CudaAPIError) and e.code == 700, e
check.raises("the context is lost", "[700]", lambda: cuda.to_device(np.zeros(8)))
