package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestARefusedConfigurationIsReportedAndForgetsNoFault(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/sys/kernel/random"), 0o755))
	const boot = "0f0e0d0c-0b0a-4909-8807-060504030201"
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte(boot+"\n"), 0o644))
	dir := filepath.Join(root, "state", string(nodestate.DevicePlugin))
	faults := []nodestate.Fault{{GPU: gputest.GPU(1), Reason: gpu.ReasonXID, XID: 79, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	for _, before := range []*nodestate.DevicePluginInfo{nil, {Registered: true, Labels: map[string]string{"nvidia.com/gpu.count": "8"}, Faults: faults}} {
		if before != nil {
			require.NoError(t, nodestate.Write(dir, nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, Phase: nodestate.Ready, DevicePlugin: before}))
		}
		require.NoError(t, ReportRefused(root, "/state", errors.New("config.yaml: version: unknown\nflags: bad")))
		s, err := nodestate.ReadBoot(dir, boot)
		require.NoError(t, err)
		require.Equal(t, nodestate.Failed, s.Phase)
		require.Equal(t, reasonRefused, s.Reason)
		require.Equal(t, "config.yaml: version: unknown; flags: bad", s.Message)
		require.False(t, s.DevicePlugin.Registered)
		if before != nil {
			require.Equal(t, before.Labels, s.DevicePlugin.Labels)
			require.Equal(t, before.Faults, s.DevicePlugin.Faults)
		}
	}
}
