"""PyCUDA's exceptions have CUDA's words: for cubins, for PTX that is wrong or not served, and out of bounds."""
import os
import subprocess
import sys
import tempfile
import traceback

import numpy as np
import pycuda.driver as cuda

import check

HEADER = b".version 7.0\n.target sm_70\n.address_size 64\n"
cuda.init()
context = cuda.Device(0).make_context()
try:
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "k.cubin")
        subprocess.run(["ptxas", "-arch=sm_90", "-o", cubin, os.path.join(os.environ["KERNELS"], "nvcc-11.8.ptx")], check=True)
        check.raises("machine code for a GPU", "no kernel image is available for execution on the device", lambda: cuda.module_from_file(cubin))
    check.raises("an opcode that does not exist", "a PTX JIT compilation failed",
                 lambda: cuda.module_from_buffer(HEADER + b".entry k() { .reg .b32 %r; frobnicate.u32 %r, 1; ret; }\n"))
    check.raises("an opcode that is not served", "operation not supported",
                 lambda: cuda.module_from_buffer(HEADER + b".entry k()\n{\n\t.reg .b32 %r;\n\tmovmatrix.sync.aligned.m8n8.trans.b16 %r, %r;\n}\n"))

    module = cuda.module_from_file(os.path.join(os.environ["KERNELS"], "clang-16.ptx"))
    f = module.get_function("vectoradd")
    check.raises("a kernel that is not there", "named symbol not found", lambda: module.get_function("nothing"))
    check.raises("a block that is too large", "invalid argument", lambda: f(np.intp(0), np.intp(0), np.intp(0), np.int32(0), block=(2048, 1, 1)))
    x = cuda.mem_alloc(4000)

    def wild():
        f(x, x, x, np.int32(100000), block=(256, 1, 1), grid=(400, 1))
        context.synchronize()

    e = check.raises("an access out of bounds", "an illegal memory access was encountered", wild)
    assert type(e).__name__ == "LogicError", e
    failed = 0
except Exception:
    traceback.print_exc()
    failed = 1
# The context is lost, and PyCUDA would say so for everything that it frees.
sys.stdout.flush()
os._exit(failed)
