package allocate

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestSharedDeviceNeedsAReadyControlDaemon(t *testing.T) {
	const name, id = "nvidia.com/gpu", gpu.UUID("GPU-1")
	c, _, err := config.Parse([]byte("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}"), "c.yaml", config.Options{})
	require.NoError(t, err)
	good := nodestate.MPSResource{Name: name, Root: "/run/nvidia/mps", GPUs: []gpu.UUID{id}, Replicas: map[gpu.UUID]int{id: 4}, Ready: true}
	with := func(edit func(*nodestate.MPSResource)) nodestate.State {
		r := good
		edit(&r)
		return nodestate.State{MPS: &nodestate.MPSInfo{Resources: []nodestate.MPSResource{r}}}
	}
	as := with(func(*nodestate.MPSResource) {})
	ended := with(func(r *nodestate.MPSResource) { r.Ready, r.Message = false, "it has ended" })
	ended.Reason = mps.ReasonEnded
	liar := as
	liar.Reason = mps.ReasonEnded
	for want, said := range map[string]struct {
		s   nodestate.State
		err error
	}{
		"":                              {s: as},
		"has reported nothing":          {err: fs.ErrNotExist},
		"cannot be read: no state":      {err: errors.New("no state")},
		"mps-daemon was killed":         {s: as, err: fmt.Errorf("x: %w", nodestate.ErrUnheld)},
		"and its control daemons":       {s: liar, err: nodestate.ErrUnheld},
		"it has ended":                  {s: ended, err: nodestate.ErrUnheld},
		"nothing yet":                   {s: nodestate.State{Message: "nothing yet"}, err: nodestate.ErrUnheld},
		"not 4":                         {s: with(func(r *nodestate.MPSResource) { r.Replicas = map[gpu.UUID]int{id: 3} })},
		"for 0 replicas":                {s: with(func(r *nodestate.MPSResource) { r.Replicas = nil })},
		`mpsRoot is "/mps"`:             {s: with(func(r *nodestate.MPSResource) { r.Root = "/mps" })},
		"it was started for other GPUs": {s: with(func(r *nodestate.MPSResource) { r.GPUs = nil })},
		"only for nvidia.com/other":     {s: with(func(r *nodestate.MPSResource) { r.Name = "nvidia.com/other" })},
		"it is being started":           {s: with(func(r *nodestate.MPSResource) { r.Ready, r.Message = false, "it is being started" })},
	} {
		n := Node{Config: c, MPS: MPSStateFrom(said.s, said.err)}
		fault := n.mpsFault(name, plan.Device{ID: string(id) + "::0", GPU: id, Replicas: 4})
		if want == "" {
			require.Zero(t, fault)
			continue
		}
		require.Equal(t, ReasonMPS, fault.Reason, want)
		require.Contains(t, fault.Message, want)
		require.Zero(t, n.mpsFault(name, plan.Device{ID: string(id), GPU: id}), "one that is not shared")
	}
}
