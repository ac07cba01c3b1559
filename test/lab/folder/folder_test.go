package folder

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/namespace"
)

func TestNamesAreHeldByOneClusterAtATime(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", filepath.Join(t.TempDir(), "clusters"))
	a, err := Claim("a", nil)
	require.NoError(t, err)
	_, err = Claim("a", nil)
	require.ErrorContains(t, err, "cluster down --name a")
	b, err := Claim("b", nil)
	require.NoError(t, err, "another name is free")
	require.DirExists(t, a.Path, "and leaves the first alone")
	held, err := Locked(PathOf("a"))
	require.NoError(t, err)
	require.True(t, held)

	require.NoError(t, b.Release())
	require.DirExists(t, Base())
	require.NoError(t, a.Release())
	require.NoDirExists(t, Base(), "the last one takes the folder along")
	require.NoError(t, WaitReleased(a.Path, time.Minute))
}

func TestLeftoversOfAKilledClusterAreRemovedByTheNext(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	hierarchies := []namespace.Hierarchy{{Mount: t.TempDir(), Data: "cpu"}}
	dead, err := Claim("dead", hierarchies)
	require.NoError(t, err)
	group := filepath.Join(hierarchies[0].Mount, dead.Group("n1"))
	require.NoError(t, os.MkdirAll(filepath.Join(group, "kubepods"), 0o755))
	require.NoError(t, os.MkdirAll(dead.Disk("n1"), 0o755))
	require.NoError(t, dead.lock.Close()) // as the kernel does it

	held, err := Locked(dead.Path)
	require.NoError(t, err)
	require.False(t, held)
	next, err := Claim("next", hierarchies)
	require.NoError(t, err)
	defer func() { require.NoError(t, next.Release()) }()
	require.NoDirExists(t, dead.Path)
	require.NoDirExists(t, group)
}

func TestLogsOfAClusterThatFailedAreKept(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	f, err := Claim("a", nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.Log("etcd"), []byte("one\n"), 0o600))
	cause := &os.PathError{Op: "start", Path: f.Log("etcd"), Err: unix.ENOEXEC}
	err = f.PreserveLogs(cause)
	require.NoError(t, f.Release())
	require.ErrorIs(t, err, cause)
	kept := filepath.Join(os.TempDir(), "gpuready-cluster-a-log", "etcd.log")
	require.ErrorContains(t, err, kept)
	require.FileExists(t, kept)
}

func TestProgramsAreCollected(t *testing.T) {
	t.Setenv("GPUREADY_CLUSTERS", t.TempDir())
	f, err := Claim("a", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Release()) }()
	built := t.TempDir()
	path := func(name string) string { return filepath.Join(built, name) }
	require.ErrorContains(t, f.Collect(path), "a node's ")
	for _, names := range programs {
		for _, name := range names {
			require.NoError(t, os.WriteFile(path(name), nil, 0o755))
		}
	}
	require.NoError(t, os.RemoveAll(f.Bin()))
	require.NoError(t, os.RemoveAll(f.Plugins()))
	require.NoError(t, f.Collect(path))
	require.FileExists(t, filepath.Join(f.Bin(), "runc"))
	require.FileExists(t, filepath.Join(f.Plugins(), "bridge"))
	require.FileExists(t, f.Tool())
}

func TestAProgramThatIsThereIsNotWrittenTo(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, []byte("new"), 0o755))
	require.NoError(t, os.WriteFile(to, []byte("old"), 0o755))
	require.ErrorIs(t, linkOrCopy(from, to), os.ErrExist)
	content, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "old", string(content))
}
