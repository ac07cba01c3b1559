package step

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

func TestAnotherFileInALowerDirectoryIsANote(t *testing.T) {
	f := newFixture(t)
	f.setSpecPath(cdi.DynamicDir + "/gpuready.yaml")
	f.spec(cdi.StaticDir+"/other.yaml", f.driver.GPUs[0].UUID, f.driver.GPUs[1].MIG[0].UUID)
	o := checkToolkit(t.Context(), f.node, f.driver)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Len(t, o.Notes, 1)
	require.Contains(t, o.Notes[0], "runtimes take that of /var/run/cdi/gpuready.yaml; nobody but gpu-toolkit writes this kind: remove /etc/cdi/other.yaml")
}

func TestAWantedHandlerMustBeKnownToRuntimeAndKubelet(t *testing.T) {
	on := true
	state := func(wanted string, has ...string) nodestate.State {
		return nodestate.State{Time: time.Now().Add(-time.Hour), Toolkit: &nodestate.ToolkitInfo{Handler: wanted,
			Runtime: &nodestate.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", CDI: &on, Handlers: has}}}
	}
	fresh := state("nvidia", "nvidia", "runc")
	fresh.Time = time.Now()
	for _, c := range []struct {
		name  string
		state nodestate.State
		node  []string
		says  string // of the refusal
		notes string
		again bool
	}{
		{"none is wanted", state("", "runc"), []string{"runc"}, "", "", false},
		{"both know it", state("nvidia", "nvidia", "runc"), []string{"nvidia", "runc"}, "", "", false},
		{"the Node is not read", state("nvidia", "nvidia", "runc"), nil, "", "", false},
		{"the runtime has not said", state("nvidia"), nil, "", "", false},
		{"the runtime lacks it", state("nvidia", "runc"), nil, `the container runtime containerd has no handler "nvidia", which the toolkit is to give it; it has runc`, "", false},
		{"the kubelet's runtime is another", state("nvidia", "nvidia", "runc"), []string{"runc"}, `the kubelet does not know the handler "nvidia", which the toolkit is to give the runtime; the Node's status.runtimeHandlers has runc`, "", false},
		{"the kubelet has not asked yet", fresh, []string{"runc"}, "", `the kubelet does not know the handler "nvidia" yet`, true},
		{"one that nobody here wants", state("", "nvidia", "runc"), []string{"runc"}, "", `the runtime has a handler "nvidia" that the kubelet does not know`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := check.Node{Status: func() check.Status { return check.Status{Handlers: c.node} }}
			f := checkHandlers(n, check.Driver{}, c.state, nil)
			require.Equal(t, c.again, f.again)
			if c.says != "" {
				require.Equal(t, reasonHandler, f.failed.NotReady.Reason)
				require.Equal(t, c.says, f.failed.NotReady.Message)
				require.NotEmpty(t, f.failed.NotReady.Action)
				return
			}
			require.Nil(t, f.failed)
			require.Equal(t, c.notes != "", len(f.notes) == 1)
			if c.notes != "" {
				require.Contains(t, f.notes[0], c.notes)
			}
		})
	}
}

func TestTheRuntimeMustReadTheSpecificationsFolder(t *testing.T) {
	on := true
	for name, c := range map[string]struct {
		dirs []string
		ok   bool
	}{
		"it does":             {[]string{"/etc/cdi", "/var/run/cdi"}, true},
		"by its other name":   {[]string{"/run/cdi/"}, true},
		"it does not say":     {nil, true},
		"it reads another":    {[]string{"/nowhere"}, false},
		"it reads the static": {[]string{"/etc/cdi"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := checkRuntime(check.Node{}, check.Driver{}, nodestate.State{Toolkit: &nodestate.ToolkitInfo{
				Specs:   []nodestate.Spec{{Kind: cdi.KindGPU, Path: cdi.DynamicDir + "/k8s.gpuready.io-gpu.yaml"}},
				Runtime: &nodestate.Runtime{Name: "containerd", CDI: &on, CDIDirs: c.dirs, Message: "set cdi_spec_dirs"},
			}}, nil)
			if c.ok {
				require.Nil(t, f.failed)
				return
			}
			require.Equal(t, reasonRuntime, f.failed.NotReady.Reason)
			require.Equal(t, "the container runtime containerd does not read the CDI specifications in /run/cdi: set cdi_spec_dirs", f.failed.NotReady.Message)
		})
	}
}
