package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Hooks warn where they cannot write. The folder is mounted twice, as /dev/shm is on some machines,
// so only a root that is mounted on itself, as runc mounts it, is seen to be the container's own.
func TestHooksRunInAContainer(t *testing.T) {
	b := &bench{bin: filepath.Dir(built.Path(t, "gpu-cdi-hook")), tmp: t.TempDir(), hookRuns: 1}
	for range 2 {
		if err := unix.Mount("tmpfs", b.tmp, "tmpfs", 0, ""); err != nil {
			t.Skipf("mounting is not permitted: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(b.tmp, unix.MNT_DETACH)) })
	}
	require.NoError(t, b.hooks(t.Context()))
}
