package driver

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

const (
	driverRoot = "/run/nvidia/driver"
	readyFile  = "/run/nvidia/validations/.driver-ctr-ready"
	version    = "580.95.05"
	// gone limits how long a process may take to end in an emulated machine.
	gone = time.Minute
)

// image returns the folder /driver of a driver's image: user space, and modules for a kernel.
func image(at, release string, modules vm.Modules) vm.Files {
	files := modules.Below(filepath.Join(at, "lib/modules", release))
	for name, text := range map[string]string{
		"usr/lib/x86_64-linux-gnu/libcuda.so." + version:    "the library",
		"lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": "the firmware",
		"usr/src/README": "sources",
	} {
		files[filepath.Join(at, name)] = vm.File{Data: []byte(text)}
	}
	return files
}

// node is a machine with gpu-driver, a driver's image in /driver, and the kernel's own
// modules that the driver needs.
type node struct {
	*vm.Machine
	t testing.TB
}

func boot(t testing.TB, c vm.Config) *node {
	t.Helper()
	vm.SkipUnlessEnabled(t)
	c.Files = vm.Merge(c.Files, vm.Files{"/usr/bin/gpu-driver": vm.Program(built.Path(t, "gpu-driver"))})
	return &node{vm.Boot(t, c), t}
}

// as returns the node for a subtest.
func (n *node) as(t testing.TB) *node { return &node{n.Machine, t} }

// driver runs gpu-driver with the common flags of the tests.
func (n *node) driver(command string, args ...string) vm.Result {
	n.t.Helper()
	return n.Run(n.t.Context(), append([]string{"gpu-driver", command}, args...)...)
}

// withoutGPU adds flags for commands that read the PCI bus.
func withoutGPU(args ...string) []string { return append([]string{"--without-gpu"}, args...) }

func (n *node) load(args ...string) vm.Result { return n.driver("load", withoutGPU(args...)...) }

// loads runs load, which must succeed.
func (n *node) loads(args ...string) vm.Result {
	n.t.Helper()
	r := n.load(args...)
	require.Zero(n.t, r.Code, "%s\n%s", r, n.Run(n.t.Context(), "sh", "-c", "dmesg | tail -20"))
	return r
}

func (n *node) unloads(args ...string) {
	n.t.Helper()
	r := n.driver("unload", args...)
	require.Zero(n.t, r.Code, "%s", r)
	require.Empty(n.t, n.modules())
}

// refuses runs load, which must fail with a reason in the output and in the state.
func (n *node) refuses(reason, text string, args ...string) {
	n.t.Helper()
	r := n.load(args...)
	require.Equal(n.t, 3, r.Code, "%s", r)
	require.Contains(n.t, r.Stderr, "gpu-driver: "+reason+": ")
	require.Contains(n.t, r.Stderr, text)
	s := n.state()
	require.Equal(n.t, nodestate.Failed, s.Phase)
	require.EqualValues(n.t, reason, s.Reason)
	require.Contains(n.t, s.Message, text)
	n.t.Log(strings.TrimSpace(lastLine(r.Stderr)))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// state returns the driver's published state.
func (n *node) state() nodestate.State {
	n.t.Helper()
	text, err := n.ReadFile(n.t.Context(), "/run/nvidia/gpuready/driver/state.json")
	require.NoError(n.t, err)
	var s nodestate.State
	require.NoError(n.t, json.Unmarshal([]byte(text), &s))
	return s
}

// modules returns the driver's loaded modules by name, with their reference counts.
func (n *node) modules() map[string]string {
	n.t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(n.MustRun(n.t.Context(), "cat", "/proc/modules")) {
		if f := strings.Fields(line); strings.HasPrefix(f[0], "nvidia") {
			found[f[0]] = f[2]
		}
	}
	return found
}

// loadedTimes returns how often nvidia.ko was loaded since the machine started.
func (n *node) loadedTimes() int {
	n.t.Helper()
	return strings.Count(n.MustRun(n.t.Context(), "dmesg"), "NVRM: loading NVIDIA")
}

// run starts gpu-driver run and waits until it is ready.
func (n *node) run(args ...string) *vm.Process {
	n.t.Helper()
	p := n.start(args...)
	n.until(p, "msg=ready")
	return p
}

func (n *node) start(args ...string) *vm.Process {
	n.t.Helper()
	return n.Start(n.t.Context(), vm.Command{Args: append([]string{"gpu-driver", "run", "--listen=", "--without-gpu"}, args...)})
}

// until waits until a process has printed a text.
func (n *node) until(p *vm.Process, text string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), gone)
	defer cancel()
	for {
		r, exited := p.Output(ctx)
		if strings.Contains(r.Stderr, text) {
			return
		}
		require.False(n.t, exited, "it ended before it wrote %q: %s", text, r)
	}
}

// ends sends SIGTERM, after which a process must end with 0.
func (n *node) ends(p *vm.Process) vm.Result {
	n.t.Helper()
	require.NoError(n.t, p.Signal(n.t.Context(), syscall.SIGTERM))
	r := p.Wait(n.t.Context(), gone)
	require.Zero(n.t, r.Code, "%s", r)
	return r
}

// user starts a process that has the control device open.
func (n *node) user() *vm.Process {
	n.t.Helper()
	n.MustRun(n.t.Context(), "sh", "-c", "[ -c /dev/nvidiactl ] || mknod /dev/nvidiactl c 195 255")
	p := n.Start(n.t.Context(), vm.Command{Args: []string{"sh", "-c", "exec sleep 100000 3</dev/nvidiactl"}})
	for held := false; !held; {
		_, exited := p.Output(n.t.Context())
		require.False(n.t, exited)
		held = n.modules()["nvidia"] > "2" // nvidia_uvm and nvidia_modeset hold it, too
	}
	return p
}

func (n *node) kill(p *vm.Process) {
	n.t.Helper()
	require.NoError(n.t, p.Signal(n.t.Context(), syscall.SIGKILL))
	p.Wait(n.t.Context(), gone)
}
