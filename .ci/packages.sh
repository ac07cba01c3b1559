#!/bin/sh
# Ensures that the packages of packages.txt are installed: installs them as root, or
# prints which ones to install. With arguments, only those with these purposes;
# without, all but those for another architecture's images. With --missing before them
# it prints the missing ones, and installs none.
set -eu
only=
if [ "${1-}" = --missing ]; then
	only=1
	shift
fi
list=$(dirname "$0")/packages.txt
# One at a time: make -j may run several at once, and apt does not wait for its lock.
exec 9<"$list"
flock 9
missing=
while read -r name purpose; do
	case "$name" in '' | '#'*) continue ;; esac
	if [ $# -gt 0 ]; then
		wanted=
		for p in "$@"; do [ "$p" = "$purpose" ] && wanted=1; done
		[ -n "$wanted" ] || continue
	else
		case "$purpose" in images-*) continue ;; esac
	fi
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing="$missing $name"
done <"$list"
if [ -n "$only" ]; then
	echo "${missing# }"
	exit 0
fi
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
	echo "packages: this is neither Debian nor Ubuntu; install the equivalents of:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "packages: missing:$missing" >&2
	echo "packages: run this, then try again: sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi
echo "packages: installing$missing" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # the names are meant to be split
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 9<&-; then
	cat "$log" >&2
	echo "packages: apt-get could not install$missing; see above" >&2
	exit 1
fi
