package toolkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// configuring returns the arguments of a command that may configure a runtime.
func configuring(kind node.Kind, command string, more ...string) []string {
	args := []string{command, "--runtime-restart-mode", "systemd", "--nvidia-runtime-name", "nvidia", "--accept-nvidia-visible-devices-envvar-when-unprivileged"}
	switch kind {
	case node.Docker:
		args = append(args, "--runtime", "docker")
	case node.Containerd16:
		args = append(args, "--cdi-enabled=false")
	}
	return append(args, more...)
}

// program returns a command that runs gpu-toolkit against the host.
func program(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(ctx, built.Path(t, "gpu-toolkit"), append(slices.Clone(args), "--host-root", node.HostRoot)...)
}

// fails runs gpu-toolkit, which must fail, and returns its output.
func fails(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, err := program(ctx, t, args...).CombinedOutput()
	require.Error(t, err, "%s", out)
	return string(out)
}

// startWith starts a host with configuration files, by path.
func startWith(t *testing.T, kind node.Kind, config map[string]string) *node.Host {
	t.Helper()
	o := node.HostOptions{Kind: kind, Config: map[string][]byte{}, GPUs: "h100-sxm"}
	for path, content := range config {
		o.Config[path] = []byte(content)
	}
	return node.StartHost(t, o)
}

// hand returns a configuration written by hand, with replacements: old, new.
func hand(t *testing.T, kind node.Kind, oldNew ...string) string {
	t.Helper()
	text := string(byHand(t, kind)[written[kind].path])
	for i := 0; i < len(oldNew); i += 2 {
		require.Contains(t, text, oldNew[i])
	}
	return strings.NewReplacer(oldNew...).Replace(text)
}

// cycle applies to a host and restores it: the handler is added to everything that was there, then
// the original bytes are back.
func cycle(t *testing.T, h *node.Host, kind node.Kind, more ...string) {
	t.Helper()
	dir := filepath.Dir(written[kind].path)
	before, was := contents(t, dir), status(t, h)
	gpuToolkit(t, configuring(kind, "apply", more...)...)
	now := status(t, h)
	require.ElementsMatch(t, append(slices.Clone(was.Handlers), "nvidia"), now.Handlers)
	require.Equal(t, was.Default, now.Default)
	ordinary(t, h)
	requireHandlerGPUs(t, h, "nvidia")
	gpuToolkit(t, configuring(kind, "restore", more...)...)
	require.Equal(t, before, contents(t, dir))
	require.ElementsMatch(t, was.Handlers, status(t, h).Handlers)
	ordinary(t, h)
}

// refused gives a running runtime a configuration that cannot be changed. The place and the reason
// must be reported, and nothing changed or restarted.
func refused(t *testing.T, kind node.Kind, wrong map[string]struct{ config, says string }) {
	t.Helper()
	if !enter(t) {
		return
	}
	h := start(t, kind)
	s := systemd(t, h)
	was := status(t, h)
	path := written[kind].path
	for name, c := range wrong {
		require.NoError(t, os.WriteFile(path, []byte(c.config), 0o644))
		exact := files(t, filepath.Dir(path))
		for _, command := range []string{"plan", "apply", "apply"} {
			out := fails(t, configuring(kind, command)...)
			require.Regexp(t, c.says, out, name)
			require.Equal(t, exact, files(t, filepath.Dir(path)), "%s: not a byte, not a time", name)
		}
		require.Empty(t, s.Calls(), name)
		require.Equal(t, was, status(t, h), name)
		ordinary(t, h)
		require.NotEmpty(t, gpuToolkit(t, configuring(kind, "restore")...))
		require.Equal(t, exact, files(t, filepath.Dir(path)), name)
	}
}

func TestUnchangeableContainerd2IsLeftUnchanged(t *testing.T) {
	const table = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n"
	refused(t, node.Containerd2, map[string]struct{ config, says string }{
		"no TOML":            {"version = 3\n[plugins\n", `/etc/containerd/config\.toml:2:\d+: `},
		"a key twice":        {"version = 3\nroot = '/a'\nroot = '/b'\n", `/etc/containerd/config\.toml:3:\d+: `},
		"bytes of no text":   {"version = 3\nroot = '\xff'\n", `/etc/containerd/config\.toml:2:\d+: `},
		"runtimes as a list": {table + "  runtimes = []\n", `/etc/containerd/config\.toml:3:\d+: .*runtimes`},
		"a later version":    {"version = 99\n", `/etc/containerd/config\.toml:1:\d+: .*version 99`},
		"no list of imports": {"version = 3\nimports = 'a'\n", `/etc/containerd/config\.toml:2:\d+: imports`},
	})
}

func TestUnchangeableContainerd16IsLeftUnchanged(t *testing.T) {
	const table = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\n"
	refused(t, node.Containerd16, map[string]struct{ config, says string }{
		"runtimes as a list": {table + "  runtimes = []\n", `/etc/containerd/config\.toml:3:\d+: .*runtimes`},
		"a later version":    {"version = 3\n", `/etc/containerd/config\.toml:1:\d+: .*version 3`},
	})
}

func TestUnchangeableDockerIsLeftUnchanged(t *testing.T) {
	refused(t, node.Docker, map[string]struct{ config, says string }{
		"no JSON":            {"{\n  \"debug\": false,,\n}\n", `/etc/docker/daemon\.json:2:\d+: `},
		"cut off":            {"{\"runtimes\": {", `/etc/docker/daemon\.json:1:\d+: `},
		"runtimes as a list": {"{\n  \"runtimes\": []\n}\n", `/etc/docker/daemon\.json:2:\d+: .*runtimes`},
		"a list":             {"[]\n", `/etc/docker/daemon\.json:1:\d+: `},
	})
}

// A directory, and a link to nothing, where a file should be.
func TestAnIrregularFileIsLeftUnchanged(t *testing.T) {
	if !enter(t) {
		return
	}
	h := start(t, node.Containerd2)
	s := systemd(t, h)
	path := written[node.Containerd2].path
	for _, put := range []func() error{
		func() error { return os.Mkdir(path, 0o755) },
		func() error { return unix.Mkfifo(path, 0o644) },
		func() error { return os.WriteFile(path, make([]byte, 32<<20), 0o644) },
	} {
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, put())
		exact := files(t, filepath.Dir(path))
		require.Contains(t, fails(t, configuring(node.Containerd2, "apply")...), path)
		require.Equal(t, exact, files(t, filepath.Dir(path)))
	}
	require.Empty(t, s.Calls())
	ordinary(t, h)
}

// full fills the file system of a directory.
func full(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	defer f.Close()
	block := make([]byte, 512)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	return filler
}

// A configuration directory that accepts no file gives one error and no partial change. Once there
// is room, the change succeeds.
func TestAFailedWriteLeavesNoPartialChange(t *testing.T) {
	if !enter(t) {
		return
	}
	const dir = "/etc/containerd"
	kind := node.Containerd2
	h := start(t, kind)
	s := systemd(t, h)
	was, data := status(t, h), byHand(t, kind)[written[kind].path]

	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", node.HostRoot+dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	exact := files(t, dir)
	require.Contains(t, fails(t, configuring(kind, "apply")...), "read-only file system")
	require.Equal(t, exact, files(t, dir))
	require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))

	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	require.NoError(t, os.WriteFile(written[kind].path, data, 0o644))
	filler := full(t, dir)
	exact = files(t, dir)
	require.Contains(t, fails(t, configuring(kind, "apply")...), "make room")
	require.Equal(t, exact, files(t, dir))
	require.Empty(t, s.Calls())
	require.Equal(t, was, status(t, h))

	require.NoError(t, os.Remove(filler))
	cycle(t, h, kind)
}

// A runtime that is missing, has ended, or does not respond is not touched.
func TestAnUnresponsiveRuntimeIsLeftUnchanged(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	s := systemd(t, h)
	const dir = "/etc/containerd"
	exact := files(t, dir)
	untouched := func(says string) {
		t.Helper()
		require.Contains(t, fails(t, configuring(kind, "apply")...), says)
		require.Equal(t, exact, files(t, dir))
		require.Empty(t, s.Calls())
	}
	require.NoError(t, h.Signal(unix.SIGSTOP))
	untouched("does not answer")
	require.NoError(t, h.Signal(unix.SIGCONT))
	ordinary(t, h)
	h.Kill()
	untouched("is not reached")
	require.NoError(t, os.Remove(node.ContainerdSocket))
	untouched("no container runtime listens at")
	require.NoError(t, h.Start(t.Context()))
	cycle(t, h, kind)
}

// A handler's program is not removed while a runtime runs with the handler and does not respond.
func TestRestoreWaitsForAnUnresponsiveRuntime(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	s := systemd(t, h)
	gpuToolkit(t, configuring(kind, "apply")...)
	const dir, programs = "/etc/containerd", "/usr/local/nvidia/gpuready"
	config, installed, calls := files(t, dir), files(t, programs), len(s.Calls())
	require.NoError(t, h.Signal(unix.SIGSTOP))
	require.Contains(t, fails(t, configuring(kind, "restore")...), "does not answer within 2s; see its log; nothing was restored")
	require.Equal(t, config, files(t, dir))
	require.Equal(t, installed, files(t, programs))
	require.Len(t, s.Calls(), calls)
	require.NoError(t, h.Signal(unix.SIGCONT))
	gpuToolkit(t, configuring(kind, "restore")...)
	require.NoDirExists(t, programs)
	ordinary(t, h)
}

// Only a runtime that responds counts, not a program of its name.
func TestAProgramOnThePathIsIgnored(t *testing.T) {
	if !enter(t) {
		return
	}
	h := start(t, node.Containerd2)
	systemd(t, h)
	const ran = "/run/somebody-asked"
	fake := t.TempDir()
	built.Script(t, filepath.Join(fake, "containerd"), "touch "+ran+"\necho containerd github.com/containerd/containerd v1.6.20 0")
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	cycle(t, h, node.Containerd2)
	require.NoFileExists(t, ran)
}

// Restoring does not require the handler's name.
func TestRestoreNeedsNoHandlerName(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	s := systemd(t, h)
	was := status(t, h)
	gpuToolkit(t, configuring(kind, "apply")...)
	gpuToolkit(t, "restore", "--runtime-restart-mode", "systemd")
	require.ElementsMatch(t, was.Handlers, status(t, h).Handlers)
	require.Len(t, s.Calls(), 2)
	require.NoDirExists(t, "/usr/local/nvidia")
}
