package plugin_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestWhoWatchesSeesWhatWouldBeAdvertisedAndLeavesNoTrace(t *testing.T) {
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
				if v.Read() && cond(v) {
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
