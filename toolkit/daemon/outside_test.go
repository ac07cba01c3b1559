package daemon

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
	"github.com/gpuready/gpuready/toolkit/setup"
)

const ours = "gpuready"

var on, off = true, false

// containerd2 is the runtime with its defaults.
var containerd2 = runtimetest.CRIConfig{Name: "containerd", Version: "v2.2.1", CDI: &on, Dirs: []string{"/etc/cdi", "/var/run/cdi"}, Handlers: []string{"runc"}}

// cri starts the machine's container runtime, and replaces an earlier one.
func (m *machine) cri(conf runtimetest.CRIConfig) *runtimetest.CRI {
	m.t.Helper()
	fake, err := runtimetest.StartCRI(m.dir+"/run/containerd/containerd.sock", conf)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, fake.Stop()) })
	return fake
}

// nri starts the part of the runtime that accepts plugins.
func (m *machine) nri() *runtimetest.NRI {
	m.t.Helper()
	fake, err := runtimetest.StartNRI("containerd", "v2.2.1", m.dir+"/run/nri/nri.sock")
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, fake.Kill()) })
	return fake
}

// generationOf returns the generation that a new agent receives, or "".
func generationOf(t *testing.T, fake *runtimetest.NRI) string {
	t.Helper()
	adjust, err := fake.Create(
		&api.PodSandbox{Id: "p", Name: "agent", Namespace: ours, Annotations: map[string]string{injection.Annotation: "true"}},
		&api.Container{Id: "c", Name: "agent", Env: []string{injection.Variable + "=" + injection.Expected}})
	require.NoError(t, err)
	if len(adjust.GetEnv()) == 0 {
		require.Empty(t, adjust.GetCDIDevices())
		return ""
	}
	require.Equal(t, injection.Device, adjust.GetCDIDevices()[0].GetName())
	return adjust.GetEnv()[0].GetValue()
}

func injected(s nodestate.State) nodestate.Injection {
	if s.Toolkit == nil || s.Toolkit.Injection == nil {
		return nodestate.Injection{}
	}
	return *s.Toolkit.Injection
}

func working(s nodestate.State) bool { return injected(s).Working }

func hasRuntime(s nodestate.State) bool { return s.Toolkit != nil && s.Toolkit.Runtime != nil }

func TestAgentsReceiveTheGPUsOnceThereAreSome(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.Namespace = ours
	m.cri(containerd2)
	fake := m.nri()
	_, log := m.run()
	s := m.await("working without a driver", func(s nodestate.State) bool { return working(s) && hasRuntime(s) })
	require.Equal(t, nodestate.Waiting, s.Phase)
	require.Empty(t, injected(s).Generation)
	require.Equal(t, "v2.2.1", s.Toolkit.Runtime.Version)
	require.True(t, *s.Toolkit.Runtime.CDI)
	require.Empty(t, generationOf(t, fake))

	m.install("", 1)
	generation := func() string {
		data, err := os.ReadFile(m.dir + "/run/cdi/management.gpuready.io-gpu.yaml")
		require.NoError(t, err, "no generation is told before the file is there")
		root, err := host.Open(m.dir)
		require.NoError(t, err)
		defer root.Close()
		offer, err := nri.NewOffer(root, data, nil)
		require.NoError(t, err)
		return offer.Generation
	}
	s = m.await("a generation", func(s nodestate.State) bool { return injected(s).Generation != "" })
	first := injected(s).Generation
	require.Equal(t, generation(), first)
	require.Equal(t, first, generationOf(t, fake))

	m.source.Update(func(s *gpu.Snapshot) { s.Devices = nil }) // the specification is removed
	m.await("nothing to give", func(s nodestate.State) bool { return injected(s).Generation == "" && s.Phase == nodestate.Ready })
	require.Empty(t, generationOf(t, fake))
	m.source.Update(func(s *gpu.Snapshot) { *s = gputest.Node("t4", 1) })
	m.await("the first generation", func(s nodestate.State) bool { return injected(s).Generation == first })
	require.Contains(t, log.String(), "agents are given the GPUs")
	require.Contains(t, log.String(), "container is given the GPUs")

	for range 2 {
		require.NoError(t, fake.Kill())
		s = m.await("the runtime is gone", func(s nodestate.State) bool { return !working(s) })
		require.Equal(t, nodestate.Ready, s.Phase, "agents may be privileged")
		require.NotEmpty(t, injected(s).Message)
		fake = m.nri()
		m.await("the runtime is back", working)
		require.Equal(t, first, generationOf(t, fake))
	}
}

// An agent that starts without a toolkit has to wait for the next one.
func TestEndOfTheToolkitIsPublished(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.Namespace = ours
	m.install("", 1)
	m.nri()
	stop, _ := m.run()
	before := m.await("working", func(s nodestate.State) bool { return working(s) && s.Phase == nodestate.Ready })
	require.NoError(t, stop())
	s := m.await("ended", func(s nodestate.State) bool { return !working(s) })
	require.Contains(t, injected(s).Message, "has ended")
	require.Equal(t, before.Phase, s.Phase)
	require.Equal(t, before.Toolkit.Specs, s.Toolkit.Specs)
	m.run()
	m.await("working again", working)
}

// A specification of a missing driver (its container is restarting) names missing devices.
func TestWithoutADriverAnOldSpecIsNotOffered(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.Namespace = ours
	m.install("", 1)
	_, _, err := m.toolkit().Once(t.Context(), false)
	require.NoError(t, err)
	require.NoError(t, os.Remove(m.dir+libDir+"/libnvidia-ml.so."+version))
	fake := m.nri()
	m.run()
	s := m.await("working", working)
	require.Equal(t, nodestate.Waiting, s.Phase)
	require.Empty(t, injected(s).Generation)
	require.Empty(t, generationOf(t, fake))
	m.library("", "libnvidia-ml")
	s = m.await("a generation", func(s nodestate.State) bool { return injected(s).Generation != "" })
	require.Equal(t, injected(s).Generation, generationOf(t, fake))
}

func TestRuntimeWithoutCDIIsReportedWithARemedy(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.Namespace = ours
	m.install("", 1)
	conf := containerd2
	conf.CDI = &off
	fake := m.cri(conf)
	m.nri()
	_, log := m.run()
	s := m.await("degraded", phase(nodestate.Degraded))
	require.Equal(t, runtime.ReasonDisabled, s.Reason)
	require.Contains(t, s.Message, "enable_cdi = true")
	require.Equal(t, s.Message, s.Toolkit.Runtime.Message)
	require.Len(t, s.Toolkit.Specs, 3, "specifications are written all the same")
	s = m.await("connected, and not working", func(s nodestate.State) bool { return injected(s).Message == s.Message })
	require.False(t, working(s))
	require.NoError(t, fake.Stop())
	m.cri(containerd2)
	s = m.await("ready", func(s nodestate.State) bool { return s.Phase == nodestate.Ready && working(s) })
	require.Empty(t, s.Message)
	require.Contains(t, log.String(), "containers may not get their GPUs")
}

func TestSilentRuntimeDelaysNothing(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	fake := m.cri(runtimetest.CRIConfig{Hangs: true})
	m.run()
	s := m.await("specs", func(s nodestate.State) bool { return len(devices(s, cdi.KindGPU)) == 1 })
	require.Nil(t, s.Toolkit.Injection, "without a namespace nobody is given anything")
	s = m.await("degraded", phase(nodestate.Degraded))
	require.Equal(t, runtime.ReasonSilent, s.Reason)
	require.Contains(t, s.Message, "/run/containerd/containerd.sock does not answer")
	require.NoError(t, fake.Stop())
	m.cri(containerd2)
	m.await("ready", phase(nodestate.Ready))
}

func TestNodeWithoutNRIReportsHowToEnableIt(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.Namespace = ours
	m.install("", 1)
	fake := m.cri(runtimetest.CRIConfig{Name: "containerd", Version: "1.7.24", CDI: &on, Dirs: []string{"/var/run/cdi"}})
	m.run()
	s := m.await("a message", func(s nodestate.State) bool { return strings.Contains(injected(s).Message, "set disable = false") })
	require.Equal(t, nodestate.Ready, s.Phase)
	require.Contains(t, injected(s).Message, "there is no NRI socket /var/run/nri/nri.sock: containerd 1.7.24")
	require.NoError(t, fake.Stop())
	m.cri(containerd2)
	m.await("of containerd 2", func(s nodestate.State) bool { return strings.Contains(injected(s).Message, "remove disable = true") })
}

func TestNodeWithoutAGPULogsNoRuntimeProblems(t *testing.T) {
	m := newMachine(t, gpu.Snapshot{})
	m.conf.Namespace = ours
	require.NoError(t, os.RemoveAll(m.dir+"/sys/bus/pci/devices/0000:10:00.0"))
	conf := containerd2
	conf.Dirs = []string{"/etc/cdi"}
	m.cri(conf)
	m.nri()
	m.run()
	s := m.await("working", func(s nodestate.State) bool { return working(s) && hasRuntime(s) })
	require.Equal(t, setup.ReasonNoGPU, s.Reason)
	require.Contains(t, s.Toolkit.Runtime.Message, "not from /var/run/cdi")
}

// Apply and plan query the runtime too, and keep the parts of the state that only the
// daemon knows.
func TestApplyQueriesTheRuntimeToo(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.install("", 1)
	conf := containerd2
	conf.CDI = &off
	m.cri(conf)
	tk := m.toolkit()
	_, w, err := tk.Once(t.Context(), false)
	require.NoError(t, err)
	was := m.conf.State(w, nil)
	was = setup.WithRuntimeState(was, nil, "", &nodestate.Injection{Working: true, Generation: "g"})
	require.NoError(t, tk.Publish(was))
	s := tk.WithRuntime(t.Context(), m.conf.State(w, nil), nil)
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.Equal(t, runtime.ReasonDisabled, s.Reason)
	require.Contains(t, s.Message, "enable_cdi = true")
	require.Equal(t, "g", injected(s).Generation)
}
