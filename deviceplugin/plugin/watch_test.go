package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestWatchReportsThePlanWithoutSideEffects(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 4))
	views := make(chan plugin.View, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- plugin.Watch(ctx, n.cfg, func(v plugin.View) { views <- v }) }()
	await := func(cond func(plugin.View) bool) {
		t.Helper()
		for end := soon(t); ; {
			select {
			case v := <-views:
				if v.HasSnapshot() && cond(v) {
					return
				}
			case <-end.Done():
				t.Fatal("not seen")
			}
		}
	}
	healthy := func(want int) func(plugin.View) bool {
		return func(v plugin.View) bool {
			sound := 0
			for _, d := range v.Plan.Resources[0].Devices {
				if d.Healthy() {
					sound++
				}
			}
			return len(v.Plan.Resources[0].Devices) == 4 && sound == want
		}
	}
	await(healthy(4))
	n.source.Emit(gputest.XID(gputest.GPU(2), 79))
	await(healthy(3))
	cancel()
	require.NoError(t, <-done)

	require.NoDirExists(t, n.host+"/state", "no state")
	left, err := os.ReadDir(n.host)
	require.NoError(t, err)
	for _, entry := range left {
		require.NotEqual(t, "dp", entry.Name(), "no socket")
	}
}

// Without a configuration no driver is opened, and the View has the reason.
func TestWatchReportsAMissingConfiguration(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 1))
	views := make(chan plugin.View, 100)
	ctx, cancel := context.WithCancel(context.Background())
	cfg := n.cfg
	cfg.Settings = plugin.Settings{}
	cfg.Follow = func(ctx context.Context, deliver func(plugin.Settings, error)) error {
		deliver(plugin.Settings{}, fmt.Errorf("%w: nobody has", plugin.ErrNotChosen))
		deliver(plugin.Settings{}, errors.New("it is wrong"))
		<-ctx.Done()
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- plugin.Watch(ctx, cfg, func(v plugin.View) { views <- v }) }()
	for _, want := range []gpu.Fault{{Reason: "ConfigNotChosen", Message: "no configuration is chosen yet: nobody has"}, {Reason: "ConfigRefused", Message: "it is wrong"}} {
		select {
		case v := <-views:
			require.False(t, v.HasSnapshot())
			require.Equal(t, want, v.Absent)
		case <-soon(t).Done():
			t.Fatal("not seen")
		}
	}
	cancel()
	require.NoError(t, <-done)
}

// MPS then belongs to the other plugin, and so does its daemons' state.
func TestWatchIgnoresMPSDaemons(t *testing.T) {
	c, _, err := config.Parse([]byte("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"), "c.yaml", config.Options{})
	require.NoError(t, err)
	n := newNode(t, gputest.Node("h100-sxm", 1))
	n.cfg.Settings.Config = c
	ctx, cancel := context.WithCancel(soon(t))
	var read []plugin.View
	require.NoError(t, plugin.Watch(ctx, n.cfg, func(v plugin.View) {
		if v.HasSnapshot() && v.Plan.Resources[0].Devices[0].Fault.Reason != gpu.ReasonUnwatched {
			read = append(read, v)
			cancel()
		}
	}))
	require.NotEmpty(t, read)
	require.Len(t, read[0].Plan.Resources[0].Devices, 2)
	require.Zero(t, read[0].Plan.Resources[0].Devices[0].Fault)
}
