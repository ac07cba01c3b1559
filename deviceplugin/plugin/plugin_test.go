package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// node is a machine on which a plugin runs in this process.
type node struct {
	t       testing.TB
	host    string // the host's root
	kubelet *kubelettest.Kubelet
	source  *gputest.Source
	cfg     plugin.Config
	log     *buffer

	cancel context.CancelFunc
	done   chan error
}

// buffer is a log that can be read while it is written.
type buffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
	grown chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.grown)
	b.grown = make(chan struct{})
	return b.bytes.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}

// wait waits until the log contains text.
func (b *buffer) wait(t testing.TB, text string) {
	t.Helper()
	ctx := soon(t)
	for {
		b.mu.Lock()
		there, grown := strings.Contains(b.bytes.String(), text), b.grown
		b.mu.Unlock()
		if there {
			return
		}
		select {
		case <-grown:
		case <-ctx.Done():
			t.Fatalf("the log does not say %q:\n%s", text, b)
		}
	}
}

const socket = "/dp/kubelet.sock"

func newNode(t testing.TB, snap gpu.Snapshot) *node {
	t.Helper()
	host, err := os.MkdirTemp("", "node") // t.TempDir() would be too long for a unix socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(host)) })
	n := &node{t: t, host: host, source: gputest.New(snap), log: &buffer{grown: make(chan struct{})}}
	n.cfg = plugin.Config{
		HostRoot: host, StateDir: "/state", KubeletSocket: socket,
		Driver: driver.Place{HostRoot: host, Root: "/driver"},
		Open: func(driver.Place) (plugin.Opened, error) {
			return plugin.Opened{Source: reopenable{n.source}, Root: "/driver"}, nil
		},
		Log: slog.New(slog.NewTextHandler(n.log, nil)), Started: time.Now(),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", n.log)
		}
	})
	return n
}

// withKubelet starts a kubelet of the kind on which a plugin that registers too early
// loses its devices.
func (n *node) withKubelet() *node {
	n.t.Helper()
	k, err := kubelettest.Start(kubelettest.Config{Dir: filepath.Join(n.host, "dp"), KeepReplaced: true})
	require.NoError(n.t, err)
	n.kubelet = k
	n.t.Cleanup(k.Stop)
	return n
}

func (n *node) start() *node {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.done = cancel, make(chan error, 1)
	go func() {
		files, err := plugin.Run(ctx, n.cfg)
		for _, file := range files {
			_ = file.Close()
		}
		n.done <- err
	}()
	n.t.Cleanup(func() {
		cancel()
		_ = n.end() // the test checks why it ended
	})
	return n
}

// end waits until the plugin has ended and returns its error.
func (n *node) end() error {
	n.t.Helper()
	if n.done == nil {
		return nil
	}
	select {
	case err := <-n.done:
		n.done = nil
		return err
	case <-soon(n.t).Done():
		n.t.Fatal("the plugin did not end")
		return nil
	}
}

func (n *node) stop() {
	n.t.Helper()
	n.cancel()
	require.NoError(n.t, n.end())
	if n.kubelet != nil {
		_, err := n.kubelet.Wait(soon(n.t), config.GPU, func(r kubelettest.Resource) bool { return r.Gone })
		require.NoError(n.t, err)
	}
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// wait waits until that many devices are allocatable.
func (n *node) wait(allocatable int) kubelettest.Resource {
	n.t.Helper()
	r, err := n.kubelet.Wait(soon(n.t), config.GPU, func(r kubelettest.Resource) bool {
		return r.Allocatable == allocatable && !r.Gone && r.Lists > 0
	})
	require.NoError(n.t, err)
	return r
}

// state waits until the state file satisfies cond.
func (n *node) state(cond func(nodestate.State) bool) nodestate.State {
	n.t.Helper()
	ctx, cancel := context.WithCancel(soon(n.t))
	defer cancel()
	var last nodestate.State
	found := false
	_ = nodestate.Watch(ctx, filepath.Join(n.host, "state/deviceplugin"), func(s nodestate.State, err error) {
		if err == nil {
			last = s
			if cond(s) {
				found = true
				cancel()
			}
		}
	})
	require.True(n.t, found, "the state file came to say %+v", last)
	return last
}

// wasOutOfService reports whether a snapshot has shown a GPU out of service.
func wasOutOfService(s nodestate.State) bool {
	return slices.ContainsFunc(s.DevicePlugin.Faults, func(f nodestate.Fault) bool { return f.Evidence == "reset" })
}

func (n *node) unhealthy(r kubelettest.Resource) []string {
	var ids []string
	for _, d := range r.Devices {
		if d.GetHealth() != v1beta1.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids
}

func pod(name string, gpus int) kubelettest.Pod {
	return kubelettest.Pod{Namespace: "default", Name: name, Container: "main", Requests: map[string]int{config.GPU: gpus}}
}

func TestTheFirstStateShowsTheRegistration(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet()
	n.cfg.Started = time.Now().Add(time.Hour) // it does not count as late
	n.start()
	s := n.state(func(nodestate.State) bool { return true })
	require.Equal(t, nodestate.Ready, s.Phase, s.Message)
	require.True(t, s.DevicePlugin.Registered)
}

func TestEightGPUsAreAdvertisedWithTheirNUMANodes(t *testing.T) {
	snap := gputest.Node("h100-sxm", 8)
	n := newNode(t, snap).withKubelet().start()
	r := n.wait(8)
	require.Len(t, r.Devices, 8)
	for i, d := range r.Devices {
		require.Equal(t, string(snap.Devices[i].UUID), d.GetID())
		require.Equal(t, int64(snap.Devices[i].NUMANode), d.GetTopology().GetNodes()[0].GetID())
	}
	require.Equal(t, kubelet.Endpoint(config.GPU), r.Endpoint)
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Equal(t, socket, s.DevicePlugin.KubeletSocket)
	require.Equal(t, snap.Driver.Version, s.Driver.Version)
	require.Len(t, s.DevicePlugin.Resources[0].Devices, 8)
	n.stop()
	require.NoFileExists(t, filepath.Join(n.host, "dp", kubelet.Endpoint(config.GPU)))
	r, err := n.kubelet.Wait(soon(t), config.GPU, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(t, err)
	require.Equal(t, 8, r.Capacity)
}

func TestAPodGetsTheCDINamesOfItsGPUs(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	a, err := n.kubelet.Admit(soon(t), pod("two", 2))
	require.NoError(t, err)
	require.Len(t, a.CDIDevices, 2)
	require.NotEqual(t, a.CDIDevices[0], a.CDIDevices[1])
	for i, id := range a.DeviceIDs[config.GPU] {
		require.Equal(t, "k8s.gpuready.io/gpu="+id, a.CDIDevices[i])
	}
	require.Empty(t, a.Envs)
	require.Empty(t, a.Devices)
	require.Empty(t, a.Mounts)
	require.Empty(t, a.Annotations)
}

func TestAnXIDMarksOneGPUAndLeavesSeven(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	n.source.Emit(gputest.XID(gputest.GPU(3), 79))
	r := n.wait(7)
	require.Equal(t, []string{string(gputest.GPU(3))}, n.unhealthy(r))
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	d := s.DevicePlugin.Resources[0].Devices[3]
	require.Equal(t, nodestate.Unhealthy, d.Health)
	require.Equal(t, gpu.ReasonXID, d.Reason)
	require.Contains(t, d.Message, "XID 79")
	require.WithinDuration(t, time.Now(), d.Since, time.Minute)
	a, err := n.kubelet.Admit(soon(t), pod("seven", 7))
	require.NoError(t, err)
	require.NotContains(t, a.DeviceIDs[config.GPU], string(gputest.GPU(3)))
	_, err = n.kubelet.Admit(soon(t), pod("eight", 1))
	require.ErrorContains(t, err, "Requested: 1, Available: 0")
}

func TestApplicationXIDsChangeNothing(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	for _, xid := range []uint64{13, 31, 43, 45, 68, 109} {
		n.source.Emit(gputest.XID(gputest.GPU(1), xid))
	}
	n.source.Emit(gputest.XID(gputest.GPU(2), 48)) // delivered after them
	r := n.wait(7)
	require.Equal(t, []string{string(gputest.GPU(2))}, n.unhealthy(r))
	n.log.wait(t, "XID that is not held against the GPU")
}

func TestQuietGPURecovers(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet()
	n.cfg.Settings.Health = health.DefaultPolicy().With(health.Changes{QuietPeriod: 50 * time.Millisecond})
	n.start()
	n.wait(8)
	n.source.Emit(gputest.XID(gputest.GPU(1), 48))
	n.source.Emit(gputest.XID(gputest.GPU(2), 94))
	n.log.wait(t, "device is healthy again")
	require.Equal(t, []string{string(gputest.GPU(1))}, n.unhealthy(n.wait(7)), "one that needs a reset does not come back by itself")
}

// The configuration decides that a GPU is used while its memory waits to be replaced: an error of a program on it passes.
func TestQuietGPUWhoseMemoryWaitsRecovers(t *testing.T) {
	snap := gputest.Node("l40s", 2)
	d := &snap.Devices[1]
	d.Remap, d.Fault = gpu.RemapPending, gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "rows wait"}
	n := newNode(t, snap).withKubelet()
	n.cfg.Settings.Health = health.DefaultPolicy().With(health.Changes{QuietPeriod: 50 * time.Millisecond, Remap: "allocatable"})
	n.start()
	n.wait(2)
	n.source.Emit(gputest.XID(d.UUID, 94))
	n.log.wait(t, "device is healthy again")
	n.source.Emit(gputest.Event(gpu.EventUnwatched, d.UUID, "said"))
	n.wait(1)
	n.source.Emit(gputest.Event(gpu.EventChanged, d.UUID, "its health is watched again"))
	n.wait(2)
}

// xidSource is a source in which a GPU meets an XID while a snapshot is read.
type xidSource struct {
	reopenable
	log         fmt.Stringer
	xid         uint64
	read, heard atomic.Int32
	early       atomic.Bool // the GPU was healthy before it was read again
}

func (s *xidSource) Watch(ctx context.Context, ready func(), deliver func(gpu.Event)) error {
	return s.reopenable.Watch(ctx, ready, func(e gpu.Event) {
		deliver(e)
		s.heard.Add(1)
	})
}

func (s *xidSource) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	defer s.read.Add(1)
	switch s.read.Load() { // the first one, that for the first XID, and then
	case 2: // that after having been quiet
		snap, err := s.reopenable.Snapshot(ctx)
		s.Emit(gputest.XID(gputest.GPU(1), s.xid))
		for s.heard.Load() < 2 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return snap, err
	case 3:
		s.early.Store(strings.Contains(s.log.String(), "device is healthy again"))
	}
	return s.reopenable.Snapshot(ctx)
}

func TestXIDDuringAProbeFailsIt(t *testing.T) { testXIDDuringAProbe(t, 94, false) }

// A program can cause one a second, and it is not held against the GPU.
func TestIgnoredXIDDuringAProbePassesIt(t *testing.T) { testXIDDuringAProbe(t, 31, true) }

func testXIDDuringAProbe(t *testing.T, xid uint64, passes bool) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet()
	source := &xidSource{reopenable: reopenable{n.source}, log: n.log, xid: xid}
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) { return plugin.Opened{Source: source, Root: "/driver"}, nil }
	n.cfg.Settings.Health = health.DefaultPolicy().With(health.Changes{QuietPeriod: time.Second})
	n.start()
	n.wait(8)
	n.source.Emit(gputest.XID(gputest.GPU(1), 94))
	n.wait(7)
	for source.read.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, passes, source.early.Load())
	n.wait(8)
}

func TestLostGPURecoversAfterSnapshots(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	n.source.FailDevice(gputest.GPU(5), gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off the bus"})
	require.Equal(t, []string{string(gputest.GPU(5))}, n.unhealthy(n.wait(7)))
	// Until a snapshot has shown it lost, one without a fault proves nothing.
	n.state(wasOutOfService)
	n.source.FailDevice(gputest.GPU(5), gpu.Fault{})
	n.wait(8)
	n.log.wait(t, "device is healthy again")
}

func TestMissingGPUStaysListed(t *testing.T) {
	full := gputest.Node("h100-sxm", 8)
	n := newNode(t, full).withKubelet().start()
	n.wait(8)
	n.source.Update(func(s *gpu.Snapshot) { s.Devices = append(s.Devices[:2:2], s.Devices[3:]...) })
	r := n.wait(7)
	require.Len(t, r.Devices, 8)
	require.Equal(t, []string{string(gputest.GPU(2))}, n.unhealthy(r))
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	require.Equal(t, gpu.ReasonMissing, s.DevicePlugin.Resources[0].Devices[2].Reason)
	n.source.Set(full)
	n.wait(8)
}

func TestUnwatchedGPUIsUnhealthy(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8))
	n.source.Unwatch(gputest.GPU(4), "no event support")
	n.withKubelet().start()
	require.Equal(t, []string{string(gputest.GPU(4))}, n.unhealthy(n.wait(7)))
}

// One event reports for all GPUs that the driver hangs, and one that it responds again.
func TestRespondingDriverIsWatchedAgain(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8))
	n.source.Unwatch(gputest.GPU(4), "no event support")
	n.withKubelet().start()
	n.wait(7)
	n.source.Emit(gputest.Event(gpu.EventUnwatched, "", "the driver hangs"))
	n.wait(0)
	n.source.Emit(gputest.Event(gpu.EventChanged, "", "the driver answers again"))
	require.Equal(t, []string{string(gputest.GPU(4))}, n.unhealthy(n.wait(7)), "that one could not be watched before")
}

func TestFailedWatchMakesAllGPUsUnhealthy(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8))
	n.source.FailWatch(errors.New("event set is broken"))
	n.withKubelet().start()
	r := n.wait(0)
	require.Equal(t, 8, r.Capacity)
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed && s.DevicePlugin.Registered })
	require.Equal(t, gpu.ReasonUnwatched, s.DevicePlugin.Resources[0].Devices[0].Reason)
	n.source.FailWatch(nil)
	n.wait(8)
}

// reopenable is a source that can be opened again.
type reopenable struct{ *gputest.Source }

func (reopenable) Close() error { return nil }

func TestRestartedKubeletIsServed(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	before, err := n.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, n.kubelet.Restart())
		r := n.wait(8)
		require.Equal(t, 1, r.Registered, "one registration for one kubelet")
	}
	after, err := n.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.Equal(t, before.DeviceIDs, after.DeviceIDs)
}

func TestKubeletThatAcceptsLateIsServed(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).start()
	n.log.wait(t, "waiting for the kubelet's folder")
	accept := make(chan struct{})
	started := make(chan struct{})
	go func() {
		defer close(started)
		k, err := kubelettest.Start(kubelettest.Config{Dir: filepath.Join(n.host, "dp"), BeforeListen: func() { <-accept }})
		if err == nil {
			n.kubelet = k
		}
	}()
	n.log.wait(t, "to accept a registration")
	close(accept)
	<-started
	require.NotNil(t, n.kubelet)
	t.Cleanup(n.kubelet.Stop)
	n.wait(8)
}

func TestRemovedSocketIsCreatedAgain(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	require.NoError(t, os.Remove(filepath.Join(n.host, "dp", kubelet.Endpoint(config.GPU))))
	r, err := n.kubelet.Wait(soon(t), config.GPU, func(r kubelettest.Resource) bool {
		return r.Registered == 2 && r.Allocatable == 8
	})
	require.NoError(t, err)
	require.False(t, r.Gone)
}

func TestReplacedFolderEndsThePlugin(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	n.kubelet.Stop()
	require.NoError(t, os.Rename(filepath.Join(n.host, "dp"), filepath.Join(n.host, "old")))
	require.NoError(t, os.Mkdir(filepath.Join(n.host, "dp"), 0o750))
	err := n.end()
	require.ErrorIs(t, err, kubelet.ErrDirectory)
	require.ErrorContains(t, err, "started again")
}

func TestTakenOverSocketEndsThePlugin(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	other := newNode(t, gputest.Node("h100-sxm", 4))
	other.host, other.cfg.HostRoot, other.cfg.StateDir, other.kubelet = n.host, n.host, "/other", n.kubelet
	other.start()
	require.ErrorIs(t, n.end(), kubelet.ErrTakenOver)
	_, err := n.kubelet.Wait(soon(t), config.GPU, func(r kubelettest.Resource) bool { return len(r.Devices) == 4 })
	require.NoError(t, err)
}

func TestNoKubeletWithinTheTimeoutEndsThePlugin(t *testing.T) {
	for name, prepare := range map[string]func(n *node){
		"no folder": func(*node) {},
		"no socket": func(n *node) { require.NoError(t, os.Mkdir(filepath.Join(n.host, "dp"), 0o750)) },
		"a dead socket": func(n *node) {
			n.withKubelet().kubelet.Stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gputest.Node("t4", 1))
			prepare(n)
			n.cfg.KubeletTimeout = 50 * time.Millisecond
			n.start()
			err := n.end()
			require.ErrorIs(t, err, kubelet.ErrTimeout)
			require.ErrorContains(t, err, filepath.Join(n.host, "dp"))
			require.ErrorContains(t, err, "--kubelet-socket")
		})
	}
}

// The timeout applies to the plugin as a whole: a resource that appears while the
// kubelet is away for a moment has no timeout of its own.
func TestLaterResourceHasNoTimeout(t *testing.T) {
	const limit = 50 * time.Millisecond
	n := newNode(t, divided()).settings("flags: {migStrategy: mixed}").withKubelet()
	n.cfg.KubeletTimeout = 20 * limit
	n.start()
	n.wait(4)
	n.state(func(s nodestate.State) bool { return s.DevicePlugin.Registered }) // the kubelet requests the list before it responds
	n.kubelet.Stop()
	n.source.Set(divided("3g.40gb"))
	n.log.wait(t, "resource="+large)
	select {
	case err := <-n.done:
		t.Fatalf("the plugin has ended: %v", err)
	case <-time.After(25 * limit):
	}
}

func TestHealthIsRememberedWithinABoot(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	n.source.Emit(gputest.XID(gputest.GPU(3), 79))
	n.wait(7)
	since := n.state(func(s nodestate.State) bool { return len(s.DevicePlugin.Faults) == 1 }).DevicePlugin.Faults[0].Since
	n.stop()

	n.start()
	require.Equal(t, []string{string(gputest.GPU(3))}, n.unhealthy(n.wait(7)))
	s := n.state(func(s nodestate.State) bool { return s.DevicePlugin.Registered })
	require.True(t, since.Equal(s.DevicePlugin.Faults[0].Since))
	n.stop()

	// A GPU that disappeared between two processes is missing.
	n.source.Update(func(s *gpu.Snapshot) { s.Devices = s.Devices[:7] })
	n.start()
	require.Equal(t, []string{string(gputest.GPU(3)), string(gputest.GPU(7))}, n.unhealthy(n.wait(6)))
	n.stop()

	// Another boot does not remember it.
	boot := filepath.Join(n.host, "proc/sys/kernel/random")
	require.NoError(t, os.MkdirAll(boot, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(boot, "boot_id"), []byte("11111111-2222-3333-4444-555555555555\n"), 0o644))
	n.start()
	require.Len(t, n.wait(7).Devices, 7)
}

func TestAReloadedModuleIsEvidence(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet().start()
	n.wait(8)
	n.source.Emit(gputest.XID(gputest.GPU(3), 79))
	n.wait(7)
	n.source.Update(func(s *gpu.Snapshot) { s.Driver.Version = "581.0.1" })
	n.wait(8)
}

func TestUnreadableStateMakesAllGPUsUnhealthy(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8))
	dir := filepath.Join(n.host, "state/deviceplugin")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"version":1,"comp`), 0o644))
	n.withKubelet().start()
	r := n.wait(0)
	require.Equal(t, 8, r.Capacity)
	require.Equal(t, 1, strings.Count(n.log.String(), "cannot be read"))
	n.state(func(s nodestate.State) bool { return s.DevicePlugin.Registered })
	n.stop()

	n.start() // it stays so
	n.wait(0)
	n.stop()

	require.NoError(t, os.Remove(filepath.Join(dir, "state.json"))) // as the message asks
	n.start()
	n.wait(8)
}

func TestALateDriverIsPickedUp(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 1)).withKubelet()
	lib := filepath.Join(n.host, "driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) {
		if _, err := os.Stat(lib); err != nil {
			return plugin.Opened{}, fmt.Errorf("%w below /driver", gpu.ErrNoDriver)
		}
		return plugin.Opened{Source: reopenable{n.source}, Root: "/driver"}, nil
	}
	require.NoError(t, os.MkdirAll(filepath.Join(n.host, "sys/bus/pci/devices/0000:01:00.0"), 0o755))
	for name, content := range map[string]string{"vendor": "0x10de\n", "class": "0x030200\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(n.host, "sys/bus/pci/devices/0000:01:00.0", name), []byte(content), 0o644))
	}
	n.start()
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason == "NoDriver" })
	_, registered := n.kubelet.Resource(config.GPU)
	require.False(t, registered)
	require.NoError(t, os.MkdirAll(filepath.Dir(lib), 0o755))
	require.NoError(t, os.WriteFile(lib, nil, 0o644))
	n.wait(1)
	require.Equal(t, 1, strings.Count(n.log.String(), "waiting for a driver"))
}

func TestAPlatformThatIsNotServedIsNoNodeWithoutGPU(t *testing.T) {
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	require.NoError(t, os.MkdirAll(filepath.Join(n.host, "sys/bus/pci/devices"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(n.host, "sys/class/misc/dxg"), 0o755))
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, gpu.ErrNoDriver }
	n.start()
	s := n.state(func(s nodestate.State) bool { return s.Reason == "PlatformNotServed" })
	require.Equal(t, nodestate.Waiting, s.Phase)
	require.Contains(t, s.Message, "WSL2")
	require.NotContains(t, n.log.String(), "no NVIDIA GPU")
}

func TestANodeWithoutGPUIsIdleAndReady(t *testing.T) {
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, gpu.ErrNoDriver }
	n.start()
	s := n.state(func(s nodestate.State) bool { return s.Reason == "NoGPU" })
	require.Equal(t, nodestate.Waiting, s.Phase)
	_, registered := n.kubelet.Resource(config.GPU)
	require.False(t, registered)
}

func TestFailingDriverEndsThePluginOrIsRetried(t *testing.T) {
	broken := func(driver.Place) (plugin.Opened, error) {
		return plugin.Opened{}, fmt.Errorf("%w: open /dev/nvidiactl: EPERM", gpu.ErrNoPermission)
	}
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.cfg.Open = broken
	n.start()
	err := n.end()
	require.ErrorIs(t, err, gpu.ErrNoPermission)
	require.ErrorContains(t, err, "/dev/nvidiactl")
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "NoPermission", s.Reason)

	n = newNode(t, gpu.Snapshot{}).withKubelet()
	n.settings("flags: {failOnInitError: false}").cfg.Open = broken
	n.start()
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason == "NoPermission" })
}

func TestToolkitStateDecidesAboutCDI(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 1)).withKubelet().start()
	n.wait(1)
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	dir := filepath.Join(n.host, "state/toolkit")
	toolkit := nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{}}
	require.NoError(t, nodestate.Write(dir, toolkit))
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "CDIUnavailable", s.Reason)
	require.Contains(t, s.Message, "k8s.gpuready.io/gpu")
	require.EqualValues(t, "CDIUnavailable", s.DevicePlugin.Resources[0].Devices[0].Reason)
	n.wait(0)
	spec := nodestate.Spec{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json"}
	toolkit.Toolkit.Specs = []nodestate.Spec{spec} // it does not say of which devices
	require.NoError(t, nodestate.Write(dir, toolkit))
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	n.wait(1)
	// A runtime that resolves CDI names but reads other specifications.
	resolves := true
	runtime := &nodestate.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", CDI: &resolves, Message: "containerd reads from elsewhere"}
	toolkit.Toolkit.Runtime = runtime
	require.NoError(t, nodestate.Write(dir, toolkit))
	s = n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	require.Equal(t, "CDIUnavailable: containerd reads from elsewhere", string(s.Reason)+": "+s.Message)
	// A runtime that restarts does not respond for a moment.
	toolkit.Toolkit.Runtime = &nodestate.Runtime{Socket: runtime.Socket, Message: "it does not answer"}
	require.NoError(t, nodestate.Write(dir, toolkit))
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
}

// A restart does not enable CDI names in a runtime.
func TestDisabledCDIOutlastsARuntimeRestart(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 2)).withKubelet()
	dir := filepath.Join(n.host, "state/toolkit")
	off, on := false, true
	spec := nodestate.Spec{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json"}
	hasLabel := func(phase nodestate.Phase, info *nodestate.ToolkitInfo) {
		t.Helper()
		require.NoError(t, nodestate.Write(dir, nodestate.State{Component: nodestate.Toolkit, Phase: phase, Message: "it is told", Toolkit: info}))
	}
	answers := func(r nodestate.Runtime) *nodestate.ToolkitInfo {
		r.Socket = "/run/containerd/containerd.sock"
		return &nodestate.ToolkitInfo{Specs: []nodestate.Spec{spec}, Runtime: &r}
	}
	device := func(s nodestate.State) nodestate.Device {
		if s.DevicePlugin == nil || len(s.DevicePlugin.Resources) == 0 {
			return nodestate.Device{}
		}
		return s.DevicePlugin.Resources[0].Devices[0]
	}
	hasLabel(nodestate.Degraded, answers(nodestate.Runtime{Name: "containerd", CDI: &off, Message: "enable_cdi is false"}))
	n.start()
	n.wait(0)
	since := device(n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })).Since
	require.False(t, since.IsZero())

	silences := map[string]func(){
		"the runtime does not answer": func() { hasLabel(nodestate.Ready, answers(nodestate.Runtime{Message: "it does not answer"})) },
		"the toolkit is starting":     func() { hasLabel(nodestate.Waiting, nil) },
		"the toolkit ended":           func() { hasLabel(nodestate.Failed, nil) },
		"its state is damaged":        func() { require.NoError(t, os.WriteFile(filepath.Join(dir, nodestate.FileName), []byte("{"), 0o644)) },
	}
	for name, silence := range silences {
		silence()
		n.stop()
		n.start()
		n.wait(0)
		s := n.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && s.DevicePlugin.Registered })
		require.Equal(t, nodestate.Failed, s.Phase, name)
		require.EqualValues(t, "CDIUnavailable", device(s).Reason, name)
		require.Equal(t, "enable_cdi is false", device(s).Message, name)
		require.True(t, since.Equal(device(s).Since), "%s: since %s, and then %s", name, since, device(s).Since)
	}
	require.NotContains(t, n.log.String(), "device is healthy again")
	hasLabel(nodestate.Ready, answers(nodestate.Runtime{Name: "containerd", CDI: &on}))
	n.wait(2)
}

// A required IMEX channel that exists is not missing for a moment while the plugin starts, which
// would replace the device's other fault and its time.
func TestFaultKeepsItsTimeWithARequiredIMEXChannel(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 1)).settings("imex: {channelIDs: [0], required: true}").withKubelet()
	channel := filepath.Join(n.host, "dev/nvidia-caps-imex-channels/channel0")
	require.NoError(t, os.MkdirAll(filepath.Dir(channel), 0o755))
	require.NoError(t, os.WriteFile(channel, nil, 0o644))
	// run starts the plugin while the runtime has CDI off, and returns when the fault began. Each
	// message shows that the state is this process's.
	run := func(message string) time.Time {
		t.Helper()
		off := false
		require.NoError(t, nodestate.Write(filepath.Join(n.host, "state/toolkit"), nodestate.State{
			Component: nodestate.Toolkit, Phase: nodestate.Degraded, Message: "it is told",
			Toolkit: &nodestate.ToolkitInfo{
				Specs:   []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json"}},
				Runtime: &nodestate.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", CDI: &off, Message: message},
			},
		}))
		n.start()
		n.wait(0)
		s := n.state(func(s nodestate.State) bool {
			return s.DevicePlugin.Registered && s.DevicePlugin.Resources[0].Devices[0].Message == message
		})
		n.stop()
		require.EqualValues(t, "CDIUnavailable", s.DevicePlugin.Resources[0].Devices[0].Reason)
		return s.DevicePlugin.Resources[0].Devices[0].Since
	}
	first, second := run("enable_cdi is false"), run("enable_cdi is still false")
	require.True(t, first.Equal(second), "since %s, and then %s", first, second)
}
