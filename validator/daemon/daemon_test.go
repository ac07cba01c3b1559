package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/nodestatus"
	"github.com/gpuready/gpuready/validator/step"
)

func TestMain(m *testing.M) { leak.Main(m) }

const boot = "00000000-0000-4000-8000-000000000000"

// bench is a daemon on a host's root in a folder. The test sets the outcomes of its layers.
type bench struct {
	t   *testing.T
	dir string
	out string // of the proofs
	d   *Daemon
	log *journal
	reg *prometheus.Registry

	mu       sync.Mutex
	outcomes map[readiness.Layer]check.Outcome
	checks   map[readiness.Layer]int
	gpus     int
	hold     chan struct{}   // when not nil, a check ends when it is closed:
	holdAt   readiness.Layer // of this layer, the driver where empty
}

// journal is a log that is read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), log: &journal{}, reg: prometheus.NewRegistry(), gpus: 1,
		outcomes: map[readiness.Layer]check.Outcome{}, checks: map[readiness.Layer]int{}}
	b.out = filepath.Join(b.dir, "validations")
	root, err := host.Open(b.dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	pipeline := check.Pipeline{Driver: func(context.Context, check.Node) (check.Driver, check.Outcome) {
		o := b.outcome(readiness.Driver)
		b.mu.Lock()
		defer b.mu.Unlock()
		return check.Driver{GPUs: gputest.Node("t4", b.gpus).Devices}, o
	}}
	for _, l := range readiness.Layers()[1:] {
		pipeline.Steps = append(pipeline.Steps, check.Step{Layer: l, Check: func(context.Context, check.Node, check.Driver) check.Outcome { return b.outcome(l) }})
	}
	b.d = New(Config{
		Node:     check.Node{Root: root, BootID: boot, StateDir: "/states", CDIDirs: []string{"/cdi"}, PodResources: "/pods/kubelet.sock"},
		Pipeline: pipeline, OutputDir: b.out, Log: slog.New(slog.NewTextHandler(b.log, nil)), Metrics: NewMetrics(b.reg),
	})
	return b
}

func (b *bench) outcome(l readiness.Layer) check.Outcome {
	b.mu.Lock()
	hold := b.hold
	if l != b.holdAt && (l != readiness.Driver || b.holdAt != "") {
		hold = nil
	}
	b.mu.Unlock()
	if hold != nil {
		<-hold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks[l]++
	if o, ok := b.outcomes[l]; ok {
		return o
	}
	return check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, GPUs: b.gpus, Summary: string(l)})
}

func (b *bench) set(l readiness.Layer, o check.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[l] = o
}

func (b *bench) count(l readiness.Layer) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checks[l]
}

// metrics returns the gauges by name and label values.
func (b *bench) metrics() map[string]float64 {
	b.t.Helper()
	families, err := b.reg.Gather()
	require.NoError(b.t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if m.GetGauge() != nil {
				out[name] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// start runs the daemon until the end of the test.
func (b *bench) start() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.d.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(b.t, <-ended) })
	b.t.Cleanup(stop)
	return stop
}

// touch changes a file that the daemon watches.
func (b *bench) touch(name string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	require.NoError(b.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(b.t, os.WriteFile(path, nil, 0o644))
}

// until waits until the status of a layer satisfies cond.
func (b *bench) until(l readiness.Layer, cond func(readiness.Status, error) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	met := false
	err := readiness.Watch(ctx, b.out, []readiness.Layer{l}, boot, func(_ readiness.Layer, s readiness.Status, err error) {
		if cond(s, err) {
			met = true
			cancel()
		}
	})
	require.True(b.t, met, "%s: %v\n%s", l, err, b.log)
}

// untilPhase waits until the daemon's state has a phase. It is written after the proofs.
func (b *bench) untilPhase(phase nodestate.Phase) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	said := false
	err := nodestate.WatchBoot(ctx, filepath.Join(b.dir, "states/validator"), boot, func(s nodestate.State, _ error) {
		if s.Phase == phase {
			said = true
			cancel()
		}
	})
	require.True(b.t, said, "%v\n%s", err, b.log)
}

func proven(s readiness.Status, _ error) bool { return s.Proof != nil }

func because(reason gpu.Reason) func(readiness.Status, error) bool {
	return func(s readiness.Status, _ error) bool { return s.NotReady != nil && s.NotReady.Reason == reason }
}

func TestProofsFollowTheirInputs(t *testing.T) {
	b := newBench(t)
	b.set(readiness.Toolkit, check.Fail("ToolkitSilent", "nothing said", "start it"))
	b.start()
	b.until(readiness.Driver, proven)
	b.until(readiness.Toolkit, because("ToolkitSilent"))
	b.until(readiness.Plugin, because("NotRun"))

	// Each path is watched before it exists.
	for _, name := range []string{
		"states/toolkit/state.json", "cdi/gpuready.yaml", "states/deviceplugin/state.json", "pods/kubelet.sock",
		"run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.95.05", "run/nvidia/driver/dev/nvidia0",
		"usr/lib/x86_64-linux-gnu/libcuda.so.1", "dev/nvidiactl",
	} {
		b.set(readiness.Toolkit, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/"}}))
		b.touch(name)
		b.until(readiness.Plugin, proven)
		b.set(readiness.Toolkit, check.Fail("SpecMissing", name, "see toolkit"))
		require.NoError(t, os.Remove(filepath.Join(b.dir, name)))
		b.until(readiness.Plugin, because("NotRun"))
		require.NoFileExists(t, filepath.Join(b.out, "plugin-ready"))
	}
}

func TestProofsStayWhenTheDaemonEnds(t *testing.T) {
	b := newBench(t)
	stop := b.start()
	b.until(readiness.Plugin, proven)
	b.untilPhase(nodestate.Ready)
	stop()
	for _, l := range readiness.Layers() {
		s, err := readiness.Read(b.out, l, boot)
		require.NoError(t, err)
		require.NotNil(t, s.Proof)
	}
	require.NoError(t, b.d.Ready())
	s, err := nodestate.ReadBoot(filepath.Join(b.dir, "states/validator"), boot)
	require.NoError(t, err)
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Equal(t, "580.95.05", s.Driver.Version)
}

func TestARemovedProofIsRestored(t *testing.T) {
	b := newBench(t)
	b.start()
	b.until(readiness.Plugin, proven)
	require.NoError(t, os.Remove(filepath.Join(b.out, "driver-ready")))
	b.touch("cdi/x.json")
	b.until(readiness.Driver, proven)
}

func TestProofsOfAnEarlierBootAreRemoved(t *testing.T) {
	b := newBench(t)
	require.NoError(t, readiness.WriteReady(b.out, readiness.Driver, readiness.Proof{BootID: "11111111-0000-4000-8000-000000000000"}))
	require.NoError(t, os.WriteFile(filepath.Join(b.out, "cuda-ready"), []byte("$(reboot)"), 0o644))
	require.NoError(t, readiness.WriteReady(b.out, readiness.Plugin, readiness.Proof{BootID: boot}))
	b.d.proofs.RemoveStale(b.d.Pipeline.Steps, b.d.Log)
	for _, l := range []readiness.Layer{readiness.Driver, readiness.CUDA} {
		_, err := readiness.Read(b.out, l, boot)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err := readiness.Read(b.out, readiness.Plugin, boot)
	require.NoError(t, err, "of this boot: it holds until something else is known")
}

func TestGPUsInUseAreNotLoadedAgainWithoutCause(t *testing.T) {
	b := newBench(t)
	run := func() []check.Outcome {
		out := b.d.Pipeline.Run(t.Context(), b.d.Node, nil)
		b.d.record(out)
		return out
	}
	run()
	run()
	require.Equal(t, 2, b.count(readiness.Plugin))
	require.Equal(t, 1, b.count(readiness.CUDA))
	b.mu.Lock()
	b.gpus = 2
	b.mu.Unlock()
	run()
	require.Equal(t, 2, b.count(readiness.CUDA), "a GPU more")
	b.mu.Lock()
	b.gpus = 3
	b.mu.Unlock()
	b.set(readiness.CUDA, check.Fail("CUDASampleFailed", "GPU 0 is wrong", "replace it"))
	run()
	require.Equal(t, 3, b.count(readiness.CUDA))
	run()
	require.Equal(t, 4, b.count(readiness.CUDA), "what failed is tried again")
}

func TestReadinessMetricsAndStateNameTheFailure(t *testing.T) {
	b := newBench(t)
	require.ErrorIs(t, b.d.Ready(), errStarting)
	b.set(readiness.CUDA, check.Fail("CUDASampleFailed", "GPU 0 is wrong", "replace it"))
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.EqualError(t, b.d.Ready(), "cuda: CUDASampleFailed: GPU 0 is wrong")
	shown := b.metrics()
	require.Equal(t, 1.0, shown["gpuready_layer_ready toolkit"])
	require.Equal(t, 0.0, shown["gpuready_layer_ready cuda"])
	require.Equal(t, 1.0, shown["gpuready_layer_not_ready_reason cuda CUDASampleFailed"])
	s, err := nodestate.ReadBoot(filepath.Join(b.dir, "states/validator"), boot)
	require.NoError(t, err)
	require.Equal(t, nodestate.Failed, s.Phase)
	require.Equal(t, gpu.Reason("CUDASampleFailed"), s.Reason)
	require.Equal(t, "cuda: GPU 0 is wrong; replace it", s.Message)

	b.set(readiness.Driver, check.Outcome{Kind: check.Absent, NotReady: &readiness.NotReady{Reason: check.ReasonNoGPU, Message: "none"}})
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.NoError(t, b.d.Ready(), "nothing to prove")
	require.Nil(t, b.d.backoff.timer(), "and nothing to try again")
	require.NotContains(t, b.metrics(), "gpuready_layer_not_ready_reason cuda CUDASampleFailed")
	require.Contains(t, b.metrics(), "gpuready_layer_not_ready_reason cuda NoGPU")
	s, err = nodestate.ReadBoot(filepath.Join(b.dir, "states/validator"), boot)
	require.NoError(t, err)
	require.Equal(t, nodestate.Waiting, s.Phase)
}

func TestOneLineIsLoggedForEachChange(t *testing.T) {
	b := newBench(t)
	b.set(readiness.Toolkit, check.Fail("SpecMissing", "no spec", "write it"))
	for range 5 {
		b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	}
	require.Equal(t, 4, strings.Count(b.log.String(), "\n"), b.log.String())
	require.Contains(t, b.log.String(), `msg="not ready" layer=toolkit`)
	require.Contains(t, b.log.String(), `reason=SpecMissing message="no spec" action="write it"`)
}

func TestRetriesSlowDownUntilSomethingChanges(t *testing.T) {
	b := newBench(t)
	run := func() { b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil)) }
	b.set(readiness.CUDA, check.Fail("CUDASampleFailed", "GPU 0 is wrong", ""))
	run()
	require.Equal(t, firstRetry, b.d.backoff.wait)
	for range 20 {
		run()
	}
	require.Equal(t, lastRetry, b.d.backoff.wait)
	b.set(readiness.CUDA, check.Fail("CUDASampleFailed", "GPU 0 is wrong, says container 6f1c", ""))
	run()
	require.Equal(t, lastRetry, b.d.backoff.wait, "a runtime names another container each time")
	b.set(readiness.CUDA, check.Fail("CUDASampleTimeout", "GPU 1 is wrong", ""))
	run()
	require.Equal(t, firstRetry, b.d.backoff.wait)
	b.set(readiness.CUDA, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}}))
	run()
	require.Nil(t, b.d.backoff.timer())
}

// A pass that is retried slowly for another reason must not slow down the end of a restart's grace, nor may
// events in it.
func TestTheGraceOfARestartIsLookedAtOften(t *testing.T) {
	b := newBench(t)
	run := func() { b.d.backoff.update(b.d.Pipeline.Run(t.Context(), b.d.Node, nil), false) }
	pass := check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}})
	pass.Retry = true
	b.set(readiness.Plugin, pass)
	for range 20 {
		run()
	}
	require.Equal(t, lastRetry, b.d.backoff.wait)
	pass.Away = check.Stopped
	b.set(readiness.Plugin, pass)
	run()
	require.Equal(t, firstRetry, b.d.backoff.wait)
	for range 20 {
		run()
		require.LessOrEqual(t, b.d.backoff.wait, restartGrace/2)
	}
}

// Without an event, a fault of another component's file and a difference that may be over are
// looked at often.
func TestRetriesStayQuickWhereNoEventShowsTheEnd(t *testing.T) {
	for reason, want := range map[gpu.Reason]time.Duration{step.ReasonAllocatableDiffers: lastSettle, step.ReasonAllocatableShort: lastSettle, "ToolkitSilent": lastRetry} {
		b := newBench(t)
		b.set(readiness.Plugin, check.Fail(reason, "so it is", ""))
		for range 20 {
			b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
		}
		require.Equal(t, want, b.d.backoff.wait, reason)
		require.False(t, b.d.backoff.rewrite)
	}
	b := newBench(t)
	b.set(readiness.Plugin, check.Fail(nodestate.ReasonNotWritable, "no space left on device", ""))
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.True(t, b.d.backoff.rewrite)
}

func TestAnUnwritableProofIsReported(t *testing.T) {
	b := newBench(t)
	require.NoError(t, os.MkdirAll(b.out, 0o755))
	if err := unix.Mount("tmpfs", b.out, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Skipf("mounting a tmpfs needs root: %v", err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			require.NoError(t, unix.Unmount(b.out, 0))
			mounted = false
		}
	}
	t.Cleanup(unmount)
	var published recorder
	b.d.Publish = published.record
	run := func() { b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil)) }
	run()
	run()
	require.ErrorContains(t, b.d.Ready(), "StateNotWritable: remove "+b.out+"/driver-notready: read-only file system; mount "+b.out+" writable")
	require.Equal(t, 1, strings.Count(b.log.String(), "cannot write the outcome"), "once, and not at every check")
	require.NotNil(t, b.d.backoff.timer())
	require.Contains(t, published.last().Unwritten, "read-only file system")
	require.Equal(t, nodestate.ReasonNotWritable, b.state().Reason)
	require.Equal(t, 1.0, testutil.ToFloat64(b.d.Metrics.unwritten))
	unmount()
	run()
	require.NoError(t, b.d.Ready())
	require.Equal(t, 1, strings.Count(b.log.String(), "are written again"))
	require.Empty(t, published.last().Unwritten)
	require.Empty(t, b.state().Reason)
	require.Zero(t, testutil.ToFloat64(b.d.Metrics.unwritten))
	require.Nil(t, b.d.backoff.timer())
}

func TestAMountedDriverRootIsNoticed(t *testing.T) {
	b := newBench(t)
	b.set(readiness.Driver, check.Fail("DriverLibraryMissing", "none", ""))
	b.start()
	b.until(readiness.Driver, because("DriverLibraryMissing"))
	target := filepath.Join(b.dir, check.ContainerRoot)
	require.NoError(t, os.MkdirAll(target, 0o755))
	source := filepath.Join(b.dir, "source")
	require.NoError(t, os.MkdirAll(filepath.Join(source, "usr/lib64"), 0o755))
	b.set(readiness.Driver, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: check.ContainerRoot}}))
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("mounting needs root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) })
	b.until(readiness.Driver, proven)

	// Changes below the mount are noticed, too.
	b.set(readiness.Driver, check.Fail("DriverVersionMismatch", "two", ""))
	b.touch("source/usr/lib64/libcuda.so.1")
	b.until(readiness.Driver, because("DriverVersionMismatch"))
}

func TestACancelledWatchReturnsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	b := newBench(t)
	require.ErrorIs(t, Watch(ctx, b.d.Node, func() {}), context.Canceled)
}

// Nobody watches the GPUs of gpu-dra-driver then, and the kubelet does not withdraw them.
func TestAKilledDevicePluginThatServesDRACausesACheck(t *testing.T) {
	b := newBench(t)
	dir := b.d.Node.StatePath(nodestate.DevicePlugin)
	state := nodestate.State{Component: nodestate.DevicePlugin, BootID: b.d.Node.BootID, Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA}}
	require.NoError(t, nodestate.Write(dir, state))
	held, err := nodestate.Hold(dir)
	require.NoError(t, err)
	require.NoError(t, nodestate.Write(dir, state))
	b.start()
	b.until(readiness.Plugin, proven)
	b.set(readiness.Plugin, check.Fail("DevicePluginSilent", "killed", ""))
	require.NoError(t, held.Close())
	b.until(readiness.Plugin, because("DevicePluginSilent"))
}

// recorder collects the published facts.
type recorder struct {
	mu    sync.Mutex
	facts []nodestatus.Facts
}

func (t *recorder) record(f nodestatus.Facts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts = append(t.facts, f)
}

func (t *recorder) last() nodestatus.Facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.facts) == 0 {
		return nodestatus.Facts{}
	}
	return t.facts[len(t.facts)-1]
}

func (t *recorder) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.facts)
}

func TestFactsArePublishedWithComponentStates(t *testing.T) {
	b := newBench(t)
	var published recorder
	b.d.Publish = published.record
	xid := nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, Phase: nodestate.Degraded}
	require.NoError(t, nodestate.Write(filepath.Join(b.dir, "states/deviceplugin"), xid))
	b.set(readiness.Toolkit, check.Fail("ToolkitSilent", "nothing said", ""))
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	f := published.last()
	require.Len(t, f.Outcomes, 4)
	require.Equal(t, gpu.Reason("ToolkitSilent"), f.Outcomes[1].NotReady.Reason)
	require.Equal(t, nodestate.Degraded, f.States[nodestate.DevicePlugin].Phase)
	require.NotContains(t, f.States, nodestate.Toolkit)
	require.Contains(t, f.Names[gputest.GPU(0)], "GPU 0 (")

	// A lost GPU keeps its name.
	b.mu.Lock()
	b.gpus = 0
	b.mu.Unlock()
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.Contains(t, published.last().Names, gputest.GPU(0))
}

func TestComponentStatesArePublishedBeforeTheCheck(t *testing.T) {
	b := newBench(t)
	var published recorder
	b.d.Publish = published.record
	b.start()
	b.until(readiness.Plugin, proven)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	b.mu.Lock()
	b.hold = hold
	b.mu.Unlock()
	require.NoError(t, nodestate.Write(filepath.Join(b.dir, "states/deviceplugin"),
		nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, Phase: nodestate.Degraded, Reason: "XID"}))
	require.Eventually(t, func() bool { return published.last().States[nodestate.DevicePlugin].Reason == "XID" }, time.Minute, time.Millisecond)
	release()
}

func TestARestartDoesNotPublishEmptyFacts(t *testing.T) {
	b := newBench(t)
	var published recorder
	b.d.Publish = published.record
	stop := b.start()
	b.until(readiness.Plugin, proven)
	stop()
	require.Empty(t, published.facts[0].Outcomes, "of this boot nothing was known")

	again := newBench(t)
	again.d.proofs = NewProofWriter(b.out, boot)
	var then recorder
	again.d.Publish = then.record
	stop = again.start()
	require.Eventually(t, func() bool { return then.count() > 0 }, time.Minute, time.Millisecond)
	stop()
	require.Len(t, then.facts[0].Outcomes, 4)
}

func TestEachProofIsWrittenBeforeTheNextLayerIsChecked(t *testing.T) {
	b := newBench(t)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	b.hold, b.holdAt = hold, readiness.Plugin
	defer release()
	b.start()
	b.until(readiness.CUDA, proven)
	require.NoFileExists(t, filepath.Join(b.out, "plugin-ready"))
	require.ErrorIs(t, b.d.Ready(), errStarting)
	release()
	b.until(readiness.Plugin, proven)
}

func pending() check.Outcome {
	return check.Outcome{Kind: check.Pending, NotReady: &readiness.NotReady{Reason: "WorkloadRunning", Message: "a pod is on its way"}}
}

func TestAProofHoldsWhileAnotherIsPending(t *testing.T) {
	b := newBench(t)
	run := func() { b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil)) }
	b.set(readiness.Plugin, pending())
	run()
	require.EqualError(t, b.d.Ready(), "plugin: WorkloadRunning: a pod is on its way")
	require.Nil(t, b.d.backoff.timer(), "whoever brings the proof will tell")
	b.until(readiness.Plugin, because("WorkloadRunning"))
	b.set(readiness.Plugin, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}}))
	run()
	b.set(readiness.Plugin, pending())
	run()
	b.until(readiness.Plugin, proven)
	require.NoError(t, b.d.Ready())
	b.set(readiness.Plugin, check.Fail("WorkloadFailed", "wrong", ""))
	run()
	b.set(readiness.Plugin, pending())
	run()
	b.until(readiness.Plugin, because("WorkloadRunning"))
}

func TestNewsTriggersTheCheckOfAPendingProof(t *testing.T) {
	b := newBench(t)
	news := make(chan struct{})
	b.d.WorkloadDone = news
	b.set(readiness.Plugin, pending())
	b.start()
	b.until(readiness.Plugin, because("WorkloadRunning"))
	b.set(readiness.Plugin, check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}}))
	news <- struct{}{}
	b.until(readiness.Plugin, proven)
}

func TestTheDriverIsNotReadTwiceAtOnceForOtherCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		reads := func(kept bool) int {
			b.d.driverKept = kept
			b.d.Pipeline.Run(t.Context(), b.d.Node, nil)
			return b.count(readiness.Driver)
		}
		require.Equal(t, 1, reads(true), "there is no reading yet")
		require.Equal(t, 1, reads(true))
		require.Equal(t, 2, reads(false), "it may have changed")
		time.Sleep(2 * driverAge)
		require.Equal(t, 3, reads(true), "the last reading is old")
		b.set(readiness.Driver, check.Fail("NVMLFailed", "", ""))
		require.Equal(t, 4, reads(false))
		require.Equal(t, 5, reads(true), "a failure may be over")
	})
}

func TestAPartialProofIsRetriedLater(t *testing.T) {
	b := newBench(t)
	o := check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{}}, "no GPU is free")
	o.Retry = true
	b.set(readiness.Plugin, o)
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.NoError(t, b.d.Ready())
	require.NotNil(t, b.d.backoff.timer())
}

func TestRetireWritesTheReasonAsTheLastState(t *testing.T) {
	b := newBench(t)
	var published recorder
	b.d.Publish = published.record
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	b.d.Retire("InjectionOutdated", "it was given the GPUs of an earlier state")
	state := func() nodestate.State {
		s, err := nodestate.ReadBoot(filepath.Join(b.dir, "states/validator"), boot)
		require.NoError(t, err)
		return s
	}
	require.Equal(t, gpu.Reason("InjectionOutdated"), state().Reason)
	b.until(readiness.Plugin, proven)

	b = newBench(t)
	b.d.Publish = published.record
	b.d.Retire(check.ReasonInjection, "it was created without the GPUs")
	require.Equal(t, check.ReasonInjection, state().Reason)
	b.until(readiness.Driver, because(check.ReasonInjection))
	require.Equal(t, check.ReasonInjection, published.last().Outcomes[0].NotReady.Reason)
	b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
	require.Equal(t, check.ReasonInjection, state().Reason, "nothing is said after it")
}
