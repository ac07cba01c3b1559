"""Streams, events, and memory that is pinned, mapped or managed."""
import numpy as np
from numba import cuda

import check


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


n = 4096
streams = [cuda.stream() for _ in range(3)]
parts = [cuda.pinned_array(n) for _ in streams]
for k, (part, stream) in enumerate(zip(parts, streams)):
    part[:] = np.arange(n) + k
    device = cuda.to_device(part, stream=stream)
    double[n // 128, 128, stream](device)
    device.copy_to_host(part, stream=stream)
for k, (part, stream) in enumerate(zip(parts, streams)):
    stream.synchronize()
    check.equal(f"copies and a kernel in stream {k}", part, 2 * (np.arange(n) + k))

start, end = cuda.event(), cuda.event()
start.record(streams[0])
x = cuda.to_device(np.ones(n), stream=streams[0])
double[n // 128, 128, streams[0]](x)
end.record(streams[0])
end.wait(streams[1])
end.synchronize()
assert end.query() and cuda.event_elapsed_time(start, end) > 0
check.equal("events around a kernel", x.copy_to_host(), np.full(n, 2.0))

mapped = cuda.mapped_array(n)
mapped[:] = 3
double[n // 128, 128](mapped)
cuda.synchronize()
check.equal("memory of the host that is mapped", mapped, np.full(n, 6.0))

managed = cuda.managed_array(n)
managed[:] = 4
double[n // 128, 128](managed)
cuda.synchronize()
check.equal("managed memory", managed, np.full(n, 8.0))

plain = np.full(n, 5.0)
with cuda.pinned(plain):
    device = cuda.to_device(plain)
    double[n // 128, 128](device)
    device.copy_to_host(plain)
check.equal("an array that is pinned for a while", plain, np.full(n, 10.0))

device = cuda.device_array((64, 64), np.int32)
device[:] = np.arange(64, dtype=np.int32)
check.equal("a slice of device memory", device[10:20, 5].copy_to_host(), np.full(10, 5))
free, total = cuda.current_context().get_memory_info()
assert 0 < free <= total
check.raises("more memory than the GPU has", "CUDA_ERROR_OUT_OF_MEMORY", lambda: cuda.device_array(total, np.float64))
