package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/spec"
)

// reticent is a driver that sends no events, and only shows changes of its GPUs after a
// few queries.
type reticent struct {
	*gputest.Source
	late atomic.Int32 // the remaining number of queries that hide the change
	next atomic.Pointer[gpu.Snapshot]
}

func (r *reticent) Watch(ctx context.Context, ready func(), _ func(gpu.Event)) error {
	return r.Source.Watch(ctx, ready, func(gpu.Event) {})
}

func (r *reticent) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	if next := r.next.Load(); next != nil && r.late.Add(-1) < 0 {
		r.Set(*next)
	}
	return r.Source.Snapshot(ctx)
}

func (r *reticent) Close() error { return nil }

// withReticentDriver makes the machine's driver hide a change for some queries.
func (m *machine) withReticentDriver(late int32) *reticent {
	r := &reticent{Source: m.source}
	r.late.Store(late)
	m.open = func() gpu.Source { return r }
	return r
}

// There is no event and no other node: only another query finds it.
func TestLayoutThatTheDriverShowsLateIsFound(t *testing.T) {
	for _, late := range []int32{1, 2, int32(len(pauses)) - 1} {
		m := newMachine(t, gputest.Node("a100-80gb", 1))
		m.install("", 1)
		require.NoError(t, os.MkdirAll(m.dir+"/proc/driver/nvidia-caps", 0o755))
		require.NoError(t, os.WriteFile(m.dir+"/proc/driver/nvidia-caps/mig-minors", []byte("gpu0/gi0/access 10\ngpu0/gi0/ci0/access 11\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"), 0o644))
		require.NoError(t, os.MkdirAll(m.dir+"/dev/nvidia-caps", 0o755))
		driver := m.withReticentDriver(late)
		m.run()
		m.await("ready", phase(nodestate.Ready))
		before, err := driver.Source.Snapshot(t.Context())
		require.NoError(t, err)
		before.Devices[0] = gputest.WithMIG(before.Devices[0], "1g.10gb")
		driver.next.Store(&before)
		m.mknod("/dev/nvidia-caps/nvidia-cap12", 234, 12)
		s := m.await("a MIG device", func(s nodestate.State) bool { return len(devices(s, cdi.KindGPU)) == 2 })
		require.Equal(t, nodestate.Ready, s.Phase, s.Message)
	}
}

func TestRepeatedQueriesAreSoonAndEnd(t *testing.T) {
	var a again
	a.begin()
	for looks := 0; !a.over(); looks++ {
		require.Less(t, looks, 20)
		a.next()
	}
	var all time.Duration
	for _, p := range pauses {
		require.LessOrEqual(t, p, 250*time.Millisecond, "a new layout is to be specified within 300 ms")
		all += p
	}
	require.LessOrEqual(t, all, 2*time.Second)
	require.Greater(t, all, 1500*time.Millisecond)
}

// An event of NVML about a known change, as its probe sends after each change, does not
// cause a scan of the host.
func TestEventOfAKnownChangeCausesNoScan(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	d := New(m.toolkit(), slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	defer func() { require.NoError(t, d.close(t.Context())) }()
	require.NoError(t, d.reconcile(t.Context(), everything))
	d.trigger(nvmlEvent)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(0, cancel)
	_, err := d.await(ctx, 0)
	require.ErrorIs(t, err, context.Canceled)

	m.source.Update(func(s *gpu.Snapshot) { s.Devices[0].Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded} })
	d.trigger(nvmlEvent)
	what, err := d.await(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, gpusChanged, what)
}

// listen creates a daemon's socket and its directories, as the daemon does at its start.
func (m *machine) listen(path string) (stop func()) {
	m.t.Helper()
	dir := m.dir + path[:strings.LastIndex(path, "/")]
	require.NoError(m.t, os.MkdirAll(dir, 0o755))
	short, err := os.Open(dir) // the address of a socket has 107 bytes
	require.NoError(m.t, err)
	defer short.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d", short.Fd())+path[strings.LastIndex(path, "/"):])
	require.NoError(m.t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(m.t, l.Close())
	return func() { require.NoError(m.t, os.Remove(m.dir+path)) }
}

// mounts reports whether the specification of GPUs mounts a path.
func (m *machine) mounts(path string) bool {
	data, err := os.ReadFile(m.dir + "/run/cdi/" + spec.FileName(cdi.KindGPU))
	return err == nil && strings.Contains(string(data), "hostPath: "+path+"\n")
}

// A pod does not start if the source of a mount is missing.
func TestSocketsOfDaemonsAreFollowed(t *testing.T) {
	for _, at := range []string{"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"} {
		t.Run(at, func(t *testing.T) {
			m := newMachine(t, gputest.Node("t4", 1))
			require.NoError(t, os.MkdirAll(m.dir+"/tmp", 0o755))
			m.install("", 1)
			m.run()
			m.await("ready", phase(nodestate.Ready))
			require.False(t, m.mounts(at))
			stop := m.listen(at)
			require.Eventually(t, func() bool { return m.mounts(at) }, patience, time.Millisecond)
			stop()
			require.Eventually(t, func() bool { return !m.mounts(at) }, patience, time.Millisecond)
		})
	}
}

// Peripheral device nodes appear when other drivers are loaded.
func TestNodesOfOtherDriversAreFollowed(t *testing.T) {
	for node, kind := range map[string]string{
		"/dev/gdrdrv":                             cdi.KindGDRCopy,
		"/dev/infiniband/uverbs0":                 cdi.KindMOFED,
		"/dev/nvidia-fs0":                         cdi.KindGDS,
		"/dev/nvidia-caps-imex-channels/channel0": cdi.KindIMEX,
		"/dev/nvidia-nvswitch0":                   cdi.KindNVSwitch,
	} {
		t.Run(kind, func(t *testing.T) {
			m := newMachine(t, gputest.Node("t4", 1))
			m.install("", 1)
			m.run()
			m.await("ready", phase(nodestate.Ready))
			require.NoError(t, os.MkdirAll(m.dir+node[:strings.LastIndex(node, "/")], 0o755))
			m.mknod(node, 240, 7)
			has := func(s nodestate.State) bool {
				return s.Toolkit != nil && slices.ContainsFunc(s.Toolkit.Specs, func(s nodestate.Spec) bool { return s.Kind == kind })
			}
			m.await("specified", has)
			require.NoError(t, os.Remove(m.dir+node))
			m.await("gone", func(s nodestate.State) bool { return !has(s) })
		})
	}
}

func TestNodesForGraphicsAreFollowed(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	s, err := m.source.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(m.dir+"/sys/bus/pci/devices/"+string(s.Devices[0].PCI)+"/drm/renderD128", 0o755))
	m.run()
	m.await("ready", phase(nodestate.Ready))
	require.NoError(t, os.MkdirAll(m.dir+"/dev/dri", 0o755))
	m.mknod("/dev/dri/renderD128", 226, 128)
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(m.dir + "/run/cdi/" + spec.FileName(cdi.KindGPU))
		return err == nil && strings.Contains(string(data), "path: /dev/dri/renderD128")
	}, patience, time.Millisecond)
}
