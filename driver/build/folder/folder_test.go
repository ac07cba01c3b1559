package folder

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopyPreservesPermissionsAndLinksAndSetsOneTime(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.MkdirAll(filepath.Join(from, "nvidia"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "conftest.sh"), []byte("x"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "nvidia/nv-kernel.o_binary"), []byte("large"), 0o444))
	require.NoError(t, os.WriteFile(filepath.Join(from, "nvidia/nv.c"), []byte("y"), 0o444))
	require.NoError(t, os.Symlink("nv.c", filepath.Join(from, "nvidia/link.c")))
	require.NoError(t, Copy(t.Context(), from, to, true))
	script, err := os.Stat(filepath.Join(to, "conftest.sh"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), script.Mode())
	source, err := os.Stat(filepath.Join(to, "nvidia/nv.c"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), source.Mode(), "make writes beside it")
	require.Equal(t, script.ModTime(), source.ModTime())
	target, err := os.Readlink(filepath.Join(to, "nvidia/nv-kernel.o_binary"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(from, "nvidia/nv-kernel.o_binary"), target)
	target, err = os.Readlink(filepath.Join(to, "nvidia/link.c"))
	require.NoError(t, err)
	require.Equal(t, "nv.c", target)

	one, err := DigestFolder(t.Context(), from)
	require.NoError(t, err)
	require.NoError(t, os.Rename(filepath.Join(from, "nvidia/link.c"), filepath.Join(from, "nvidia/other.c")))
	two, err := DigestFolder(t.Context(), from)
	require.NoError(t, err)
	require.NotEqual(t, one, two)
}

func TestPipesAreNotCopied(t *testing.T) {
	from := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o644))
	require.ErrorIs(t, Copy(t.Context(), from, filepath.Join(t.TempDir(), "to"), false), errIrregular)
	_, err := DigestFolder(t.Context(), from)
	require.ErrorIs(t, err, errIrregular)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Copy(ctx, from, filepath.Join(t.TempDir(), "to"), false), context.Canceled)
}
