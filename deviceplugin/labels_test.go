package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestLabelsDescribeTheGPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	m.sim("mig", "--gpu", "0", "--layout", "3g.40gb,1g.10gb")
	m.start("--mig-strategy", "mixed")
	label := func(name, value string) nodestate.State {
		return m.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && s.DevicePlugin.Labels[name] == value })
	}
	l := label("nvidia.com/gpu.count", "8").DevicePlugin.Labels
	require.Equal(t, "3", l["nvidia.com/mig-3g.40gb.slices.gi"])
	require.NotEmpty(t, l["nvidia.com/mig-3g.40gb.multiprocessors"])
	require.NotEqual(t, "0", l["nvidia.com/mig-3g.40gb.multiprocessors"])
	require.NotEmpty(t, l["nvidia.com/mig-3g.40gb.engines.copy"])
	require.Equal(t, "580", l["nvidia.com/cuda.driver-version.major"])

	m.sim("mig", "--gpu", "0", "--layout", "1g.10gb,1g.10gb")
	l = label("nvidia.com/mig-1g.10gb.count", "2").DevicePlugin.Labels
	require.NotContains(t, l, "nvidia.com/mig-3g.40gb.count")

	// Another process with another publisher.
	m.stop()
	m.start("--mig-strategy", "mixed", "--nfd-dir", "/nfd/features.d")
	m.state(func(s nodestate.State) bool {
		return s.DevicePlugin != nil && s.DevicePlugin.Registered && s.DevicePlugin.Labels == nil
	})
	text, err := os.ReadFile(filepath.Join(m.path("/nfd/features.d"), "gfd"))
	require.NoError(t, err)
	require.Contains(t, string(text), "nvidia.com/mig-1g.10gb.count=2\n")
	require.NotContains(t, string(text), "3g.40gb")
	for line := range strings.Lines(string(text)) {
		require.Regexp(t, nodestate.FeaturePattern, strings.Split(line, "=")[0])
	}
}

func TestPendingRowRemapWaitsForAReset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profile, what string
		gpus          int
	}{
		{"l40s", "memory wait to be replaced", 4},
		{"dgx-2", "memory wait to be replaced", 16},
	} {
		t.Run(c.profile, func(t *testing.T) {
			m := newMachine(t).up("--profile", c.profile).withKubelet().start()
			m.wait(c.gpus)
			m.sim("remap", "--gpu", "2")
			require.Equal(t, []int{2}, unhealthy(m.wait(c.gpus-1)))
			d := m.fault(2, false)
			require.Equal(t, gpu.ReasonResetNeeded, d.Reason)
			require.Contains(t, d.Message, c.what)
			m.stop()
			m.start()
			require.Equal(t, []int{2}, unhealthy(m.wait(c.gpus-1)), "no restart mends it")
			m.sim("restore", "--gpu", "2")
			m.wait(c.gpus)
		})
	}
}
