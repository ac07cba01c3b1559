#!/bin/sh
# Says what make cluster installs and compiles the first time on a machine, how long that takes, and what stays.
# The next times it prints nothing.
set -eu
cd "$(dirname "$0")/../../.."
cache=${GPUREADY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuready}
version=$(sed -n 's/^.*k8s.io\/kubernetes \(v[^ ]*\).*$/\1/p' test/lab/binaries/kubernetes/go.mod | head -n 1)
packages=$(.ci/packages.sh --missing build cluster images)
kubernetes=
for entry in "$cache/binaries/kubernetes-$version"-*; do
	[ -d "$entry" ] && kubernetes=1
done
[ -n "$packages" ] || [ -z "$kubernetes" ] || exit 0

echo 'make cluster prepares this machine, once. What it adds stays, so that the next time takes seconds:'
if [ -n "$packages" ]; then
	echo "  packages    $packages, by apt-get"
fi
if [ -z "$kubernetes" ]; then
	echo "  binaries    etcd, Kubernetes $version, containerd and runc, compiled into $cache: about 13 minutes on 2 cores"
fi
echo "  programs    those of this tree and their images, in bin/: minutes on 2 cores"
echo "  Go          sources in $(go env GOMODCACHE), compiled packages in $(go env GOCACHE): several GB"
echo "make clean, rm -r $cache and go clean -cache -modcache remove all but the packages."
echo
