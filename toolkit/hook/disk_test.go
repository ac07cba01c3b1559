package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/built"
)

// mounted replaces the container's file system with a tmpfs that has the same files.
func (w *world) mounted(t *testing.T, flags uintptr, options string) {
	t.Helper()
	files := t.TempDir() + "/files"
	require.NoError(t, os.Rename(w.rootfs, files))
	require.NoError(t, os.Mkdir(w.rootfs, 0o755))
	if err := syscall.Mount("tmpfs", w.rootfs, "tmpfs", flags, options); err != nil {
		t.Skipf("mounting is not permitted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(w.rootfs, syscall.MNT_DETACH)) })
	out, err := exec.Command("cp", "-a", files+"/.", w.rootfs).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestDisksThatCannotBeWrittenTo(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	readonly := func(t *testing.T, w *world) {
		require.NoError(t, syscall.Mount("", w.rootfs, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	}
	for name, c := range map[string]struct {
		flags   uintptr
		options string
		then    func(t *testing.T, w *world)
		found   bool // the driver's libraries, by the loader
	}{
		"noexec":    {flags: syscall.MS_NOEXEC | syscall.MS_NODEV | syscall.MS_NOSUID, found: true},
		"read-only": {then: readonly},
		"read-only, but known": {then: func(t *testing.T, w *world) {
			_, code := w.run("update-ldcache", "--folder", libs)
			require.Zero(t, code)
			readonly(t, w)
		}, found: true},
		"full": {options: "size=1m", then: func(t *testing.T, w *world) {
			f, err := os.Create(w.rootfs + "/fill")
			require.NoError(t, err)
			defer f.Close()
			_, err = io.Copy(f, zeros{})
			require.ErrorIs(t, err, syscall.ENOSPC)
		}},
		"without inodes": {then: func(t *testing.T, w *world) {
			n := strings.Count(fmt.Sprint(names(t, w.rootfs)), " ")
			_ = syscall.Mount("", w.rootfs, "", syscall.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", n))
			for i := 0; ; i++ {
				if err := os.WriteFile(fmt.Sprintf("%s/fill%d", w.rootfs, i), nil, 0o600); err != nil {
					require.ErrorIs(t, err, syscall.ENOSPC)
					return
				}
			}
		}, options: "nr_inodes=200"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hook)
			w.mounted(t, c.flags, c.options)
			if c.then != nil {
				c.then(t, w)
			}
			for _, args := range all() {
				message, code := w.run(args...)
				if args[0] == "update-ldcache" && !c.found {
					require.Equal(t, 1, code, message)
					require.Contains(t, message, "libcuda.so.1", "what would not be found is named")
					continue
				}
				require.Zero(t, code, message)
			}
			w.untouched(name)
			require.NotContains(t, strings.Join(names(t, w.rootfs), "\n"), ".tmp", "nothing half is left behind")
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// names returns all files below dir.
func names(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	require.NoError(t, filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		list = append(list, p)
		return err
	}))
	return list
}

// The container's configuration may be wrong, late or missing.
func TestHostileBundles(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	for name, c := range map[string]struct {
		make    func(t *testing.T, w *world) error
		code    int
		message string
	}{
		"rootfs by a link": {make: func(_ *testing.T, w *world) error { return swap(w.rootfs, w.bundle+"/real") }},
		"rootfs is the host's": {make: func(_ *testing.T, w *world) error {
			w.config(`{"root":{"path":"link"}}`)
			return os.Symlink("/", w.bundle+"/link")
		}, code: 1, message: "the host's root"},
		"rootfs is /": {make: func(_ *testing.T, w *world) error { w.config(`{"root":{"path":"/proc/../"}}`); return nil }, code: 1, message: "cannot be a container's"},
		"rootfs is above /": {make: func(_ *testing.T, w *world) error {
			w.config(`{"root":{"path":"` + strings.Repeat("../", 40) + `"}}`)
			return nil
		}, code: 1, message: "cannot be a container's"},
		"rootfs is another's root": {make: func(_ *testing.T, w *world) error { w.config(`{"root":{"path":"/proc/self/root"}}`); return nil }, code: 1, message: "the host's root"},
		"rootfs is a file":         {make: func(_ *testing.T, w *world) error { w.config(`{"root":{"path":"config.json"}}`); return nil }, code: 1, message: "not a directory"},
		"rootfs is not there":      {make: func(_ *testing.T, w *world) error { w.config(`{"root":{"path":"nowhere"}}`); return nil }, code: 1, message: "no such file"},
		"no configuration":         {make: func(_ *testing.T, w *world) error { return os.Remove(w.bundle + "/config.json") }, code: 1, message: "config.json: no such file"},
		"configuration is a pipe":  {make: pipe, code: 1, message: "not a regular file"},
		"configuration has no end": {make: func(_ *testing.T, w *world) error { return os.Truncate(w.bundle+"/config.json", 1<<40) }, code: 1, message: "more than"},
		"100,000 mounts": {make: func(_ *testing.T, w *world) error {
			m := strings.Repeat(`{"destination":"`+libs+`/libcuda.so.570.1","type":"bind"},`, 100_000)
			w.config(`{"root":{"path":"rootfs"},"mounts":[` + strings.TrimSuffix(m, ",") + `]}`)
			return nil
		}},
		"mounts that lead out": {make: func(_ *testing.T, w *world) error {
			w.config(`{"root":{"path":"rootfs"},"mounts":[{"destination":"../../..` + w.canary + `/libcuda.so.570.1"},{"destination":"` + libs + `/../../..` + w.canary + `"}]}`)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hook)
			require.NoError(t, c.make(t, w))
			message, code := w.run("update-ldcache", "--folder", libs)
			require.Equal(t, c.code, code, message)
			require.Contains(t, message, c.message)
			w.untouched(name)
		})
	}
}

func swap(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return os.Symlink(filepath.Base(to), from)
}

func pipe(_ *testing.T, w *world) error {
	if err := os.Remove(w.bundle + "/config.json"); err != nil {
		return err
	}
	return unix.Mkfifo(w.bundle+"/config.json", 0o600)
}

func TestHostileStates(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	silent, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	defer silent.Close()
	zero, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer zero.Close()
	for name, c := range map[string]struct {
		stdin   io.Reader
		message string
	}{
		"nothing":          {strings.NewReader(""), "run by a container runtime"},
		"truncated":        {strings.NewReader(`{"ociVersion":"1.0.2","bundle":"/run/c`), "unexpected EOF"},
		"no JSON":          {strings.NewReader("\x00\xff\x1b[2J"), "invalid character"},
		"no bundle":        {strings.NewReader(`{"id":"c"}`), "not an absolute path"},
		"terminal's codes": {strings.NewReader(`{"bundle":"\u001b[2Jx"}`), "not an absolute path"},
		"deep":             {strings.NewReader(strings.Repeat("[", 1<<19)), "depth"},
		"endless":          {io.MultiReader(strings.NewReader(`{"id":"`), &endless{}), "more than"},
		"a device":         {zero, "invalid character"},
		"never anything":   {silent, "not done after 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(hook, "update-ldcache", "--folder", libs)
			cmd.Stdin = c.stdin
			cmd.Env = []string{"PATH=/usr/bin:/bin"}
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, 1, cmd.ProcessState.ExitCode())
			require.Contains(t, string(out), c.message)
			require.NotContains(t, string(out), "\x1b")
			require.Equal(t, 1, strings.Count(string(out), "\n"), "one line")
		})
	}
}

// endless is 16 MiB of one letter.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	if e.n > 16<<20 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	e.n += len(p)
	return len(p), nil
}
