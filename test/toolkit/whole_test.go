package toolkit

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
)

// file holds all properties of a file.
type file struct {
	mode    fs.FileMode
	content string // of a text; else its SHA-256
	changed syscall.Timespec
	inode   uint64
}

// files returns all files below directories of the host.
func files(t *testing.T, dirs ...string) map[string]file {
	t.Helper()
	all := map[string]file{}
	for _, dir := range dirs {
		require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			var data []byte
			if d.Type()&(fs.ModeNamedPipe|fs.ModeSocket) == 0 {
				data, _ = os.ReadFile(p)
			}
			if !utf8.Valid(data) {
				data = fmt.Appendf(nil, "%x", sha256.Sum256(data))
			}
			st := info.Sys().(*syscall.Stat_t)
			all[p] = file{info.Mode(), string(data), st.Ctim, st.Ino}
			return nil
		}))
	}
	return all
}

// contents is like files, without the properties that a rewritten file cannot keep.
func contents(t *testing.T, dirs ...string) map[string]file {
	t.Helper()
	all := files(t, dirs...)
	for p, f := range all {
		all[p] = file{mode: f.mode, content: f.content}
	}
	return all
}

// whole runs all commands: plan, apply, verify, both again, restore.
func whole(t *testing.T, kind node.Kind, args ...string) {
	if !enter(t) {
		return
	}
	h := start(t, kind)
	s := systemd(t, h)
	dir := filepath.Dir(written[kind].path)
	before, was := contents(t, dir), status(t, h)
	with := func(command string) []string {
		return append([]string{command, "--runtime-restart-mode", "systemd", "--nvidia-runtime-name", "nvidia", "--accept-nvidia-visible-devices-envvar-when-unprivileged"}, args...)
	}

	planned := gpuToolkit(t, with("plan")...)
	require.Contains(t, planned, "because the container runtime needs")
	require.Equal(t, before, contents(t, dir), "a plan changes nothing")
	require.Empty(t, s.Calls())

	applied := gpuToolkit(t, with("apply")...)
	require.Contains(t, applied, "had the container runtime started anew")
	require.Len(t, s.Calls(), 1)
	now := status(t, h)
	require.ElementsMatch(t, append(was.Handlers, "nvidia"), now.Handlers)
	require.Equal(t, was.Default, now.Default)
	ordinary(t, h)
	requireHandlerGPUs(t, h, "nvidia")
	gpuToolkit(t, with("verify")...)
	require.Contains(t, gpuToolkit(t, with("status")...), "gpu-oci-runtime.json")

	exact := files(t, dir, "/usr/local/nvidia", "/var/run/cdi")
	require.Contains(t, gpuToolkit(t, with("plan")...), "nothing to change")
	gpuToolkit(t, with("apply")...)
	require.Equal(t, exact, files(t, dir, "/usr/local/nvidia", "/var/run/cdi"), "not a byte, not a time")
	require.Len(t, s.Calls(), 1, "and no restart")

	gpuToolkit(t, with("restore")...)
	require.Equal(t, before, contents(t, dir))
	require.ElementsMatch(t, was.Handlers, status(t, h).Handlers)
	require.NoDirExists(t, "/usr/local/nvidia/gpuready")
	require.NoDirExists(t, "/run/nvidia/gpuready")
	ordinary(t, h)
}

func TestContainerd16IsConfiguredAndRestored(t *testing.T) {
	whole(t, node.Containerd16, "--cdi-enabled=false")
}

func TestContainerd17IsConfiguredAndRestored(t *testing.T) { whole(t, node.Containerd17) }

func TestContainerd2IsConfiguredAndRestored(t *testing.T) { whole(t, node.Containerd2) }

func TestDockerIsConfiguredAndRestored(t *testing.T) {
	whole(t, node.Docker, "--runtime", "docker")
}
