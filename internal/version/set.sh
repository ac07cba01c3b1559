#!/bin/sh
# Changes the version of this tree from that in internal/version/VERSION to another, wherever a
# tracked file names a release of ours. make set-version runs it and generates the rest. Texts about
# the past keep what they name: measurements, recordings, release notes.
set -eu
cd "$(dirname "$0")/../.."
new=${1-}
if ! printf '%s\n' "$new" | grep -Eqx 'v[0-9]+[.][0-9]+[.][0-9]+(-[0-9A-Za-z.]+)?'; then
	echo "set-version: the version is ${new:-empty}: a semantic version is required, as in make set-version VERSION=v1.2.3" >&2
	exit 2
fi
old=$(cat internal/version/VERSION)
pattern=$(echo "${old#v}" | sed 's/[.]/\\./g')
# What may follow a version: "v0.2.0" is no part of "v0.2.01" or of "v0.2.0-rc1".
end='([^0-9A-Za-z-]|$)'
edit() { sed -E -i "$@"; }
git grep -lE "gpuready[^ ]*v?$pattern" -- . ':!CHANGELOG.md' ':!changelog' ':!docs/measurements' ':!docs/recordings' ':!docs/time-to-gpu.md' ':!docs/walkthroughs.md' |
	while read -r file; do
		edit "s#(gpuready/[a-z,{}-]+:)v$pattern$end#\1$new\2#g; s#(gpuready[-.]v?)$pattern$end#\1${new#v}\2#g" "$file"
		edit "s#(releases/download/|bin/release/|VERSION=)v$pattern$end#\1$new\2#g; s#(charts/gpuready(\`, version \`| --version ))$pattern$end#\1${new#v}\3#g" "$file"
	done
edit "s/v$pattern-(ne?xt)/$new-\1/g" docs/walkthroughs.md # the image that its upgrade is played with, and a misspelt one
edit "s/^version: $pattern\$/version: ${new#v}/; s/^appVersion: v$pattern\$/appVersion: $new/" deployments/helm/gpuready/Chart.yaml
echo "$new" >internal/version/VERSION
