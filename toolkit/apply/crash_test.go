package apply_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/fault"
	"github.com/gpuready/gpuready/toolkit/apply"
)

const (
	dir      = "/usr/local/nvidia/gpuready"
	hookName = "gpu-cdi-hook"
	conf     = "/etc/containerd/config.toml"
	hand     = "# by hand\nversion = 2\n"
	one      = hand + "[nvidia]\n"
	two      = hand + "[nvidia]\nruntime = \"gpu\"\n"
)

// long selects every sample instead of a few.
var long = os.Getenv("GPUREADY_LONG") != ""

// scratch returns a directory in memory if there is one, where syncing costs nothing.
func scratch(t testing.TB) string {
	t.Helper()
	if at, err := os.MkdirTemp("/dev/shm", "gpuready"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(at) })
		return at
	}
	return t.TempDir()
}

// node creates a host below at, as it is before the toolkit.
func node(t testing.TB, at string) {
	t.Helper()
	for _, d := range []string{"/usr/local", "/run/cdi", "/var", "/dev/char", "/opt", filepath.Dir(conf)} {
		require.NoError(t, os.MkdirAll(at+d, 0o755))
	}
	require.NoError(t, os.Symlink("/run", at+"/var/run"))
	require.NoError(t, os.Symlink("real.toml", at+conf))
	real := at + filepath.Dir(conf) + "/real.toml"
	require.NoError(t, os.WriteFile(real, []byte(hand), 0o600))
	require.NoError(t, os.Chmod(real, 0o640))
	require.NoError(t, os.WriteFile(at+"/opt/stale.conf", []byte("stale"), 0o644))
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(real, 12, 34))
	}
	if err := unix.Setxattr(real, "user.note", []byte("kept"), 0); err != nil {
		require.ErrorIs(t, err, unix.ENOTSUP)
	}
}

func items(config string) (quiet, restarting []apply.Item) {
	return []apply.Item{
			{Path: dir + "/" + hookName, File: &apply.File{Data: []byte("\x7fELF " + config), Mode: 0o755}},
			{Path: "/var/run/cdi/gpu.yaml", File: &apply.File{Data: []byte("spec of " + config), Mode: 0o644}},
			{Path: "/dev/char/195:0", Link: "../nvidia0"},
		}, []apply.Item{
			{Path: conf, Follow: true, File: &apply.File{Data: []byte(config)}},
			{Path: "/etc/containerd/conf.d/99.toml", File: &apply.File{Data: []byte("drop-in for " + config), Mode: 0o600}},
			{Path: "/opt/stale.conf", Absent: true},
		}
}

// start does what gpu-toolkit does at its start.
func start(root *host.Root, boot, config string) error {
	s := storeOf(root, boot)
	if _, err := s.Sweep(); err != nil {
		return err
	}
	_, pending, err := s.Pending()
	if err == nil && pending {
		err = s.Commit()
	}
	if err != nil {
		return err
	}
	quiet, restarting := items(config)
	if _, err := s.Apply(quiet); err != nil {
		return err
	}
	changes, err := s.Plan(restarting)
	if err != nil {
		return err
	}
	if err := s.Begin(changes, []byte("containerd.service")); err != nil {
		return err
	}
	return s.Commit()
}

func restore(root *host.Root, boot string) error {
	r, err := storeOf(root, boot).Restore(apply.RestoreOptions{})
	if err == nil && len(r.Left) > 0 {
		err = fmt.Errorf("left: %v", r.Left)
	}
	return err
}

func undo(root *host.Root, boot string) error {
	s := storeOf(root, boot)
	_, restarting := items(two)
	changes, err := s.Plan(restarting)
	if err != nil {
		return err
	}
	if err := s.Begin(changes, nil); err != nil {
		return err
	}
	return s.Undo()
}

func storeOf(root *host.Root, boot string) *apply.Store {
	return &apply.Store{Root: root, Dir: dir, BootID: boot}
}

func open(t testing.TB, at string) *host.Root {
	t.Helper()
	root, err := host.Open(at)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func tree(t testing.TB, at string) []string {
	t.Helper()
	lines, err := fault.ListTree(at)
	require.NoError(t, err)
	return lines
}

// expected holds the trees that every history has to end in.
type expected struct {
	bare    []string            // before the toolkit
	applied map[string][]string // by configuration
	root    string
}

func expect(t testing.TB) expected {
	t.Helper()
	e := expected{root: scratch(t), applied: map[string][]string{}}
	for _, config := range []string{one, two} {
		at := filepath.Join(e.root, fmt.Sprint("expected", len(config)))
		require.NoError(t, os.Mkdir(at, 0o755))
		node(t, at)
		e.bare = tree(t, at)
		root := open(t, at)
		require.NoError(t, start(root, "boot", config))
		e.applied[config] = finalState(t, root, "boot")
	}
	return e
}

// checkConfig checks that the runtime's configuration is complete: the old or the new one.
func checkConfig(t testing.TB, at string) {
	t.Helper()
	data, err := os.ReadFile(at + filepath.Dir(conf) + "/real.toml")
	require.NoError(t, err)
	require.Contains(t, []string{hand, one, two}, string(data))
	for _, line := range tree(t, at) {
		if strings.HasPrefix(line, "/etc/containerd/real.toml ") {
			require.Contains(t, line, " -rw-r-----")
		}
	}
}

// checkRecovery checks a tree after a power loss: the runtime's configuration is
// complete, the next start ends in the expected state, and restore restores the
// originals, after that or at once.
func (e expected) checkRecovery(t testing.TB, write func(at string), boot string) {
	t.Helper()
	for _, first := range []string{"start", "restore"} {
		at, err := os.MkdirTemp(e.root, "crash")
		require.NoError(t, err)
		write(at)
		checkConfig(t, at)
		root, err := host.Open(at)
		require.NoError(t, err)
		if first == "start" {
			require.NoError(t, start(root, boot, two))
			require.Equal(t, e.applied[two], finalState(t, root, boot))
		}
		require.NoError(t, restore(root, boot))
		require.Equal(t, e.bare, tree(t, at))
		require.NoError(t, root.Close())
		require.NoError(t, os.RemoveAll(at))
	}
}

// finalState returns the tree and its manifest, independent of the history: the order
// of the entries, and whether a new file was one before, do not matter.
func finalState(t testing.TB, root *host.Root, boot string) []string {
	t.Helper()
	lines := slices.DeleteFunc(tree(t, root.Dir()), func(l string) bool { return strings.Contains(l, "/manifest.json ") })
	m, err := storeOf(root, boot).Manifest()
	require.NoError(t, err)
	require.Nil(t, m.Journal)
	require.Empty(t, m.Kept)
	var entries []string
	for _, e := range m.Entries {
		require.Nil(t, e.Pending)
		e.UID, e.GID = nil, nil
		data, err := json.Marshal(e)
		require.NoError(t, err)
		entries = append(entries, string(data))
	}
	slices.Sort(entries)
	slices.Sort(m.Dirs)
	return slices.Concat(lines, entries, m.Dirs)
}

// histories are the interrupted operations, each with the preparation of its tree.
var histories = map[string]struct {
	before func(*host.Root) error
	do     func(*host.Root, string) error
}{
	"first apply":  {nil, func(r *host.Root, boot string) error { return start(r, boot, two) }},
	"second apply": {func(r *host.Root) error { return start(r, "boot", one) }, func(r *host.Root, boot string) error { return start(r, boot, two) }},
	"restore":      {func(r *host.Root) error { return start(r, "boot", two) }, restore},
	"rollback":     {func(r *host.Root) error { return start(r, "boot", one) }, undo},
}

func TestRecoveryAfterAPowerLossAtEachStep(t *testing.T) {
	e := expect(t)
	for name, h := range histories {
		t.Run(name, func(t *testing.T) {
			at := scratch(t)
			node(t, at)
			root := open(t, at)
			if h.before != nil {
				require.NoError(t, h.before(root))
			}
			disk, err := fault.ReadDisk(at)
			require.NoError(t, err)
			var trace []host.Op
			root.Trace(func(op host.Op) error { trace = append(trace, op); return nil })
			require.NoError(t, h.do(root, "boot"))
			require.Greater(t, len(trace), 20)
			for i, op := range trace {
				require.NoError(t, disk.Do(op))
				for k, loss := range fault.PowerLosses(uint64(i)) {
					if !long && (i+k)%5 != 0 { // each loss at every fifth step
						continue
					}
					boot := "boot" // a kill
					if k > 0 {
						boot = "boot after"
					}
					e.checkRecovery(t, func(at string) {
						require.NoError(t, disk.Write(at, loss), "step %d %s %s, lost: %s", i, op.Kind, op.Path, loss.Name)
						if k > 0 {
							reboot(t, at)
						}
					}, boot)
					if t.Failed() {
						return
					}
				}
			}
			final, err := os.MkdirTemp(e.root, "final")
			require.NoError(t, err)
			require.NoError(t, disk.Write(final, fault.PowerLosses(0)[0]))
			require.Equal(t, tree(t, at), tree(t, final), "the model is what the kernel did")
			final, err = os.MkdirTemp(e.root, "final")
			require.NoError(t, err)
			require.NoError(t, disk.Write(final, fault.PowerLosses(0)[1]))
			require.Equal(t, tree(t, at), tree(t, final), "nothing is left unsynced at the end")
			t.Logf("%d steps", len(trace))
		})
	}
}

// reboot empties the file systems in memory.
func reboot(t testing.TB, at string) {
	t.Helper()
	for _, d := range []string{"/run", "/dev"} {
		require.NoError(t, os.RemoveAll(at+d))
	}
	for _, d := range []string{"/run/cdi", "/dev/char"} {
		require.NoError(t, os.MkdirAll(at+d, 0o755))
	}
}

// A disk that is full or fails at any step gives one error and no partial change.
func TestErrorAtEachStepLeavesNoPartialChange(t *testing.T) {
	e := expect(t)
	for name, h := range histories {
		t.Run(name, func(t *testing.T) {
			for fail := 0; ; fail++ {
				at, err := os.MkdirTemp(e.root, "error")
				require.NoError(t, err)
				node(t, at)
				root, err := host.Open(at)
				require.NoError(t, err)
				if h.before != nil {
					require.NoError(t, h.before(root))
				}
				step, failed := 0, host.Op{}
				root.Trace(func(op host.Op) error {
					if step++; step == fail+1 {
						failed = op
						return syscall.ENOSPC
					}
					return nil
				})
				err = h.do(root, "boot")
				root.Trace(nil)
				if step <= fail {
					require.NoError(t, err)
					break
				}
				if err != nil {
					require.ErrorIs(t, err, syscall.ENOSPC, "%s %s", failed.Kind, failed.Path)
					pathed, ok := errors.AsType[*os.PathError](err)
					require.True(t, ok, "%v", err)
					require.NotContains(t, pathed.Path, at)
					if !strings.HasPrefix(string(failed.Kind), "re") { // rename and remove of the clean-up itself
						require.ErrorContains(t, err, "make room", "%s %s", failed.Kind, failed.Path)
					}
				}
				checkConfig(t, at)
				if failed.Kind != host.OpRemove {
					require.False(t, slices.ContainsFunc(tree(t, at), func(l string) bool { return strings.Contains(l, ".tmp ") }), "%s %s", failed.Kind, failed.Path)
				}
				require.NoError(t, start(root, "boot", two))
				require.Equal(t, e.applied[two], finalState(t, root, "boot"), "%s %s", failed.Kind, failed.Path)
				require.NoError(t, restore(root, "boot"))
				require.Equal(t, e.bare, tree(t, at))
				require.NoError(t, root.Close())
				require.NoError(t, os.RemoveAll(at))
			}
		})
	}
}
