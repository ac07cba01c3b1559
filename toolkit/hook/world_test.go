package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// world is a container on which the built hook runs, and a tree next to it that the hook must
// neither read nor change.
type world struct {
	t      testing.TB
	hook   string
	bundle string
	rootfs string
	canary string
	notes  int // inotify, on each folder of canary
	before map[string]string
}

const libs = "/usr/lib/gpu"

// The loaders of glibc and musl, and musl's list of directories.
var loader, musl, muslPath = loaders()

func loaders() (glibc, musl, path string) {
	if runtime.GOARCH == "arm64" {
		return "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1", "/etc/ld-musl-aarch64.path"
	}
	return "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1", "/etc/ld-musl-x86_64.path"
}

// soleLibrary returns a shared library with a soname, which is built once.
var soleLibrary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "library")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("gcc", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", dir+"/l")
	cmd.Stdin = strings.NewReader("int cuInit;")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(dir + "/l")
})

// newWorld creates a container with both loaders, a cache, compat libraries, and the driver's
// libraries mounted into libs. The canary has a file at each path that a misled hook would
// read.
func newWorld(t testing.TB, hook string) *world {
	w := &world{t: t, hook: hook, bundle: t.TempDir(), canary: t.TempDir()}
	w.rootfs = w.bundle + "/rootfs"
	t.Cleanup(func() { _ = exec.Command("rm", "-rf", w.rootfs).Run() }) // deeper than os.RemoveAll can remove
	elf, err := soleLibrary()
	require.NoError(t, err)
	for _, f := range []string{loader, musl, libs + "/libcuda.so.570.1", "/usr/lib/libz.so.1", "/usr/local/cuda/compat/libcuda.so.999.1"} {
		w.write(w.rootfs+f, elf)
	}
	cache := library.Cache{Entries: []library.Entry{{Name: "libz.so.1", Path: "/usr/lib/libz.so.1", Flags: 0x303}}}.Bytes()
	w.write(w.rootfs+"/etc/ld.so.cache", cache)
	w.write(w.rootfs+"/etc/ld.so.conf", []byte("include /etc/ld.so.conf.d/*.conf\n"))
	w.write(w.rootfs+"/etc/ld.so.conf.d/a.conf", []byte("/usr/local/lib\n"))
	w.write(w.rootfs+muslPath, []byte("/lib\n"))
	w.write(w.rootfs+"/dev/dri/card0", nil)
	w.write(w.rootfs+profilePath, []byte("another container's"))
	if err := unix.Mknod(w.rootfs+"/dev/nvidia0", unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); !errors.Is(err, unix.EPERM) {
		require.NoError(t, err)
	}
	w.config(`{"root":{"path":"rootfs"},"mounts":[{"destination":"` + libs + `/libcuda.so.570.1","type":"bind"}]}`)
	for _, dir := range []string{"", "/compat", "/ld.so.conf.d", "/nvidia-application-profiles-rc.d"} {
		for _, f := range []string{"libcuda.so.570.1", "libcuda.so.999.1", "libz.so.1"} {
			w.write(w.canary+dir+"/"+f, elf)
		}
		for _, f := range []string{"ld.so.cache", "ld.so.conf", "a.conf", "00-gpuready.conf", "00-compat-gpuready.conf", filepath.Base(profilePath), filepath.Base(muslPath), filepath.Base(loader)} {
			w.write(w.canary+dir+"/"+f, []byte("the host's\n"))
		}
	}
	require.NoError(t, unix.Mkfifo(w.canary+"/pipe", 0o600))
	w.watch()
	return w
}

func (w *world) write(file string, data []byte) {
	w.t.Helper()
	require.NoError(w.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(w.t, built.WriteProgram(file, data, 0o755))
}

func (w *world) config(text string) { w.write(w.bundle+"/config.json", []byte(text)) }

// watch starts to watch every access to the canary.
func (w *world) watch() {
	w.before = snapshot(w.t, w.canary)
	var err error
	w.notes, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = unix.Close(w.notes) })
	// Close events are excluded: a process that is being started shares this one's
	// descriptors for a moment.
	require.NoError(w.t, filepath.WalkDir(w.canary, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, err = unix.InotifyAddWatch(w.notes, p, unix.IN_ALL_EVENTS&^unix.IN_CLOSE)
		}
		return err
	}))
	w.events() // drop those of the walk itself
}

// events returns the accesses to the canary since the last call, in bytes of inotify events:
// open, read, list, write, change.
func (w *world) events() int {
	total := 0
	for buffer := make([]byte, 64<<10); ; {
		n, err := unix.Read(w.notes, buffer)
		if n <= 0 || err != nil {
			return total
		}
		total += n
	}
}

// untouched fails if the canary was read or changed.
func (w *world) untouched(what string) {
	w.t.Helper()
	require.Zero(w.t, w.events(), "%s: something outside of the container was opened", what)
	require.Equal(w.t, w.before, snapshot(w.t, w.canary), what)
	w.events()
}

// snapshot returns kind, mode, times and content of each file.
func snapshot(t testing.TB, dir string) map[string]string {
	files, err := readTree(dir, true)
	require.NoError(t, err)
	return files
}

// readTree returns kind, mode, owner, content and, if wanted, times of each file below dir.
func readTree(dir string, times bool) (map[string]string, error) {
	files := map[string]string{}
	return files, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			text += fmt.Sprintf(" %d:%d", st.Uid, st.Gid)
		}
		if times {
			text += " " + info.ModTime().Format(time.RFC3339Nano)
		}
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %x", sha256.Sum256(data))
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		files[p] = text
		return nil
	})
}

// all returns the hooks that a specification names, in its order, except the one that does
// nothing without a driver: see params_test.go.
func all() [][]string {
	return [][]string{
		{"create-symlinks", "--link", "libcuda.so.1::" + libs + "/libcuda.so", "--link", "../card0::/dev/dri/by-path/card"},
		{"enable-cuda-compat", "--host-driver-version=570.86.15"},
		{"update-ldcache", "--folder", libs},
		{"update-application-profile"},
		{"chmod", "--mode", "750", "--path", "/dev/dri", "--path", "/etc/ld.so.conf"},
	}
}

// run runs the built hook as a runtime does and returns its output. The hook must exit by
// itself, with 0 or 1.
func (w *world) run(args ...string) (stderr string, code int) {
	w.t.Helper()
	cmd := exec.Command(w.hook, args...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"ociVersion":"1.0.2","id":"c","pid":1,"bundle":%q}`, w.bundle))
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin"}, w.bundle
	var errs strings.Builder
	cmd.Stderr = &errs
	_ = cmd.Run()
	require.Contains(w.t, []int{0, 1}, cmd.ProcessState.ExitCode(), errs.String())
	return errs.String(), cmd.ProcessState.ExitCode()
}

// runAll runs all hooks; none may reach the time limit.
func (w *world) runAll() (stderr string) {
	w.t.Helper()
	for _, args := range all() {
		message, _ := w.run(args...)
		require.NotContains(w.t, message, "given up", args)
		require.NotContains(w.t, message, "panic", args)
		stderr += message
	}
	return stderr
}

// runJoined runs them in one process, as in our specifications. It stops at the first failure.
func (w *world) runJoined() (stderr string) {
	w.t.Helper()
	message, _ := w.run(joined.Args(all()...)...)
	require.NotContains(w.t, message, "given up")
	require.NotContains(w.t, message, "panic")
	return message
}
