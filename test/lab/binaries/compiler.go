package binaries

import (
	"context"
	"io"
)

// EnsureCompiler returns a root file system with Debian 12's compiler, make and shell, for building
// kernel modules. It has no /tmp, and mawk is its only awk.
func EnsureCompiler(ctx context.Context, cache string, out io.Writer) (string, error) {
	return EnsureDebian(ctx, cache, DebianSet{Release: "bookworm", Packages: []string{
		"gcc-12", "cpp-12", "gcc-12-base", "libgcc-12-dev", "libgcc-s1", "libcc1-0", "libstdc++6", "binutils", "binutils-common", "binutils-x86-64-linux-gnu",
		"libbinutils", "libctf0", "libctf-nobfd0", "libgprofng0", "libjansson4", "libzstd1", "zlib1g", "libgmp10", "libmpfr6", "libmpc3", "libisl23",
		"make", "dash", "bash", "libtinfo6", "coreutils", "libacl1", "libattr1", "libselinux1", "libpcre2-8-0", "sed", "grep", "mawk", "findutils",
		"libc6", "libcrypt1", "libelf1", "libssl3",
	}}, out)
}
