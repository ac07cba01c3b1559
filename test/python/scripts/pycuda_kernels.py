"""PyCUDA runs kernels of every compiler from PTX, with streams, events, and memory of every kind."""
import glob
import os

import numpy as np
import pycuda.driver as cuda

import check

rng = np.random.default_rng(6)
cuda.init()
assert cuda.Device(0).name().startswith("SIMULATED "), cuda.Device(0).name()
assert cuda.Device(0).get_attribute(cuda.device_attribute.WARP_SIZE) == 32
context = cuda.Device(0).make_context()
try:
    for path in sorted(glob.glob(os.path.join(os.environ["KERNELS"], "*.ptx"))):
        compiler = os.path.basename(path)[:-4]
        with open(path, "rb") as f:
            module = cuda.module_from_buffer(f.read())
        n = 1000
        x, y, out = rng.random(n, np.float32), rng.random(n, np.float32), np.zeros(n, np.float32)
        module.get_function("vectoradd")(cuda.In(x), cuda.In(y), cuda.Out(out), np.int32(n), block=(256, 1, 1), grid=(4, 1))
        check.equal(f"{compiler}: element by element", out, x + y)

        n = 48
        a, b, c = rng.random((n, n), np.float32), rng.random((n, n), np.float32), np.zeros((n, n), np.float32)
        module.get_function("gemm")(cuda.In(a), cuda.In(b), cuda.Out(c), np.int32(n), block=(16, 16, 1), grid=(3, 3))
        check.equal(f"{compiler}: a product of tiles", c, a @ b, rtol=1e-5)

        x, bins = rng.integers(0, 256, 10000).astype(np.uint8), np.zeros(256, np.uint32)
        module.get_function("histogram")(cuda.In(x), cuda.InOut(bins), np.int32(x.size), block=(192, 1, 1), grid=(8, 1))
        check.equal(f"{compiler}: atomics", bins, np.bincount(x, minlength=256))

        x, out = rng.integers(-50, 50, 256).astype(np.int32), np.zeros(256, np.int32)
        module.get_function("scan")(cuda.In(x), cuda.Out(out), block=(128, 1, 1), grid=(2, 1))
        check.equal(f"{compiler}: shuffles", out, x.reshape(8, 32).cumsum(1).ravel())

    address, size = module.get_global("weights")
    weights = np.zeros(5, np.float32)
    cuda.memcpy_dtoh(weights, address)
    check.equal("a module's constants", weights, [0.0625, 0.25, 0.375, 0.25, 0.0625])

    n = 4096
    f = module.get_function("saxpy").prepare("fPPi")
    stream, start, end = cuda.Stream(), cuda.Event(), cuda.Event()
    host = cuda.pagelocked_empty(n, np.float32)
    host[:] = np.arange(n)
    x, y = cuda.mem_alloc(host.nbytes), cuda.mem_alloc(host.nbytes)
    start.record(stream)
    cuda.memcpy_htod_async(x, host, stream)
    cuda.memset_d32_async(y, 0, n, stream)
    f.prepared_async_call((n // 128, 1), (128, 1, 1), stream, 2.0, x, y, n)
    cuda.memcpy_dtoh_async(host, y, stream)
    end.record(stream)
    end.synchronize()
    assert start.time_till(end) > 0
    check.equal("a stream with pinned memory", host, 2 * np.arange(n))

    managed = cuda.managed_zeros(n, np.float32, mem_flags=cuda.mem_attach_flags.GLOBAL)
    managed += 1
    f.prepared_call((n // 128, 1), (128, 1, 1), 3.0, x, np.intp(managed.base.get_device_pointer()), n)
    context.synchronize()
    check.equal("managed memory", managed, 3 * np.arange(n) + 1)
finally:
    context.pop()
