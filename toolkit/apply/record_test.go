package apply

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

const (
	dir      = "/usr/local/nvidia/gpuready"
	hookName = "gpu-cdi-hook"
)

func storeOf(root *host.Root, boot string) *Store { return &Store{Root: root, Dir: dir, BootID: boot} }

func wanted() []Item {
	return []Item{
		{Path: dir + "/" + hookName, File: &File{Data: []byte("\x7fELF"), Mode: 0o755}},
		{Path: "/var/run/cdi/a.yaml", File: &File{Data: []byte("a"), Mode: 0o644}},
		{Path: "/dev/char/195:0", Link: "../nvidia0"},
	}
}

func applyItems(t *testing.T, root *host.Root, boot string, items []Item) {
	t.Helper()
	_, err := storeOf(root, boot).Apply(items)
	require.NoError(t, err)
}

func uninstall(t *testing.T, root *host.Root, boot string) []string {
	t.Helper()
	dry, err := storeOf(root, boot).Restore(RestoreOptions{DryRun: true})
	require.NoError(t, err)
	r, err := storeOf(root, boot).Restore(RestoreOptions{})
	require.NoError(t, err)
	var before, after strings.Builder
	require.NoError(t, Print(&before, dry.Changes))
	require.NoError(t, Print(&after, r.Changes))
	require.Equal(t, before.String(), after.String())
	require.Equal(t, dry.Left, r.Left)
	return r.Left
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if p != dir {
			all = append(all, p[len(dir):])
		}
		return err
	}))
	return all
}

func hostTree(t *testing.T) (string, *host.Root) {
	t.Helper()
	at := t.TempDir()
	for _, d := range []string{"/usr/local/nvidia", "/run", "/var", "/dev"} {
		require.NoError(t, os.MkdirAll(at+d, 0o755))
	}
	require.NoError(t, os.Symlink("/run", at+"/var/run"))
	root, err := host.Open(at)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return at, root
}

func TestUninstallLeavesTheHostAsItWas(t *testing.T) {
	at, root := hostTree(t)
	before := tree(t, at)
	applyItems(t, root, "boot", wanted())
	require.NotEqual(t, before, tree(t, at))
	items := wanted()
	items[1].File.Data = []byte("b")
	applyItems(t, root, "boot", items)
	require.Empty(t, uninstall(t, root, "boot"))
	require.Equal(t, before, tree(t, at))
	require.Empty(t, uninstall(t, root, "boot"), "twice is fine")
}

func TestFilesThatOthersChangedOrMadeAreKept(t *testing.T) {
	at, root := hostTree(t)
	require.NoError(t, os.MkdirAll(at+"/dev/char", 0o755))
	require.NoError(t, os.Symlink("../nvidia0", at+"/dev/char/195:0")) // there before
	applyItems(t, root, "boot", wanted())
	require.NoError(t, os.WriteFile(at+"/run/cdi/a.yaml", []byte("edited"), 0o644))
	require.NoError(t, os.WriteFile(at+"/usr/local/nvidia/gpuready/other", nil, 0o644))
	require.Equal(t, []string{"/var/run/cdi/a.yaml was changed by others since"}, uninstall(t, root, "boot"))
	for _, p := range []string{"/dev/char/195:0", "/run/cdi/a.yaml", "/usr/local/nvidia/gpuready/other"} {
		_, err := os.Lstat(at + p)
		require.NoError(t, err)
	}
	_, err := os.Lstat(at + dir + "/" + hookName)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// After a reboot /dev and /run are new: the driver made what is there now.
func TestVolatileEntriesOfAnotherBootAreDropped(t *testing.T) {
	at, root := hostTree(t)
	applyItems(t, root, "boot one", wanted())
	require.Empty(t, uninstall(t, root, "boot two"))
	_, err := os.Lstat(at + "/dev/char/195:0")
	require.NoError(t, err)
	_, err = os.Lstat(at + dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// After a kill at any step, the manifest lists every file.
func TestEveryFileHasAnEntryAtAnyTime(t *testing.T) {
	at, root := hostTree(t)
	before := tree(t, at)
	changes, err := Plan(root, wanted())
	require.NoError(t, err)
	// A directory in the way makes the last step fail, as a kill would.
	require.NoError(t, os.MkdirAll(at+"/dev/char/195:0/x", 0o755))
	_, err = storeOf(root, "boot").apply(changes)
	require.Error(t, err)
	require.NoError(t, os.RemoveAll(at+"/dev/char"))
	require.Empty(t, uninstall(t, root, "boot"))
	require.Equal(t, before, tree(t, at))
}

func TestUnknownManifestIsNotOverwritten(t *testing.T) {
	at, root := hostTree(t)
	require.NoError(t, os.MkdirAll(at+dir, 0o755))
	require.NoError(t, os.WriteFile(at+manifestPath(dir), []byte(`{"version":9}`), 0o644))
	_, err := storeOf(root, "boot").Apply(wanted())
	require.ErrorContains(t, err, "manifest.json")
	_, err = os.Lstat(at + "/run/cdi")
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing else is done either")
}
