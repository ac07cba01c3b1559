package allocate

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestMissingStateDoesNotOverrideEarlierState(t *testing.T) {
	off, on := false, true
	state := func(phase nodestate.Phase, device string, r *nodestate.Runtime) nodestate.State {
		return nodestate.State{Phase: phase, Toolkit: &nodestate.ToolkitInfo{
			Specs: []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/cdi.json", Devices: []string{device}}}, Runtime: r,
		}}
	}
	apply := func(last Naming, s nodestate.State, err error) Naming { return NamingFrom(s, err).MergeAfter(last) }
	denied := apply(Naming{}, state(nodestate.Ready, "a", &nodestate.Runtime{Name: "containerd", CDI: &off, Message: "off"}), nil)
	require.Equal(t, "off", denied.unavailable())

	for name, s := range map[string]nodestate.State{
		"waiting": {Phase: nodestate.Waiting}, "failed": {Phase: nodestate.Failed},
		"a runtime that is mute": state(nodestate.Ready, "a", &nodestate.Runtime{}),
	} {
		require.Equal(t, "off", apply(denied, s, nil).unavailable(), name)
	}
	require.Equal(t, "off", apply(denied, nodestate.State{}, errors.New("damaged")).unavailable())
	waited := apply(denied, nodestate.State{Phase: nodestate.Waiting}, nil)
	require.Equal(t, "off", apply(waited, nodestate.State{Phase: nodestate.Waiting}, nil).unavailable(), "however often nothing is said")
	require.Equal(t, map[string]bool{"a": true}, waited.names)

	other := apply(denied, state(nodestate.Ready, "b", &nodestate.Runtime{}), nil)
	require.Equal(t, map[string]bool{"b": true}, other.names, "of which nobody has to be asked")
	require.Empty(t, apply(waited, state(nodestate.Ready, "a", &nodestate.Runtime{Name: "containerd", CDI: &on}), nil).unavailable())
	require.Equal(t, Naming{}, apply(denied, nodestate.State{}, nodestate.ErrStale), "a toolkit that is taken away, with its state")

	remembered := Naming{earlierFaults: map[gpu.UUID]gpu.Fault{"GPU-0": {Reason: ReasonCDI}}}
	require.NotEmpty(t, apply(remembered, nodestate.State{Phase: nodestate.Waiting}, nil).earlierFaults)
	require.Empty(t, apply(remembered, state(nodestate.Ready, "GPU-0", nil), nil).earlierFaults)
}

// The toolkit's file comes from another program and may hold anything.
func FuzzNaming(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"component":"toolkit","bootID":"00000000-0000-4000-8000-000000000000","time":"2026-01-01T00:00:00Z","phase":"Ready",` +
			`"toolkit":{"specs":[{"kind":"k8s.gpuready.io/gpu","path":"/a","devices":["GPU-0"]}],"runtime":{"socket":"/s","name":"containerd","cdi":false}}}`,
		`{"version":1,"component":"toolkit","bootID":"00000000-0000-4000-8000-000000000000","time":"2026-01-01T00:00:00Z","phase":"Waiting"}`, `{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := Naming{noCDI: "off"}
		s, err := nodestate.Parse(data)
		now := NamingFrom(s, err).MergeAfter(before)
		if err != nil {
			require.Equal(t, "off", now.unavailable(), "what cannot be read takes nothing back")
		}
		require.Equal(t, now, NamingFrom(s, err).MergeAfter(now), "saying it twice says no more")
	})
}
