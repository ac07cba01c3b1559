#!/bin/sh
# Compiles each sample's .cu to the .ptx beside it, which is checked in: building
# the samples needs no CUDA toolkit. The compiler's major version is pinned, for
# others write other PTX; sm_50 is what every GPU since Maxwell runs. What needs a
# newer one is in a module of its own, whose name ends in it: gemm_sm80.cu.
set -eu
clang=${CLANG:-clang-14}
cd "$(dirname "$0")"
"$clang" --version | grep -q 'clang version 14\.' || {
	echo "generate.sh: $clang is not clang 14; install clang-14, or name it in CLANG" >&2
	exit 1
}
for source in */*.cu; do
	case $source in
	*_sm80.cu) arch=sm_80 ;;
	*) arch=sm_50 ;;
	esac
	"$clang" -x cuda --cuda-device-only "--cuda-gpu-arch=$arch" -nocudainc -nocudalib \
		-O2 -ffp-contract=off -S "$source" -o "${source%.cu}.ptx"
done
