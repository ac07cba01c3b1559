package apply

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/node"
)

const immutableFlag = 0x10 // FS_IMMUTABLE_FL in linux/fs.h

// The cases are a read-only disk, a full disk, and immutable files (chattr(1)).
func TestRefusalsNameThePathAndTheRemedy(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	mount := func(t *testing.T, options string, flags uintptr, prepare func(at string)) *host.Root {
		at := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, options))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		require.NoError(t, os.MkdirAll(at+"/etc", 0o755))
		require.NoError(t, os.WriteFile(at+"/etc/conf", []byte("before"), 0o640))
		if prepare != nil {
			prepare(at)
		}
		if flags != 0 {
			require.NoError(t, unix.Mount("", at, "", unix.MS_REMOUNT|flags, options))
		}
		root, err := host.Open(at)
		require.NoError(t, err)
		t.Cleanup(func() { _ = root.Close() })
		return root
	}
	fix := func(t *testing.T, name string) func(string) {
		return func(at string) {
			f, err := os.Open(at + name)
			require.NoError(t, err)
			defer f.Close()
			if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutableFlag); err != nil {
				t.Skipf("this kernel's tmpfs has no attributes: %v", err)
			}
		}
	}
	for name, c := range map[string]struct {
		root  func(t *testing.T) *host.Root
		is    error
		wants string
	}{
		"read-only":           {func(t *testing.T) *host.Root { return mount(t, "", unix.MS_RDONLY, nil) }, syscall.EROFS, "mount it writable"},
		"full":                {func(t *testing.T) *host.Root { return mount(t, "size=8k", 0, nil) }, syscall.ENOSPC, "make room"},
		"immutable file":      {func(t *testing.T) *host.Root { return mount(t, "", 0, fix(t, "/etc/conf")) }, syscall.EPERM, "chattr -i"},
		"immutable directory": {func(t *testing.T) *host.Root { return mount(t, "", 0, fix(t, "/etc")) }, syscall.EPERM, "chattr -i"},
	} {
		t.Run(name, func(t *testing.T) {
			root := c.root(t)
			changes, err := Plan(root, []Item{{Path: "/etc/conf", File: &File{Data: make([]byte, 1<<20)}}})
			require.NoError(t, err)
			_, err = Write(root, changes)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, " /etc/conf: ")
			require.ErrorContains(t, err, "nothing was left half-written; ")
			require.ErrorContains(t, err, c.wants)
			data, err := os.ReadFile(root.Path("/etc/conf"))
			require.NoError(t, err)
			require.Equal(t, "before", string(data))
			entries, err := os.ReadDir(root.Path("/etc"))
			require.NoError(t, err)
			require.Len(t, entries, 1)
		})
	}
}
