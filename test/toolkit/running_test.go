package toolkit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// staying starts a container that keeps running, and returns its process.
func staying(t *testing.T, h *node.Host, s node.Spec) (pid string) {
	t.Helper()
	s.Args = []string{node.Probe, "wait", t.Name()}
	require.NoError(t, h.StartContainer(t.Context(), s))
	return processOf(t, s)
}

// startHolder starts a container that runs until it is removed, and returns its process.
func startHolder(t *testing.T, h *node.Host, s node.Spec) (pid string, remove func(context.Context) error) {
	t.Helper()
	s.Args = []string{node.Probe, "wait", t.Name()}
	remove, err := h.StartPod(t.Context(), s)
	require.NoError(t, err)
	return processOf(t, s), remove
}

func processOf(t *testing.T, s node.Spec) (pid string) {
	t.Helper()
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

// born returns the start time of a process in ticks, or "" (proc(5), stat).
func born(t *testing.T, pid string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(data, []byte(") "))
	return strings.Fields(string(after))[19]
}

// losing is a systemd whose first restart starts the runtime with the new configuration, but without
// a third party's handler.
func losing(t *testing.T, h *node.Host, path, from, to string) *runtimetest.Systemd {
	t.Helper()
	restarts := 0
	s, err := runtimetest.StartSystemd("/", map[string]string{h.Unit(): "active"}, func(unit, verb string) error {
		if restarts++; restarts > 1 {
			return h.ActOnUnit(unit, verb)
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
		acted := h.ActOnUnit(unit, verb)
		for acted == nil && slices.Contains(status(t, h).Handlers, "runc-batch") {
			time.Sleep(tick) // nothing waits for a reload
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

// keepsRunning checks that a running container is unaffected by a rollback, an apply and a restore,
// although the runtime is restarted each time.
func keepsRunning(t *testing.T, kind node.Kind, restarts int, from, to string) {
	t.Helper()
	if !enter(t) {
		return
	}
	h := start(t, kind)
	dir := filepath.Dir(written[kind].path)
	before, was := contents(t, dir), status(t, h)
	pid := staying(t, h, node.Spec{})
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
	keepsRunning(t, node.Containerd2, 4, "runtimes.'runc-batch'", "runtimes.batch")
}

func TestContainerd16KeepsContainersThroughARollback(t *testing.T) {
	keepsRunning(t, node.Containerd16, 4, `runtimes."runc-batch"`, "runtimes.batch")
}

func TestDockerKeepsContainersThroughARollback(t *testing.T) {
	keepsRunning(t, node.Docker, 4, `"runc-batch"`, `"batch"`)
}

// systemctl daemon-reload makes systemd rewrite the device rules of its units. It knows the devices of
// a container's scope as /dev/char/MAJOR:MINOR, as the OCI runtime passed them (DeviceAllow=), and
// resolves them there. Without the link it drops the rule, and a running container loses its GPU
// ("Failed to initialize NVML: Unknown Error"). There is no systemd here, so the test only shows
// that each device of a container has its link.
func TestEachInjectedDeviceHasItsLink(t *testing.T) {
	if !enter(t) {
		return
	}
	start(t, node.Containerd2)
	gpuToolkit(t, "apply")
	nodes := specDevices(t)
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

// In a hierarchy of version 1 systemd then forbids a container's group all devices, then
// allows those that the OCI runtime passed, which are the linux.resources.devices of the container's
// configuration. A GPU that was added behind the runtime's back is lost then; ours is listed there.
func TestAGPUStaysWhenDeviceRulesAreRewritten(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	systemd(t, h)
	gpuToolkit(t, configuring(kind, "apply", "--accept-nvidia-visible-devices-envvar-when-unprivileged")...)
	for name, s := range map[string]node.Spec{
		"by CDI":     {CDI: []string{"nvidia.com/gpu=0"}},
		"by handler": {Handler: "nvidia", Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}},
	} {
		pid, remove := startHolder(t, h, s)
		group := deviceGroup(t, pid)
		gpu := filepath.Join("/proc", pid, "root/dev/nvidia0")
		require.NotErrorIs(t, openIn(t, group, gpu), unix.EPERM, name)

		rules := deviceRules(t, pid)
		rewriteRules(t, group, rules, func(r oci.LinuxDeviceCgroup) bool { return r.Major != nil && *r.Major == nvidiaMajor })
		require.ErrorIs(t, openIn(t, group, gpu), unix.EPERM, "without its rules")
		rewriteRules(t, group, rules, func(oci.LinuxDeviceCgroup) bool { return false })
		require.NotErrorIs(t, openIn(t, group, gpu), unix.EPERM, name)
		require.NoError(t, remove(t.Context()))
	}
	gpuToolkit(t, configuring(kind, "restore")...)
}

// nvidiaMajor is the major number of /dev/nvidia0 and /dev/nvidiactl.
const nvidiaMajor = 195

// deviceGroup returns the folder of a process in the hierarchy of devices.
func deviceGroup(t *testing.T, pid string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if _, at, ok := strings.Cut(strings.TrimSpace(line), ":devices:"); ok {
			return filepath.Join("/sys/fs/cgroup/devices", at)
		}
	}
	t.Skip("this machine has no hierarchy of version 1 for devices")
	return ""
}

// openIn opens a device as a member of a group, and returns the error.
func openIn(t *testing.T, group, path string) error {
	t.Helper()
	own := deviceGroup(t, "self")
	join := func(group string) {
		require.NoError(t, os.WriteFile(filepath.Join(group, "tasks"), fmt.Append(nil, unix.Gettid()), 0))
	}
	runtime.LockOSThread() // of which alone is told whether it may
	defer runtime.UnlockOSThread()
	defer join(own)
	join(group)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: allowed, and there is no driver
		require.ErrorIs(t, err, unix.EPERM)
	}
	return err
}

// deviceRules returns the rules of the configuration with which a container was created.
func deviceRules(t *testing.T, pid string) []oci.LinuxDeviceCgroup {
	t.Helper()
	bundles, err := filepath.Glob("/run/containerd/io.containerd.runtime.v2.task/k8s.io/*")
	require.NoError(t, err)
	for _, bundle := range bundles {
		if of, err := os.ReadFile(filepath.Join(bundle, "init.pid")); err != nil || string(of) != pid {
			continue
		}
		data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
		require.NoError(t, err)
		var spec oci.Spec
		require.NoError(t, json.Unmarshal(data, &spec))
		return spec.Linux.Resources.Devices
	}
	require.FailNow(t, "no bundle", "of process %s among %v", pid, bundles)
	return nil
}

// rewriteRules rewrites the rules of a group, without some.
func rewriteRules(t *testing.T, group string, rules []oci.LinuxDeviceCgroup, without func(oci.LinuxDeviceCgroup) bool) {
	t.Helper()
	write := func(file, rule string) {
		require.NoError(t, os.WriteFile(filepath.Join(group, file), []byte(rule), 0), rule)
	}
	write("devices.deny", "a")
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return strconv.FormatInt(*n, 10)
	}
	for _, r := range rules {
		if r.Allow && !without(r) {
			write("devices.allow", fmt.Sprintf("%s %s:%s %s", cmp.Or(r.Type, "a"), number(r.Major), number(r.Minor), r.Access))
		}
	}
}

// specDevices returns the host's paths of all devices of our specifications.
func specDevices(t *testing.T) []string {
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
