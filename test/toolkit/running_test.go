package toolkit

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/runtimes"
	"github.com/gpuready/gpuready/toolkit/door/doortest"
)

// staying starts a container that stays, and returns its process.
func staying(t *testing.T, h *runtimes.Host, s runtimes.Spec) (pid string) {
	t.Helper()
	s.Args = []string{runtimes.Probe, "wait", t.Name()}
	require.NoError(t, h.Begin(t.Context(), s))
	want := strings.Join(s.Args, "\x00") + "\x00"
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, p := range all {
			if data, err := os.ReadFile(p); err == nil && string(data) == want {
				pid = filepath.Base(filepath.Dir(p))
				return true
			}
		}
		return false
	}, minute, tick)
	return pid
}

// born is when a process was started, in ticks; "" if there is none (proc(5), stat).
func born(t *testing.T, pid string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(data, []byte(") "))
	return strings.Fields(string(after))[19]
}

// losing is a systemd whose first restart starts the runtime with the configuration
// that is written and without a handler of somebody else's.
func losing(t *testing.T, h *runtimes.Host, path, from, to string) *doortest.Systemd {
	t.Helper()
	restarts := 0
	s, err := doortest.Start("/", map[string]string{h.Unit(): "active"}, func(unit, verb string) error {
		if restarts++; restarts > 1 {
			return h.Act(unit, verb)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Contains(data, []byte(from)) {
			return fmt.Errorf("%s has no %s", path, from)
		}
		if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte(from), []byte(to)), 0o644); err != nil {
			return err
		}
		acted := h.Act(unit, verb)
		for acted == nil && slices.Contains(status(t, h).Handlers, "runc-batch") {
			time.Sleep(tick) // a reload is not waited for by anybody
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		return acted
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// keepsRunning has a container that runs before stay what it is through a rollback, an
// apply and a restore, though the runtime is restarted each time.
func keepsRunning(t *testing.T, kind runtimes.Kind, restarts int, from, to string) {
	t.Helper()
	if !enter(t) {
		return
	}
	h := start(t, kind)
	dir := filepath.Dir(written[kind].path)
	before, was := contents(t, dir), status(t, h)
	pid := staying(t, h, runtimes.Spec{})
	since := born(t, pid)
	require.NotEmpty(t, since)

	s := losing(t, h, written[kind].path, from, to)
	out := fails(t, configuring(kind, "apply")...)
	require.Contains(t, out, `no handler "runc-batch" any more`)
	require.Contains(t, out, "its old configuration is back")
	require.Len(t, s.Calls(), 2)
	require.Equal(t, before, contents(t, dir))
	require.ElementsMatch(t, was.Handlers, status(t, h).Handlers)
	require.Equal(t, since, born(t, pid), "a rollback")
	require.Contains(t, fails(t, configuring(kind, "apply")...), "not tried again")
	require.Len(t, s.Calls(), 2)

	gpuToolkit(t, configuring(kind, "restore")...) // forgets that
	gpuToolkit(t, configuring(kind, "apply")...)
	require.Contains(t, status(t, h).Handlers, "nvidia")
	require.Equal(t, since, born(t, pid), "an apply")
	gpuToolkit(t, configuring(kind, "restore")...)
	require.Equal(t, before, contents(t, dir))
	require.Equal(t, since, born(t, pid), "a restore")
	require.Len(t, s.Calls(), restarts)
	ordinary(t, h)
}

func TestContainerd2KeepsContainersThroughARollback(t *testing.T) {
	keepsRunning(t, runtimes.Containerd2, 4, "runtimes.'runc-batch'", "runtimes.batch")
}

func TestContainerd16KeepsContainersThroughARollback(t *testing.T) {
	keepsRunning(t, runtimes.Containerd16, 4, `runtimes."runc-batch"`, "runtimes.batch")
}

func TestDockerKeepsContainersThroughARollback(t *testing.T) {
	keepsRunning(t, runtimes.Docker, 4, `"runc-batch"`, `"batch"`)
}

// systemctl daemon-reload has systemd write the device rules of its units anew. It knows
// the devices of a container's scope as /dev/char/MAJOR:MINOR, as the OCI runtime gave
// them to it (DeviceAllow=), and looks there which device that is: without the link it
// leaves the rule out, and a container that runs loses its GPU ("Failed to initialize
// NVML: Unknown Error"). There is no systemd here, so what can be shown is that each
// device that a container is given has its link.
func TestEachDeviceThatIsGivenHasItsLink(t *testing.T) {
	if !enter(t) {
		return
	}
	start(t, runtimes.Containerd2)
	gpuToolkit(t, "apply")
	nodes := given(t)
	require.Greater(t, len(nodes), 4)
	for _, node := range nodes {
		var is, linked unix.Stat_t
		require.NoError(t, unix.Stat(node, &is))
		require.Equal(t, uint32(unix.S_IFCHR), is.Mode&unix.S_IFMT, node)
		link := fmt.Sprintf("/dev/char/%d:%d", unix.Major(is.Rdev), unix.Minor(is.Rdev))
		require.NoError(t, unix.Stat(link, &linked), "%s of %s", link, node)
		require.Equal(t, is.Rdev, linked.Rdev, "%s leads to %s", link, node)
		require.Equal(t, uint32(unix.S_IFCHR), linked.Mode&unix.S_IFMT)
	}
	gpuToolkit(t, "restore")
}

// given are the host's paths of all devices of our specifications.
func given(t *testing.T) []string {
	t.Helper()
	root, err := host.Open("/")
	require.NoError(t, err)
	defer root.Close()
	files, err := cdi.Load(root, "/var/run/cdi")
	require.NoError(t, err)
	var nodes []string
	for _, f := range files {
		require.NoError(t, f.Err)
		edits := []specs.ContainerEdits{f.Spec.ContainerEdits}
		for _, d := range f.Spec.Devices {
			edits = append(edits, d.ContainerEdits)
		}
		for _, e := range edits {
			for _, d := range e.DeviceNodes {
				nodes = append(nodes, cmp.Or(d.HostPath, d.Path))
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
