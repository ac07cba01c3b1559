package nodestatus

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	node  = "n1"
	boot  = "00000000-0000-4000-8000-000000000000"
	taint = "nvidia.com/gpu-not-ready"
)

// clock stands still until it is advanced. One goroutine waits for it, so that only the last
// timer counts.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	timer chan time.Time
	due   time.Time
	armed chan struct{} // receives when a timer is set
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := make(chan time.Time, 1)
	c.timer, c.due = timer, c.now.Add(d)
	c.fire()
	select {
	case c.armed <- struct{}{}:
	default:
	}
	return timer
}

func (c *clock) fire() {
	if c.timer != nil && !c.due.After(c.now) {
		c.timer <- c.now
		c.timer = nil
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

// next advances to the time when the timer fires.
func (c *clock) next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.now = c.due
		c.fire()
	}
}

// stage is a Publisher with an API server and a clock.
type stage struct {
	t         testing.TB
	server    *kubetest.Server
	clock     *clock
	dir       string
	taint     Taint
	log       io.Writer
	slow      time.Duration
	publisher *Publisher
	stop      func()
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{t: t, server: kubetest.Start(node), dir: t.TempDir(), log: io.Discard, taint: Taint{Keys: []string{taint, "gpuready.io/not-ready"}},
		clock: &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), armed: make(chan struct{}, 1)}}
	t.Cleanup(func() { s.server.Stop() })
	s.start()
	return s
}

// start starts the Publisher of a new process, and stops the one before.
func (s *stage) start() {
	s.t.Helper()
	if s.stop != nil {
		s.stop()
	}
	client, err := kube.New(s.server.Config())
	require.NoError(s.t, err)
	s.publisher = New(Config{
		Client: client, Node: node, BootID: boot, Dir: s.dir, Taint: s.taint, Allocatable: true, Log: slog.New(slog.NewTextHandler(s.log, nil)),
		Metrics: NewMetrics(prometheus.NewRegistry()), Now: s.clock.Now, After: s.clock.After, Slow: s.slow,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.publisher.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		require.ErrorIs(s.t, <-ended, context.Canceled)
		client.Close()
	})
	s.t.Cleanup(s.stop)
}

// settled waits until all facts are published.
func (s *stage) settled() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(s.t, s.publisher.Flush(ctx), s.server.Requests())
}

func (s *stage) publish(f Facts) {
	s.t.Helper()
	s.publisher.Publish(f)
	s.settled()
}

// until waits until cond holds, and advances the clock meanwhile.
func (s *stage) until(cond func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for !cond() {
		select {
		case <-s.clock.armed:
			s.clock.next()
		case <-ctx.Done():
			require.Fail(s.t, "it does not come", "%q", s.server.Requests())
		}
	}
}

func (s *stage) condition() corev1.NodeCondition {
	s.t.Helper()
	c := s.server.Condition(node, ConditionType)
	require.NotNil(s.t, c)
	return *c
}

// events returns the Events, "Warning XID 2× GPU 1 …".
func (s *stage) events() []string {
	var out []string
	for _, e := range s.server.Events() {
		out = append(out, fmt.Sprintf("%s %s %d× %s", e.Type, e.Reason, e.Count, e.Message))
	}
	return out
}

// facts returns the facts of a healthy node with three GPUs.
func facts() Facts {
	f := Facts{Names: check.Names(gputest.Node("t4", 3).Devices), States: map[nodestate.Component]nodestate.State{}}
	for _, l := range readiness.Layers() {
		f.Outcomes = append(f.Outcomes, passedOutcome(l))
	}
	state := nodestate.State{Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{Registered: true, Resources: []nodestate.Resource{{Name: "nvidia.com/gpu"}}}}
	for i := range 3 {
		state.DevicePlugin.Resources[0].Devices = append(state.DevicePlugin.Resources[0].Devices,
			nodestate.Device{ID: string(gputest.GPU(i)), GPU: gputest.GPU(i), Health: nodestate.Healthy})
	}
	f.States[nodestate.DevicePlugin] = state
	return f
}

func passedOutcome(l readiness.Layer) check.Outcome {
	o := check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, Summary: string(l) + " works"})
	o.Layer, o.HoldersTime = l, time.Now()
	return o
}

// broken makes a GPU unhealthy.
func (f Facts) broken(i int, reason gpu.Reason, message string, since time.Time) Facts {
	devices := f.States[nodestate.DevicePlugin].DevicePlugin.Resources[0].Devices
	devices[i].Health, devices[i].Reason, devices[i].Message, devices[i].Since = nodestate.Unhealthy, reason, message, since
	return f
}

// plugin sets the state of the device plugin.
func (f Facts) plugin(phase nodestate.Phase, reason gpu.Reason, message string) Facts {
	s := f.States[nodestate.DevicePlugin]
	s.Phase, s.Reason, s.Message = phase, reason, message
	f.States[nodestate.DevicePlugin] = s
	return f
}

// refused makes a layer fail, and those after it not run.
func (f Facts) refused(l readiness.Layer, reason gpu.Reason) Facts {
	after := false
	for i, o := range f.Outcomes {
		switch {
		case o.Layer == l:
			f.Outcomes[i] = check.Fail(reason, "it is broken", "mend it")
			f.Outcomes[i].Layer = l
			after = true
		case after:
			f.Outcomes[i] = check.Outcome{Layer: o.Layer, Kind: check.NotRun, NotReady: &readiness.NotReady{Reason: check.ReasonNotRun}}
		}
	}
	return f
}

func noGPU() Facts {
	var f Facts
	for _, l := range readiness.Layers() {
		f.Outcomes = append(f.Outcomes, check.Outcome{Layer: l, Kind: check.Absent, NotReady: &readiness.NotReady{Reason: check.ReasonNoGPU, Message: "no GPU"}})
	}
	return f
}

func TestTheConditionSumsUpTheFacts(t *testing.T) {
	pending := facts()
	pending.Outcomes[3] = check.Outcome{Layer: readiness.Plugin, Kind: check.Pending, NotReady: &readiness.NotReady{Reason: "WorkloadRunning", Message: "a pod is on its way"}}
	simulated := facts()
	simulated.Outcomes[0].Proof.Driver.Simulated = true
	building := facts().refused(readiness.Driver, "DriverLibraryMissing")
	building.States[nodestate.Driver] = nodestate.State{Phase: nodestate.Waiting, Message: "compiling the modules"}
	unbuilt := facts().refused(readiness.Driver, "KernelModuleNotLoaded")
	unbuilt.States[nodestate.Driver] = nodestate.State{Phase: nodestate.Failed, Reason: "BuildFailed", Message: "nv-mmap.c:42: error: x; use driver 580.65.06 or later"}
	hostDriver := facts().refused(readiness.Driver, "InjectionMissing")
	hostDriver.States[nodestate.Driver] = nodestate.State{Phase: nodestate.Waiting, Reason: "DriverStopped", Message: "it was unloaded"}
	withoutInjection := facts().refused(readiness.Driver, "InjectionMissing")
	withoutInjection.States[nodestate.Driver] = nodestate.State{Phase: nodestate.Waiting, Reason: "InUse", Message: "python (12) of pod a/b holds nvidia_uvm; end it"}
	unusable := facts().refused(readiness.Driver, "NoUsableGPU")
	unusable.States[nodestate.Driver] = nodestate.State{Phase: nodestate.Failed, Reason: "DeviceInitFailed", Message: "RmInitAdapter failed"}
	runtime := facts()
	runtime.States[nodestate.Toolkit] = nodestate.State{Phase: nodestate.Degraded, Message: "one spec could not be written"}
	refused := facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}).plugin(nodestate.Degraded, "ConfigRefused", "config.yaml: no such key")
	left := facts().plugin(nodestate.Degraded, "DevicesLeftOut", "GPU 3 is left out")
	unhealthy := facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}).plugin(nodestate.Degraded, "UnhealthyDevices", "1 of 3 devices are unhealthy")
	broken := "2 of 3 GPUs ready, driver 580.95.05; GPU 1 (" + string(gputest.GPU(1)) + ", 0000:11:00.0): XID 79"
	replicas := facts()
	r := &replicas.States[nodestate.DevicePlugin].DevicePlugin.Resources[0]
	r.Devices = append(r.Devices, r.Devices...)
	lost := facts()
	for i := range 3 {
		lost.broken(i, gpu.ReasonLost, "", time.Time{})
	}
	lost.Names = nil
	inUse := facts()
	inUse.Outcomes[2].Unproven = []check.Unproven{{Reason: "GPUInUse"}}
	inUse.Outcomes[2].Notes = []string{"GPUInUse: not proven now: GPU 1: held by pod default/job"}
	replaced := facts()
	replaced.Outcomes[3].Away, replaced.Outcomes[3].Notes = check.Stopped, []string{"the device plugin was stopped; it has 30s to come back"}
	require.True(t, inUse.usable() && replaced.usable(), "no taint")
	for _, c := range []struct {
		name string
		f    Facts
		want Condition
	}{
		{"a GPU is in use and not proven", inUse, Condition{"True", "Ready", "3 of 3 GPUs ready, driver 580.95.05; cuda: GPUInUse: not proven now: GPU 1: held by pod default/job"}},
		{"the device plugin is replaced", replaced, Condition{"True", "Degraded", "3 of 3 GPUs ready, driver 580.95.05; plugin: the device plugin was stopped; it has 30s to come back"}},
		{"nothing is known", Facts{}, Condition{"Unknown", "Proving", "nothing has been proven yet since the node was started"}},
		{"all is well", facts(), Condition{"True", "Ready", "3 of 3 GPUs ready, driver 580.95.05"}},
		{"a simulated driver", simulated, Condition{"True", "Ready", "3 of 3 GPUs ready (SIMULATED), driver 580.95.05"}},
		{"replicas are one GPU", replicas, Condition{"True", "Ready", "3 of 3 GPUs ready, driver 580.95.05"}},
		{"a GPU is broken", facts().broken(1, gpu.ReasonXID, "XID 79 (the GPU no longer answers on PCIe)", time.Time{}), Condition{"True", "Degraded",
			"2 of 3 GPUs ready, driver 580.95.05; GPU 1 (" + string(gputest.GPU(1)) + ", 0000:11:00.0): XID 79 (the GPU no longer answers on PCIe)"}},
		{"all are, without words", lost, Condition{"True", "Degraded",
			fmt.Sprintf("0 of 3 GPUs ready, driver 580.95.05; %s: GPULost; %s: GPULost; %s: GPULost", gputest.GPU(0), gputest.GPU(1), gputest.GPU(2))}},
		{"a layer is refused", facts().refused(readiness.CUDA, "CUDASampleFailed"), Condition{"False", "CUDASampleFailed", "cuda: it is broken; next: mend it"}},
		{"a driver that is being built", building, Condition{"False", "DriverLibraryMissing", "driver: it is broken; next: mend it; the driver says Waiting: compiling the modules"}},
		{"a driver that cannot be built", unbuilt, Condition{"False", "BuildFailed", "driver: no driver is loaded: nv-mmap.c:42: error: x; use driver 580.65.06 or later"}},
		{"an old driver that is in use", withoutInjection, Condition{"False", "InUse", "driver: no driver is loaded: python (12) of pod a/b holds nvidia_uvm; end it"}},
		{"the host's driver, after another was unloaded", hostDriver, Condition{"False", "InjectionMissing", "driver: it is broken; next: mend it; the driver says Waiting: DriverStopped: it was unloaded"}},
		{"a driver that is there and does not work", unusable, Condition{"False", "NoUsableGPU", "driver: it is broken; next: mend it; the driver says Failed: DeviceInitFailed: RmInitAdapter failed"}},
		{"the toolkit has a reservation", runtime, Condition{"True", "Degraded", "3 of 3 GPUs ready, driver 580.95.05; toolkit: one spec could not be written"}},
		{"the plugin's new configuration is refused", refused, Condition{"True", "Degraded", broken + "; device plugin: config.yaml: no such key"}},
		{"the plugin leaves one out", left, Condition{"True", "Degraded", "3 of 3 GPUs ready, driver 580.95.05; device plugin: GPU 3 is left out"}},
		{"the plugin counts what is named", unhealthy, Condition{"True", "Degraded", broken}},
		{"the last proof is on its way", pending, Condition{"Unknown", "Proving", "plugin: a pod is on its way"}},
		{"no GPU", noGPU(), Condition{"False", "NoGPU", "no GPU"}},
		{"files cannot be written", unwritten(facts()), Condition{"True", "StateNotWritable", "3 of 3 GPUs ready, driver 580.95.05; " + full}},
		{"files cannot be written, and the plugin's state may be old", unwritten(facts().refused(readiness.Plugin, "AllocatableDiffers")),
			Condition{"False", "StateNotWritable", "plugin: " + full + "; the states on the node may be out of date: it is broken"}},
		{"files cannot be written, and a layer is broken", unwritten(facts().refused(readiness.CUDA, "CUDASampleFailed")),
			Condition{"False", "CUDASampleFailed", "cuda: it is broken; next: mend it"}},
	} {
		require.Equal(t, c.want, c.f.condition(), c.name)
	}
}

func TestTheConditionsAreUnknownAfterTheEnd(t *testing.T) {
	s := newStage(t)
	s.publish(facts())
	s.stop()
	s.clock.mu.Lock()
	s.clock.now = s.clock.now.Add(time.Hour)
	s.clock.mu.Unlock()
	before := s.condition()
	require.Equal(t, corev1.ConditionTrue, before.Status)
	patches := len(s.server.Requests())
	client, err := kube.New(s.server.Config())
	require.NoError(t, err)
	defer client.Close()
	s.publisher.Client = client
	require.NoError(t, s.publisher.WriteEnd(t.Context()))
	require.Len(t, s.server.Requests(), patches+1, "one request, for a process that is about to be killed")
	for _, kind := range []corev1.NodeConditionType{ConditionType, HealthType} {
		c := s.server.Condition(node, kind)
		require.Equal(t, corev1.ConditionUnknown, c.Status)
		require.Equal(t, "ValidatorStopped", c.Reason)
		require.True(t, c.LastTransitionTime.After(before.LastTransitionTime.Time))
	}
	require.Empty(t, s.taints(), "a validator that is replaced puts no taint back")
	// The next process knows better.
	s.start()
	s.publish(facts())
	require.Equal(t, corev1.ConditionTrue, s.condition().Status)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s.server.Stop()
	require.Error(t, s.publisher.WriteEnd(ctx))
}

const full = "write /run/nvidia/validations/plugin-ready: no space left on device; free space on the file system of /run/nvidia/validations"

func unwritten(f Facts) Facts {
	f.Unwritten = full
	return f
}

func TestUnwrittenFilesAreAnEventAtTheirBeginAndTheirEnd(t *testing.T) {
	s := newStage(t)
	s.start()
	s.publish(facts())
	s.publish(unwritten(facts()))
	s.clock.advance(transientGrace)
	s.until(func() bool { return len(s.events()) == 1 })
	require.Contains(t, s.events()[0], "StateNotWritable")
	s.publish(facts())
	s.until(func() bool { return len(s.events()) == 2 })
	require.Contains(t, s.events()[1], "StateWritten")
}

// The record of Events is written again without an event, so that a restart repeats none.
func TestTheRecordOfEventsIsWrittenOnceThereIsRoom(t *testing.T) {
	s := newStage(t)
	path := filepath.Join(s.dir, FileName)
	require.NoError(t, os.Mkdir(path, 0o755)) // in the place of the file
	s.start()
	s.publish(facts())
	require.DirExists(t, path)
	require.NoError(t, os.Remove(path))
	s.clock.advance(firstRetry)
	s.until(func() bool { info, err := os.Stat(path); return err == nil && info.Mode().IsRegular() })
}

func TestTheTransitionTimeFollowsTheStatus(t *testing.T) {
	s := newStage(t)
	s.publish(facts().refused(readiness.Toolkit, "ToolkitSilent"))
	first := s.clock.Now()
	s.clock.advance(10 * time.Second)
	s.publish(facts().refused(readiness.Toolkit, "CDISpecIncomplete"))
	c := s.condition()
	require.Equal(t, "CDISpecIncomplete", c.Reason)
	require.True(t, first.Equal(c.LastTransitionTime.Time), "another reason is no transition")
	require.True(t, s.clock.Now().Equal(c.LastHeartbeatTime.Time))
	s.clock.advance(10 * time.Second)
	s.publish(facts())
	require.True(t, s.clock.Now().Equal(s.condition().LastTransitionTime.Time))

	transition := s.condition().LastTransitionTime
	s.clock.advance(10 * time.Second)
	s.start()
	s.publish(facts())
	require.True(t, transition.Equal(&metav1.Time{Time: s.condition().LastTransitionTime.Time}), "a restart is no transition")
	require.NotNil(t, s.server.Condition(node, corev1.NodeReady), "the conditions of others stay")
}

func TestAnUnchangedConditionIsWrittenAtTheHeartbeat(t *testing.T) {
	s := newStage(t)
	s.publish(facts())
	before := len(s.server.Requests())
	for range 5 {
		s.publish(facts())
	}
	require.Len(t, s.server.Requests(), before, "nothing new")
	s.server.Node(node, func(n *corev1.Node) { n.Status.Conditions = nil })
	s.clock.advance(heartbeat)
	s.until(func() bool { return s.server.Condition(node, ConditionType) != nil })
}

func TestTheStartupTaintIsRemovedOncePodsMayCome(t *testing.T) {
	for name, ready := range map[string]Facts{"proven": facts(), "degraded": facts().broken(0, gpu.ReasonXID, "XID 79", time.Time{}), "no GPU": noGPU()} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.server.Node(node, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: "NoSchedule"}, {Key: "theirs", Value: "x", Effect: "NoExecute"}, {Key: taint, Effect: "NoExecute"}}
			})
			s.publish(Facts{})
			s.publish(facts().refused(readiness.Plugin, "DevicePluginSilent"))
			require.Len(t, s.taints(), 3)
			s.publish(ready)
			require.Equal(t, []string{"theirs:NoExecute"}, s.taints())
			s.publish(facts().refused(readiness.Plugin, "DevicePluginSilent"))
			s.clock.advance(time.Hour)
			s.publish(facts().refused(readiness.Plugin, "DevicePluginSilent"))
			require.Equal(t, []string{"theirs:NoExecute"}, s.taints(), "not unless it is asked for")
		})
	}
	s := newStage(t)
	s.server.Node(node, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: "NoSchedule"}} })
	s.publish(facts())
	require.Empty(t, s.taints(), "the only one")
}

func TestAConcurrentlyAddedTaintIsNotLost(t *testing.T) {
	s := newStage(t)
	s.server.Node(node, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: "NoSchedule"}} })
	var once sync.Once
	s.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.Method == http.MethodPatch && !strings.HasSuffix(r.URL.Path, "/status") {
			once.Do(func() {
				s.server.Node(node, func(n *corev1.Node) {
					n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "theirs", Effect: "NoSchedule"})
				})
			})
		}
		return nil
	})
	s.publisher.Publish(facts())
	s.until(func() bool {
		left := s.server.Node(node, nil).Spec.Taints
		return len(left) == 1 && left[0].Key == "theirs"
	})
}

// The kubelet is asked first which pods hold a broken GPU, but not for long.
func TestAnEventNamesThePodsThatHoldTheGPU(t *testing.T) {
	broken := func(s *stage, asked time.Time) Facts {
		f := facts().broken(1, gpu.ReasonXID, "XID 79", s.clock.Now())
		for i := range f.Outcomes {
			f.Outcomes[i].HoldersTime = time.Time{}
		}
		f.Outcomes[3].Holders, f.Outcomes[3].HoldersTime = map[gpu.UUID][]string{gputest.GPU(1): {"team/train"}}, asked
		return f
	}
	s := newStage(t)
	s.publish(broken(s, s.clock.Now().Add(-time.Second)))
	require.Empty(t, s.events(), "pods may have changed since the kubelet was asked")
	s.publish(broken(s, s.clock.Now().Add(time.Second)))
	require.Len(t, s.events(), 1)
	require.Contains(t, s.events()[0], ": XID 79, held by team/train")

	s = newStage(t)
	s.publish(broken(s, time.Time{}))
	require.Empty(t, s.events())
	s.until(func() bool { return len(s.events()) == 1 })
}

func TestAnXIDIsAnEventThatNamesTheGPU(t *testing.T) {
	s := newStage(t)
	s.publish(facts())
	require.Empty(t, s.events(), "that all is well is no news")
	since := s.clock.Now()
	name := "GPU 1 (" + string(gputest.GPU(1)) + ", 0000:11:00.0)"
	s.publish(facts().broken(1, gpu.ReasonXID, "XID 79 (fallen off the bus)", since))
	require.Equal(t, []string{"Warning XID 1× " + name + ": XID 79 (fallen off the bus)"}, s.events())
	e := s.server.Events()[0]
	require.Equal(t, corev1.ObjectReference{Kind: "Node", Name: node, UID: node}, e.InvolvedObject, "as kubectl describe node looks for it")
	require.Equal(t, "default", e.Namespace)
	require.Equal(t, corev1.EventSource{Component: "gpu-validator", Host: node}, e.Source)
	require.True(t, since.Equal(e.LastTimestamp.Time))

	s.publish(facts().broken(1, gpu.ReasonXID, "XID 79 (fallen off the bus)", since))
	s.clock.advance(time.Second)
	s.publish(facts())
	require.Equal(t, []string{
		"Warning XID 1× " + name + ": XID 79 (fallen off the bus)",
		"Normal Recovered 1× " + name + " is healthy again (was: XID)",
	}, s.events())

	// It flaps: counted, not listed.
	for range 3 {
		s.clock.advance(20 * time.Second)
		s.publish(facts().broken(1, gpu.ReasonXID, "XID 79", s.clock.Now()))
		s.clock.advance(20 * time.Second)
		s.publish(facts())
	}
	require.Len(t, s.events(), 2)
	require.Equal(t, "Warning XID 4× "+name+": XID 79", s.events()[0])
	require.Contains(t, s.events()[1], "Recovered 4×")

	// Another reason is another Event.
	s.clock.advance(20 * time.Second)
	s.publish(facts().broken(1, gpu.ReasonXID, "XID 79", s.clock.Now()))
	s.publish(facts().broken(1, gpu.ReasonLost, "cannot be reached", s.clock.Now()))
	require.Contains(t, s.events()[2], "Warning GPULost 1× "+name)
}

func TestARestartRepeatsNothing(t *testing.T) {
	s := newStage(t)
	since := s.clock.Now()
	bad := func() Facts { return facts().broken(0, gpu.ReasonXID, "XID 48", since) }
	s.publish(bad())
	before := s.events()
	require.Len(t, before, 1)

	s.clock.advance(time.Hour)
	s.start()
	s.publish(bad())
	require.Equal(t, before, s.events())

	s.server.ExpireEvents()
	s.start()
	s.publish(bad())
	require.Empty(t, s.events(), "nor after the API server has forgotten it")

	s.start()
	s.publish(facts())
	require.Contains(t, s.events()[0], "Normal Recovered", "what an earlier process told of is over")

	// Without the memory, the name and the time of the Event prevent a repetition.
	s.publish(bad())
	require.NoError(t, os.Remove(filepath.Join(s.dir, FileName)))
	before = s.events()
	s.start()
	s.publish(bad())
	require.Equal(t, before, s.events())
}

func TestAMissingOrOldMemoryIsEmpty(t *testing.T) {
	s := newStage(t)
	for _, text := range []string{`{"bootID":"x","said":{"device GPU-1":{}}}`, `{"bootID":"` + boot + `","said":null}`, `no JSON`} {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, FileName), []byte(text), 0o644))
		s.start()
		require.Empty(t, s.publisher.memory.Reported)
		s.publish(facts().broken(0, gpu.ReasonXID, "XID 48", s.clock.Now()))
		s.clock.advance(time.Minute)
	}
	require.Equal(t, int32(3), s.server.Events()[0].Count)
}

func TestALayerRefusedForAWhileIsAnEvent(t *testing.T) {
	s := newStage(t)
	coming := facts().refused(readiness.Toolkit, "ToolkitSilent")
	s.publish(coming)
	require.Equal(t, "ToolkitSilent", s.condition().Reason, "the condition has it at once")
	s.clock.advance(startupGrace - time.Second)
	s.settled()
	require.Empty(t, s.events(), "a node that is coming up")
	s.clock.advance(time.Second)
	s.until(func() bool { return len(s.events()) == 1 })
	require.Equal(t, "Warning ToolkitSilent 1× toolkit: it is broken; next: mend it", s.events()[0])
	s.publish(facts())
	require.Equal(t, "Normal Proven 1× toolkit is proven again: toolkit works (was: ToolkitSilent)", s.events()[1])

	s.publish(facts().refused(readiness.Plugin, "DevicePluginSilent"))
	s.clock.advance(transientGrace - time.Second)
	s.publish(facts())
	s.clock.advance(time.Minute)
	s.settled()
	require.Len(t, s.events(), 2, "away for a moment, as in an upgrade")
	s.publish(facts().refused(readiness.CUDA, "CUDASampleFailed"))
	s.clock.advance(transientGrace)
	s.until(func() bool { return len(s.events()) == 3 })
}

func TestAnUnknownProblemIsNotOver(t *testing.T) {
	s := newStage(t)
	s.publish(facts().broken(0, gpu.ReasonXID, "XID 48", s.clock.Now()))
	silent := facts()
	delete(silent.States, nodestate.DevicePlugin)
	s.publish(silent)
	s.publish(facts().refused(readiness.Driver, "NVMLFailed").broken(0, gpu.ReasonXID, "XID 48", s.clock.Now().Add(-time.Hour)))
	require.Len(t, s.events(), 1)
	gone := facts()
	p := gone.States[nodestate.DevicePlugin].DevicePlugin
	p.Resources[0].Devices = p.Resources[0].Devices[1:]
	s.publish(gone)
	require.Len(t, s.events(), 1, "a device that is no more did not recover")
	require.Empty(t, s.publisher.memory.Reported)
}

func TestEventsAreRateLimited(t *testing.T) {
	s := newStage(t)
	f := Facts{States: map[nodestate.Component]nodestate.State{}}
	state := nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Registered: true, Resources: []nodestate.Resource{{Name: "r"}}}}
	for i := range 1000 {
		id := fmt.Sprintf("GPU-%04d", i)
		state.DevicePlugin.Resources[0].Devices = append(state.DevicePlugin.Resources[0].Devices,
			nodestate.Device{ID: id, GPU: gpu.UUID(id), Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Since: s.clock.Now()})
	}
	f.States[nodestate.DevicePlugin], f.Outcomes = state, []check.Outcome{passedOutcome(readiness.Plugin)}
	s.publisher.Publish(f)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { return len(s.server.Events()) == eventBurst }))
	s.clock.advance(eventEvery)
	require.NoError(t, s.server.Wait(ctx, func() bool { return len(s.server.Events()) == eventBurst+1 }))
	require.Len(t, s.server.Events(), eventBurst+1)
}

func TestAFailingAPIServerIsRetriedWithTheLatestFacts(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"conflict": {Status: 409}, "too many requests": {Status: 429, RetryAfter: 3}, "internal error": {Status: 500},
		"forbidden": {Status: 403}, "token not taken": {Status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			var left atomic.Int32
			left.Store(7)
			s.server.Fail(func(*http.Request) *kubetest.Fault {
				if left.Add(-1) >= 0 {
					return &fault
				}
				return nil
			})
			s.publisher.Publish(facts().refused(readiness.Driver, "NVMLFailed"))
			s.publisher.Publish(facts().broken(2, gpu.ReasonECC, "uncorrectable", s.clock.Now()))
			s.until(func() bool { return s.server.Condition(node, ConditionType) != nil && len(s.server.Events()) == 1 })
			require.Equal(t, "Degraded", s.condition().Reason, "what was not said in time never is")
		})
	}
}

func TestARefusedEventDelaysNoOther(t *testing.T) {
	s := newStage(t)
	first := s.publisher.buildEvent(event{about: subject("device " + string(gputest.GPU(0))), kind: corev1.EventTypeWarning, reason: string(gpu.ReasonXID)}).Name
	s.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events") {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if bytes.Contains(body, []byte(first)) {
				return &kubetest.Fault{Status: 403}
			}
		}
		return nil
	})
	now := s.clock.Now()
	s.publisher.Publish(facts().broken(0, gpu.ReasonXID, "XID 48", now.Add(-time.Minute)).broken(1, gpu.ReasonECC, "uncorrectable", now).broken(2, gpu.ReasonXID, "XID 79", now))
	s.until(func() bool { return len(s.server.Events()) == 2 })
	s.server.Fail(nil)
	s.until(func() bool { return len(s.server.Events()) == 3 })
}

func TestThePublisherReconnectsToARestartedServer(t *testing.T) {
	s := newStage(t)
	s.publish(facts())
	s.server.Stop()
	s.publisher.Publish(facts().refused(readiness.Driver, "NVMLFailed"))
	s.publisher.Publish(facts().broken(0, gpu.ReasonXID, "XID 48", s.clock.Now()))
	for range 20 {
		s.clock.advance(time.Second)
	}
	s.server.Restart()
	s.until(func() bool { return s.condition().Reason == "Degraded" && len(s.server.Events()) == 1 })
}

func TestRetriesBackOff(t *testing.T) {
	v := New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())})
	now := time.Now()
	v.Now = func() time.Time { return now }
	for i, most := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		v.recordResult(t.Context(), topicNode, fmt.Errorf("refused"))
		wait := v.retries[topicNode].until.Sub(now)
		require.LessOrEqual(t, wait, most*time.Second, i)
		require.GreaterOrEqual(t, wait, most*time.Second/2, i)
	}
	v.recordResult(t.Context(), topicNode, nil)
	require.True(t, v.retries[topicNode].until.IsZero())
	require.True(t, v.retries[topicEvents].until.IsZero(), "each by itself")
}

func TestAHangingServerDoesNotDelayTheEnd(t *testing.T) {
	s := newStage(t)
	s.server.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Hang: true} })
	s.publisher.Publish(facts())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.server.Wait(ctx, func() bool { return len(s.server.Requests()) > 0 }))
	s.stop()
}

// Whatever happens, and whichever requests fail, the last state stands at the end, and each
// problem has been reported no more than once.
func TestTheLastStateWins(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newStage(t)
		defer func() { s.stop(); s.server.Stop() }()
		failing := rapid.SliceOfN(rapid.Bool(), 0, 20).Draw(rt, "failing")
		var asked atomic.Int32
		s.server.Fail(func(*http.Request) *kubetest.Fault {
			if i := int(asked.Add(1)) - 1; i < len(failing) && failing[i] {
				return &kubetest.Fault{Status: 500}
			}
			return nil
		})
		var last Facts
		began := s.clock.Now()
		for range rapid.IntRange(1, 8).Draw(rt, "states") {
			last = facts()
			for i := range 3 {
				if rapid.Bool().Draw(rt, "broken") {
					last.broken(i, gpu.ReasonXID, "XID 48", began)
				}
			}
			s.publisher.Publish(last)
			if rapid.Bool().Draw(rt, "restart") {
				s.start()
				s.publisher.Publish(last)
			}
		}
		want := last.condition()
		s.until(func() bool {
			c := s.server.Condition(node, ConditionType)
			return c != nil && c.Reason == want.Reason && c.Message == want.Message
		})
		s.until(func() bool { return s.publisher.Flush(canceled()) == nil })
		s.stop()
		wrong, _ := last.problems()
		for about := range wrong {
			require.Contains(t, s.publisher.memory.Reported, about)
		}
		require.Len(t, s.publisher.memory.Reported, len(wrong))
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestARefusedConfigurationIsAnEvent(t *testing.T) {
	s := newStage(t)
	bad := facts().plugin(nodestate.Degraded, "ConfigRefused", "config.yaml: sharing.timeSlicing: no such key")
	s.publish(bad)
	events := s.server.Events()
	require.Len(t, events, 1)
	require.Equal(t, []string{"Warning", "ConfigRefused", "device plugin: config.yaml: sharing.timeSlicing: no such key"},
		[]string{events[0].Type, events[0].Reason, events[0].Message})
	require.Equal(t, "Degraded", s.condition().Reason)

	// The plugin and the validator restart.
	s.start()
	s.publish(facts().plugin(nodestate.Waiting, "Starting", "the driver has not been read yet"))
	s.publish(facts().plugin(nodestate.Failed, "NoHealthyDevice", "none of 3 devices is healthy"))
	s.publish(bad)
	require.Len(t, s.server.Events(), 1)
	s.publish(facts())
	events = s.server.Events()
	require.Len(t, events, 2)
	require.Equal(t, "ConfigAccepted", events[1].Reason)
	require.Equal(t, "Ready", s.condition().Reason)
}

// A request times out after 15 s; a missing answer is logged before.
func TestASilentAPIServerIsLoggedBeforeTheTimeout(t *testing.T) {
	s := newStage(t)
	s.stop()
	read, write := io.Pipe()
	s.log, s.slow = write, time.Millisecond
	s.server.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Hang: true} })
	s.start()
	s.publisher.Publish(Facts{})
	line, err := bufio.NewReader(read).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "the API server has not answered yet")
	require.Contains(t, line, "what=condition")
	go func() { _, _ = io.Copy(io.Discard, read) }() // until the end of the writer
	s.stop()
	require.NoError(t, write.Close())
}
