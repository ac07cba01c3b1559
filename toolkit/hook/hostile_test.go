package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/hook/ldso"
)

// The canary detects any access; otherwise the tests below would prove nothing.
func TestCanaryDetectsAccess(t *testing.T) {
	w := newWorld(t, built.Path(t, "gpu-cdi-hook"))
	w.untouched("nothing done")
	for name, do := range map[string]func() error{
		"read":  func() error { _, err := os.ReadFile(w.canary + "/ld.so.cache"); return err },
		"list":  func() error { _, err := os.ReadDir(w.canary + "/compat"); return err },
		"chmod": func() error { return os.Chmod(w.canary+"/compat", 0o755) },
		"make":  func() error { return os.Mkdir(w.canary+"/compat/new", 0o755) },
	} {
		require.NoError(t, do(), name)
		require.NotZero(t, w.events(), name)
	}
}

func TestOrdinaryContainer(t *testing.T) {
	w := newWorld(t, built.Path(t, "gpu-cdi-hook"))
	require.Empty(t, w.runJoined())
	w.untouched("all hooks")
	first := snapshot(t, w.rootfs)
	require.Empty(t, w.runAll(), "each of its own does the same")
	for file, now := range snapshot(t, w.rootfs) {
		if strings.HasPrefix(file, w.rootfs+"/etc/ld.so.conf.d") || file == w.rootfs+"/etc" {
			continue // this file is rewritten
		}
		require.Equal(t, first[file], now, file)
	}
	data, err := os.ReadFile(w.rootfs + "/etc/ld.so.cache")
	require.NoError(t, err)
	c, err := library.ParseCache(data)
	require.NoError(t, err)
	require.Len(t, c.Entries, 2)
	require.Equal(t, "/usr/local/cuda/compat/libcuda.so.999.1", c.Entries[1].Path, "newer than the driver's")
}

// places are the paths that hooks look up, read or write.
var places = []string{
	"/etc", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.conf.d/a.conf",
	"/etc/ld.so.conf.d/00-gpuready.conf", ldso.CompatConf, muslPath, musl, loader, "/usr", "/usr/lib", libs,
	libs + "/libcuda.so.570.1", libs + "/libcuda.so", "/usr/lib/libz.so.1", "/usr/local/cuda", "/usr/local/cuda/compat",
	"/usr/local/cuda/compat/libcuda.so.999.1", "/dev", "/dev/dri", "/dev/dri/by-path", "/dev/dri/by-path/card", "/dev/nvidia0",
	"/etc/nvidia", "/etc/nvidia/nvidia-application-profiles-rc.d", profilePath,
}

// things creates the files that an image may have in such a path instead.
func things(w *world) map[string]func(at string) error {
	link := func(prefix string) func(string) error {
		return func(at string) error {
			target := w.canary
			if b := filepath.Base(at); strings.Contains(b, ".so") || strings.HasSuffix(b, ".conf") || strings.HasSuffix(b, ".path") || b == "card" {
				target += "/" + b
			}
			return os.Symlink(prefix+target, at)
		}
	}
	return map[string]func(at string) error{
		"an absolute link out":          link(""),
		"a link out by dots":            link(strings.Repeat("../", 30)),
		"a link by its own root":        link("/proc/self/root"),
		"a link by a process's root":    link("/proc/1/root"),
		"a link by a thread's folder":   link("/proc/thread-self/cwd/../../../../../.."),
		"a link by a descriptor":        link("/proc/self/fd/0/../../.."),
		"a link to itself":              func(at string) error { return os.Symlink(filepath.Base(at), at) },
		"a link to a pipe of the host":  func(at string) error { return os.Symlink(w.canary+"/pipe", at) },
		"a pipe":                        func(at string) error { return unix.Mkfifo(at, 0o666) },
		"a socket":                      func(at string) error { return unix.Mknod(at, unix.S_IFSOCK|0o666, 0) },
		"an endless device":             func(at string) error { return unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"a block device":                func(at string) error { return unix.Mknod(at, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) },
		"a folder":                      func(at string) error { return os.Mkdir(at, 0o755) },
		"a file without access":         func(at string) error { return os.WriteFile(at, nil, 0) },
		"a file of 1 TB":                func(at string) error { return sparse(at, "") },
		"a file of 1 TB, like a cache":  func(at string) error { return sparse(at, "glibc-ld.so.cache1.1\xff\xff\xff\x00") },
		"a file of 1 TB, like ELF":      func(at string) error { return sparse(at, "\x7fELF\x02\x01\x01") },
		"lines that include themselves": func(at string) error { return os.WriteFile(at, includes(), 0o644) },
	}
}

func sparse(at, start string) error {
	if err := os.WriteFile(at, []byte(start), 0o755); err != nil {
		return err
	}
	return os.Truncate(at, 1<<40)
}

// includes returns as many lines as fit, each of which includes all files of /etc.
func includes() []byte {
	line := "include /etc/*\ninclude ld.so.conf\ninclude /etc/ld.so.conf.d/*\ninclude ../dev/*/*\n/proc\n/../../..\n"
	return []byte(strings.Repeat(line, (64<<10)/len(line)))
}

// long tries every thing in every place. Without it each thing is tried in every third place,
// and the next thing in another third, so that each place is covered.
var long = os.Getenv("GPUREADY_LONG") != ""

func TestNothingOutsideIsReadOrWritten(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	base := newWorld(t, hook)
	for i, thing := range slices.Sorted(maps.Keys(things(base))) {
		t.Run(thing, func(t *testing.T) {
			t.Parallel()
			for j, place := range places {
				if !long && (i+j)%3 != 0 {
					continue
				}
				w := newWorld(t, hook)
				at := w.rootfs + place
				require.NoError(t, os.RemoveAll(at))
				require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
				if err := things(w)[thing](at); errors.Is(err, syscall.EPERM) && strings.Contains(thing, "device") {
					t.Skip("making devices needs root")
				} else {
					require.NoError(t, err)
				}
				w.runAll()
				w.runJoined()
				w.untouched(place)
				// The same for an image without a cache, which is scanned completely.
				if place != "/etc" && place != "/etc/ld.so.cache" {
					_ = os.Remove(w.rootfs + "/etc/ld.so.cache")
					message, _ := w.run("update-ldcache", "--folder", libs)
					require.NotContains(t, message, "given up", place)
					w.untouched(place)
				}
			}
		})
	}
}

// These trees take very long to walk.
func TestEndlessTreesEnd(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	for name, make := range map[string]func(t *testing.T, w *world){
		"10,000 folders below each other": func(t *testing.T, w *world) {
			require.NoError(t, os.RemoveAll(w.rootfs+"/etc"))
			dir, err := unix.Open(w.rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
			require.NoError(t, err)
			for range 10_000 {
				require.NoError(t, unix.Mkdirat(dir, "a", 0o755))
				below, err := unix.Openat(dir, "a", unix.O_PATH|unix.O_DIRECTORY, 0)
				require.NoError(t, err)
				require.NoError(t, unix.Close(dir))
				dir = below
			}
			require.NoError(t, unix.Close(dir))
			require.NoError(t, os.Symlink(strings.Repeat("a/", 2000), w.rootfs+"/etc"))
			require.NoError(t, os.Symlink("../../"+strings.Repeat("a/", 2000), w.rootfs+libs+"/libdeep.so.1"))
		},
		"links that each take 40 links": func(t *testing.T, w *world) {
			require.NoError(t, os.Mkdir(w.rootfs+"/d", 0o755))
			for i := range 60 {
				require.NoError(t, os.Symlink(fmt.Sprintf("/%s/l%d", strings.Repeat("d/../", 800), i+1), fmt.Sprintf("%s/l%d", w.rootfs, i)))
			}
			require.NoError(t, os.RemoveAll(w.rootfs+"/etc"))
			require.NoError(t, os.Symlink("/l30", w.rootfs+"/etc"))
			require.NoError(t, os.Mkdir(w.rootfs+"/l60", 0o755))
			for i := range 2000 {
				require.NoError(t, os.Symlink(fmt.Sprintf("/l%d/libx.so", i%60), fmt.Sprintf("%s/usr/lib/libl%d.so.1", w.rootfs, i)))
			}
		},
		"60,000 libraries": func(t *testing.T, w *world) {
			require.NoError(t, os.Remove(w.rootfs+"/etc/ld.so.cache"))
			for i := range 60_000 {
				require.NoError(t, os.Link(w.rootfs+"/usr/lib/libz.so.1", fmt.Sprintf("%s/usr/lib/libz%d.so.1", w.rootfs, i)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hook)
			make(t, w)
			w.runAll()
			w.untouched(name)
		})
	}
}

// While the hooks run, a directory of the image keeps changing to a link that leads out, and
// back.
func TestFlippingLinksNeverLeadOut(t *testing.T) {
	rounds, runs := int64(5_000), 8
	switch {
	case long:
		rounds, runs = 20_000, 30
	case testing.Short():
		rounds, runs = 1_000, 2
	}
	hook := built.Path(t, "gpu-cdi-hook")
	for _, place := range []string{"/etc", "/etc/ld.so.conf.d", "/etc/ld.so.cache", libs, libs + "/libcuda.so.570.1", "/usr/local/cuda", "/usr/local/cuda/compat", "/dev/dri", "/etc/nvidia"} {
		t.Run(place, func(t *testing.T) {
			w := newWorld(t, hook)
			at, link := w.rootfs+place, w.rootfs+"/link"
			target := w.canary
			if strings.Contains(filepath.Base(place), ".so.c") || strings.HasPrefix(filepath.Base(place), "lib") {
				target += "/" + filepath.Base(place)
			}
			require.NoError(t, os.Symlink(target, link))
			var flips atomic.Int64
			var stop atomic.Bool
			failed := make(chan error, 1)
			go func() {
				defer close(failed)
				for !stop.Load() {
					// A hook may have replaced one of them with its own file, which is then
					// exchanged with the other.
					if err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
						failed <- err
						return
					}
					flips.Add(1)
				}
			}()
			for n := 0; n < runs || flips.Load() < rounds && len(failed) == 0; n++ {
				w.runAll()
				w.runJoined()
			}
			stop.Store(true)
			require.NoError(t, <-failed)
			w.untouched(place)
		})
	}
}
