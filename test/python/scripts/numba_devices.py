"""Several GPUs: a context for each, and copies between them."""
import numpy as np
from numba import cuda

import check


@cuda.jit
def fill(x, v):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = v


assert len(cuda.gpus) == 2, cuda.gpus
for gpu in cuda.gpus:
    assert gpu.name.startswith(b"SIMULATED "), gpu.name
uuids = {gpu.uuid for gpu in cuda.gpus}
assert len(uuids) == 2, uuids
arrays = []
for k in range(2):
    with cuda.gpus[k]:
        assert cuda.get_current_device().id == k
        x = cuda.device_array(100, np.int32)
        fill[1, 128](x, k + 7)
        arrays.append(x)
for k in range(2):
    with cuda.gpus[k]:
        check.equal(f"a kernel on GPU {k}", arrays[k].copy_to_host(), np.full(100, k + 7))
with cuda.gpus[1]:
    arrays[1].copy_to_device(arrays[0])
    check.equal("a copy from GPU 0 to GPU 1", arrays[1].copy_to_host(), np.full(100, 7))
with cuda.gpus[0]:
    assert cuda.current_context().can_access_peer(1)
