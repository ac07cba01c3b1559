#!/bin/sh
# Compiles kernels.cu with several compilers; what they write is checked in, so
# that tests need none of them. clang-14 and clang-16 are Debian's; nvcc 11.8 is
# in Debian's non-free part (NVCC names it; without one its file stays as it is).
set -eu
cd "$(dirname "$0")"
flags="-x cuda --cuda-device-only --cuda-gpu-arch=sm_50 -nocudainc -nocudalib -std=c++17 -ffp-contract=off -S"
# shellcheck disable=SC2086 # the flags are meant to be split
{
	clang-14 $flags -O2 kernels.cu -o clang-14.ptx
	clang-14 $flags -O0 kernels.cu -o clang-14-O0.ptx
	clang-16 $flags -O2 kernels.cu -o clang-16.ptx
}
if [ -n "${NVCC:-}" ]; then
	"$NVCC" -ptx -arch=sm_52 -std=c++17 -fmad=false kernels.cu -o nvcc-11.8.ptx
	"$NVCC" -ptx -arch=sm_80 -std=c++17 -fmad=false kernels.cu -o nvcc-11.8-sm_80.ptx
fi
