#!/usr/bin/env bash
# Builds main.go, with Kubernetes, etcd and containerd at the versions of the tests' clusters: build.sh MODULES OUT
#
# MODULES is test/lab/binaries. The module is made here, of theirs; go build adds the sums of what the three
# together need.
set -euo pipefail
modules=$(realpath "$1") out=$(realpath -m "$2") here=$(realpath "$(dirname "$0")")

# version prints the version of a Go module that a go.mod requires.
version() { awk -v module="$2" '{ sub(/^require /, "") } $1 == module { print $2; exit }' "$modules/$1/go.mod"; }
kubernetes=$(version kubernetes k8s.io/kubernetes)
etcd=$(version etcd go.etcd.io/etcd/server/v3)
containerd=$(version containerd github.com/containerd/containerd/v2)

module=$(dirname "$out")/module
mkdir -p "$module"
cd "$module"
sed '/^\/\/go:build ignore$/d' "$here/main.go" >main.go
sort -u "$modules"/{kubernetes,etcd,containerd}/go.sum >go.sum
cp "$modules/kubernetes/go.mod" go.mod
export GOWORK=off GOFLAGS='-buildvcs=false -mod=mod' CGO_ENABLED=0
go mod edit -require "go.etcd.io/etcd/server/v3@$etcd" -require "github.com/containerd/containerd/v2@$containerd"
base=k8s.io/component-base/version
minor=${kubernetes#*.} minor=${minor%%.*}
go build -trimpath -tags=grpcnotrace,notest,no_btrfs,no_zfs,no_devmapper,urfave_cli_no_docs,netgo,osusergo \
	-ldflags="-s -w -X $base.gitVersion=$kubernetes -X $base.gitMajor=1 -X $base.gitMinor=$minor -X $base.gitTreeState=clean \
		-X github.com/containerd/containerd/v2/version.Version=$containerd" -o "$out" .
