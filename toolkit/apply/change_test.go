package apply

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

func open(t *testing.T) (string, *host.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

func show(t *testing.T, changes []Change) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, Print(&b, changes))
	return b.String()
}

func TestCorrectFilesAreNotTouched(t *testing.T) {
	dir, root := open(t)
	items := []Item{
		{Path: "/run/cdi/a.yaml", File: &File{Data: []byte("one\ntwo\nthree\n"), Mode: 0o644}},
		{Path: "/run/link", Link: "cdi/a.yaml"},
		{Path: "/run/gone", Absent: true},
	}
	changes, err := Plan(root, items)
	require.NoError(t, err)
	require.Equal(t, "create /run/cdi/a.yaml (file, 0644, 14 bytes)\n    +one\n    +two\n    +three\ncreate /run/link (link to cdi/a.yaml)\n", show(t, changes))
	dirs, err := missingDirs(root, changes)
	require.NoError(t, err)
	require.Equal(t, []string{"/run", "/run/cdi"}, dirs)
	mustWrite(t, root, changes)
	before, err := os.Stat(dir + "/run/cdi/a.yaml")
	require.NoError(t, err)

	changes, err = Plan(root, items)
	require.NoError(t, err)
	require.Equal(t, "nothing to change\n", show(t, changes))
	mustWrite(t, root, changes)
	after, err := os.Stat(dir + "/run/cdi/a.yaml")
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))

	items[0].File.Data = []byte("one\n2\nthree\n")
	items[1] = Item{Path: "/run/link", Absent: true}
	changes, err = Plan(root, items)
	require.NoError(t, err)
	require.Equal(t, "replace /run/cdi/a.yaml (file, 0644, 12 bytes); there is now: file, 0644, 14 bytes\n"+
		"    @@ line 2 @@\n    -two\n    +2\nremove /run/link; there is now: link to cdi/a.yaml\n", show(t, changes))
	mustWrite(t, root, changes)
	_, err = os.Lstat(dir + "/run/link")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestDirectoryAtTheFilesPathIsKept(t *testing.T) {
	dir, root := open(t)
	require.NoError(t, os.MkdirAll(dir+"/a", 0o755))
	for _, item := range []Item{{Path: "/a", File: &File{}}, {Path: "/a", Absent: true}, {Path: "/a", Link: "x"}} {
		_, err := Plan(root, []Item{item})
		require.ErrorContains(t, err, "/a is a directory")
	}
}

func TestBinariesArePrintedByTheirHash(t *testing.T) {
	_, root := open(t)
	changes, err := Plan(root, []Item{{Path: "/hook", File: &File{Data: []byte("\x7fELF\x00"), Mode: 0o755}}})
	require.NoError(t, err)
	require.Contains(t, show(t, changes), "sha256 ")
}

func TestDeviceNodes(t *testing.T) {
	_, root := open(t)
	want := []Item{{Path: "/dev/nvidiactl", Node: &Node{Major: 195, Minor: 255, Mode: 0o666}}}
	changes, err := Plan(root, want)
	require.NoError(t, err)
	if _, err = Write(root, changes); errors.Is(err, fs.ErrPermission) {
		t.Skip("mknod is not permitted")
	}
	require.NoError(t, err)
	changes, err = Plan(root, want)
	require.NoError(t, err)
	require.Empty(t, changes)
	want[0].Node.Minor = 254
	changes, err = Plan(root, want)
	require.NoError(t, err)
	require.Equal(t, "replace /dev/nvidiactl (device node 195:254, 0666); there is now: device node 195:255\n", show(t, changes))
	mustWrite(t, root, changes)
}

func TestWriteReturnsTheChangesBeforeTheFailure(t *testing.T) {
	_, root := open(t)
	file := func(path string) Item { return Item{Path: path, File: &File{Data: []byte("x"), Mode: 0o644}} }
	changes, err := Plan(root, []Item{file("/a"), file("/b/c"), file("/d")})
	require.NoError(t, err)
	require.Len(t, changes, 3)
	require.NoError(t, root.WriteAtomic("/b", nil, 0o644)) // created since the plan was made
	made, err := Write(root, changes)
	require.Error(t, err)
	require.Len(t, made, 1)
	require.Equal(t, "/a", made[0].Path)
}

func mustWrite(t *testing.T, root *host.Root, changes []Change) {
	t.Helper()
	made, err := Write(root, changes)
	require.NoError(t, err)
	require.Equal(t, changes, made)
}
