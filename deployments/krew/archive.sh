#!/bin/sh
# Packs DIR/OS-ARCH/kubectl-gpu of each platform into DIR/kubectl-gpu-VERSION-OS-ARCH.tar.gz, with the
# licences, and writes krew's manifest with the archives' sums to DIR/gpu.yaml. URI is the folder from
# which krew will fetch the archives; by default it is that of the release on GitHub.
set -eu
version=$1 dir=$2 uri=${3:-https://github.com/gpuready/gpuready/releases/download/$1}
top=$(cd "$(dirname "$0")/../.." && pwd)
if ! expr "$version" : 'v[0-9][0-9]*\.[0-9][0-9]*\.[0-9][0-9]*' >/dev/null; then
	echo "krew: the version is $version; krew wants one like v1.2.3: set VERSION" >&2
	exit 2
fi
sed "s|URI|${uri%/}|; s/VERSION/$version/g; /^#/d" "$top/deployments/krew/gpu.yaml" >"$dir/gpu.yaml"
for platform in linux-amd64 linux-arm64 darwin-amd64 darwin-arm64; do
	archive=$dir/kubectl-gpu-$version-$platform.tar.gz
	tar --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u=rwX --mtime=@0 -cf - \
		-C "$dir/$platform" kubectl-gpu -C "$top" LICENSE THIRD_PARTY.md | gzip -n >"$archive"
	sum=$(sha256sum <"$archive" | cut -d' ' -f1)
	sed -i "s/SHA256-$platform/$sum/" "$dir/gpu.yaml"
done
