package plugin_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func hasLabel(name, value string) func(nodestate.State) bool {
	return func(s nodestate.State) bool { return s.DevicePlugin.Labels[name] == value }
}

func TestStateHasTheLabels(t *testing.T) {
	n := newNode(t, gputest.Node("a100-80gb", 2)).withKubelet().settings("flags: {migStrategy: mixed}").start()
	s := n.state(hasLabel("nvidia.com/gpu.count", "2"))
	require.Equal(t, "NVIDIA-A100-SXM4-80GB", s.DevicePlugin.Labels["nvidia.com/gpu.product"])
	require.NotEmpty(t, s.DevicePlugin.Labels["nvidia.com/gfd.timestamp"])

	snap := gputest.Node("a100-80gb", 2)
	snap.Devices[1] = gputest.WithMIG(snap.Devices[1], "3g.40gb")
	n.source.Set(snap)
	before := n.state(hasLabel("nvidia.com/mig-3g.40gb.multiprocessors", "42")).DevicePlugin.Labels

	n.source.Emit(gpu.Event{Kind: gpu.EventXID, UUID: gputest.GPU(0), XID: 79, GPUInstance: -1, ComputeInstance: -1})
	s = n.state(func(s nodestate.State) bool { return len(s.DevicePlugin.Faults) == 1 })
	require.Equal(t, before, s.DevicePlugin.Labels, "no fault changes a label")
	n.stop()

	// The next process, before it reads the driver.
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, gpu.ErrNoDriver }
	n.start()
	n.log.wait(t, "no NVIDIA GPU on this node")
	s = n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason == "NoGPU" })
	require.Equal(t, before, s.DevicePlugin.Labels, "what is not known is not over")
}

func TestFeatureFileReplacesTheLabelsInTheState(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 2)).withKubelet()
	n.cfg.NFDDir = "/nfd/features.d"
	path := filepath.Join(n.host, n.cfg.NFDDir, plugin.FeatureFile)
	n.start()
	s := n.state(func(s nodestate.State) bool { return s.DevicePlugin.Registered })
	require.Nil(t, s.DevicePlugin.Labels)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "nvidia.com/gpu.count=2\n")
	require.Contains(t, string(text), "nvidia.com/gpu.product=Tesla-T4\n")
	n.stop()

	// Without GPUs the file is empty; it exists so that no older content counts.
	require.NoError(t, os.Remove(filepath.Join(n.host, "state/deviceplugin", nodestate.FileName)))
	n.source = gputest.New(gpu.Snapshot{Driver: gputest.Node("t4", 1).Driver})
	n.start()
	n.state(func(s nodestate.State) bool { return s.Reason == "NoGPU" })
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, text)
}

func TestUnwritableFeatureFileStopsNothing(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 2)).withKubelet()
	n.cfg.NFDDir = "/nfd"
	require.NoError(t, os.WriteFile(filepath.Join(n.host, "nfd"), nil, 0o600)) // no folder
	n.start()
	n.wait(2)
	n.log.wait(t, "feature file for Node Feature Discovery cannot be written")
	require.NoError(t, os.Remove(filepath.Join(n.host, "nfd")))
	n.source.Emit(gpu.Event{Kind: gpu.EventXID, UUID: gputest.GPU(0), XID: 79, GPUInstance: -1, ComputeInstance: -1})
	n.log.wait(t, "wrote the feature file")
}

func TestLabelsAreValidInAState(t *testing.T) {
	n := newNode(t, gputest.Node("a100-mig", 0)).withKubelet().settings("flags: {migStrategy: mixed}").start()
	s := n.state(hasLabel("nvidia.com/mig-1g.10gb.count", "16"))
	require.Greater(t, len(maps.Clone(s.DevicePlugin.Labels)), 40)
}
