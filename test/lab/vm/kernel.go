package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// Series is a series of kernels of Debian 12. The first fetch takes the newest of the series;
// remove it from the cache to get a newer one.
type Series string

// The series, by the release that has them.
const (
	Linux61  Series = "bookworm"
	Linux612 Series = "bookworm-backports"
)

// AllSeries are the kernels that the rig itself is tested with.
var AllSeries = []Series{Linux61, Linux612}

// Kernel is one of Debian's kernels with its modules and headers, unpacked in the cache.
type Kernel struct {
	Release string // as uname -r prints it: "6.1.0-50-cloud-amd64"

	root string // the files of the packages, as if installed there
}

// variable enables tests that boot machines: they take minutes, and packages from the network.
const variable = "GPUREADY_MACHINE"

// SkipUnlessEnabled skips a test that boots machines unless the environment enables it.
func SkipUnlessEnabled(t testing.TB) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skip(variable + " is not set: make e2e-driver does this")
	}
}

// FetchKernel returns the kernel of a series, from the cache or from Debian. It skips
// the test where machines are not enabled.
func FetchKernel(t testing.TB, s Series) *Kernel {
	t.Helper()
	SkipUnlessEnabled(t)
	cache, err := binaries.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := EnsureKernel(t.Context(), cache, s, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// EnsureKernel returns the kernel of a series from a cache, and fetches it first where
// the cache has none. Progress is written to out.
func EnsureKernel(ctx context.Context, cache string, s Series, out io.Writer) (*Kernel, error) {
	root, err := binaries.EnsureDebian(ctx, cache, binaries.DebianSet{
		Release:  string(s),
		Packages: []string{"linux-image-cloud-amd64", "linux-headers-cloud-amd64"},
		Follow:   "linux-",
	}, out)
	if err != nil {
		return nil, err
	}
	releases, err := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	if err != nil {
		return nil, err
	}
	if len(releases) != 1 {
		return nil, fmt.Errorf("%s has %d kernels, not one; remove it to have it fetched again", root, len(releases))
	}
	return &Kernel{Release: filepath.Base(releases[0]), root: root}, nil
}

// Image returns the path of the kernel itself.
func (k *Kernel) Image() string { return filepath.Join(k.root, "boot/vmlinuz-"+k.Release) }

// Root returns the folder with all files of the kernel's packages, as if they were
// installed there: boot, lib/modules, usr/src with the headers.
func (k *Kernel) Root() string { return k.root }

// Headers returns the folders of the headers: those of this kernel, and those common to all its
// flavours.
func (k *Kernel) Headers() (own, common string, err error) {
	own = filepath.Join(k.root, "usr/src/linux-headers-"+k.Release)
	found, err := filepath.Glob(filepath.Join(k.root, "usr/src/linux-headers-*-common"))
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("%s has no folder usr/src/linux-headers-*-common; remove it to have it fetched again", k.root)
	}
	return own, found[0], nil
}

// Make runs make for modules in a folder, as a driver's own build does with installed
// headers. Arguments are targets and variables: "modules", "NAME=value".
func (k *Kernel) Make(ctx context.Context, dir string, args ...string) error {
	own, common, err := k.Headers()
	if err != nil {
		return err
	}
	// BTF of modules needs a program outside the headers, and nothing here reads BTF. O is named
	// because Debian's Makefile in the folder names its installed path.
	args = append([]string{"-s", "-j2", "-C", common, "O=" + own, "M=" + dir, "CONFIG_DEBUG_INFO_BTF_MODULES="}, args...)
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Env = environ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "BIN", "V")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make modules for %s in %s: %w\n%s", k.Release, dir, err, out)
	}
	return nil
}

// environ returns the environment without the named variables.
func environ(without ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(without, name)
	})
}

// program runs a program of this machine's and returns what it prints.
func program(ctx context.Context, dir string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w; make packages-machine installs it", err)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, exit.Stderr)
	}
	return "", err
}
