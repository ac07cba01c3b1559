#!/bin/bash
# Tries the README's two commands on a fresh root file system, as a new user
# would: a clone of this tree's HEAD, this machine's Go, nothing else of ours.
#
#   test/fresh/run.sh debian12|ubuntu24.04 [TARGET...]
#
# TARGETs are what to make, by default: demo, demo again (warm), test. CACHE, in
# the environment, keeps the debootstrapped roots; UBUNTU_MIRROR may name a mirror
# other than debootstrap's own. Needs root and debootstrap. Everything runs in a mount and PID namespace of its own.
set -euo pipefail

release=${1:?usage: run.sh debian12|ubuntu24.04 [TARGET...]}
shift
[ $# -gt 0 ] || set -- demo demo test
cache=${CACHE:-$HOME/.cache/gpuready-fresh}
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
goroot=$(go env GOROOT)

if [ "${FRESH_INSIDE:-}" != 1 ]; then
	mkdir -p "$cache"
	if [ ! -e "$cache/$release.done" ]; then
		rm -rf "${cache:?}/$release"
		case $release in
		debian12) debootstrap --variant=minbase bookworm "$cache/$release" ;;
		ubuntu24.04)
			script=/usr/share/debootstrap/scripts/noble
			[ -e $script ] || script=/usr/share/debootstrap/scripts/gutsy
			debootstrap --variant=minbase --no-check-gpg --components=main,universe noble "$cache/$release" "${UBUNTU_MIRROR:-}" "$script"
			;;
		*) echo "run.sh: unknown release $release: must be debian12 or ubuntu24.04" >&2; exit 2 ;;
		esac
		touch "$cache/$release.done"
	fi
	FRESH_INSIDE=1 exec unshare --mount --pid --fork --kill-child "$0" "$release" "$@"
fi

root=$(mktemp -d)
trap 'echo "run.sh: failed in $release" >&2' ERR
mount --make-rprivate /
mount -t tmpfs -o size=12g tmpfs "$root"
cp -a "$cache/$release/." "$root"
for dir in proc sys dev; do mount --rbind "/$dir" "$root/$dir"; done
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root$goroot" "$root/src"
mount --bind -o ro "$goroot" "$root$goroot"
mount --bind -o ro "$source" "$root/src"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Mirrors behind a private certificate authority are trusted as they are here.
authorities=/etc/ssl/certs/ca-certificates.crt
mkdir -p "$root/etc/ssl"
[ ! -e $authorities ] || cp $authorities "$root/etc/ssl/this-machine.crt"
[ ! -e /etc/hosts ] || cp /etc/hosts "$root/etc/hosts"

# What makes a machine a developer's: git and make; and what this machine needs
# to reach its mirrors.
# shellcheck disable=SC2016 # the inner shell expands it
env -i HOME=/root PATH="$goroot/bin:/usr/sbin:/usr/bin:/sbin:/bin" DEBIAN_FRONTEND=noninteractive \
	GOPROXY="$(go env GOPROXY)" GOSUMDB="$(go env GOSUMDB)" GONOSUMDB="$(go env GONOSUMDB)" GOFLAGS="$(go env GOFLAGS)" \
	SSL_CERT_FILE=/etc/ssl/this-machine.crt http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
	chroot "$root" /bin/bash -euo pipefail -c '
		apt-get update -qq
		apt-get install -y -qq --no-install-recommends git make ca-certificates >/dev/null 2>&1
		git config --global --add safe.directory "*"
		git clone -q /src /root/gpuready
		cd /root/gpuready
		for target in "$@"; do
			echo "== make $target"
			time make "$target"
		done
	' make "$@"
echo "run.sh: $release: passed: make $*"
