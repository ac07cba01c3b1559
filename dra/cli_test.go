package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
)

func runCLI(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = runProgram(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestHelpListsCommandsAndExitCodes(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"run", "--help"}, {"devices", "--help"}} {
		code, out, _ := runCLI(t, args...)
		require.Zero(t, code, args)
		require.Contains(t, out, "Usage:", args)
		require.Contains(t, out, "Exit codes:", args)
	}
	_, out, _ := runCLI(t, "run", "--help")
	for _, text := range []string{"Examples:", "[$NODE_NAME]", "[$POD_UID]", "[$SILENCE_LIMIT]"} {
		require.Contains(t, out, text)
	}
}

func TestBadUsage(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serve"}, program.Usage, `unknown command "serve" (known here: run, devices, completion, help, version); see gpu-dra-driver --help`},
		{[]string{"run", "--no-such"}, program.Usage, "--no-such"},
		{[]string{"run", "extra"}, program.Usage, "takes no arguments"},
		{[]string{"--kubelet-dir=here"}, program.Usage, `--kubelet-dir "here": want an absolute path`},
		{[]string{"--silence-limit=-1s"}, program.Usage, "--silence-limit -1s is negative"},
		{[]string{"--log-format=xml"}, program.Usage, "want text or json"},
		{[]string{"--kubeconfig=/no/such/file"}, program.Usage, "--kubeconfig /no/such/file"},
		{[]string{"--listen="}, program.Failed, "next: run it in a pod with a service account, or name a --kubeconfig"},
		{[]string{"devices", "-o", "xml"}, program.Usage, `--output "xml"`},
	} {
		code, out, stderr := runCLI(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, stderr)
		require.Empty(t, out)
		require.Contains(t, stderr, c.want)
	}
}

func TestDevicesPrintsWhatIsPublished(t *testing.T) {
	root := t.TempDir()
	args := []string{"devices", "--host-root=" + root, "--state-dir=/state", "--node-name=node-1"}
	code, out, _ := runCLI(t, args...)
	require.Zero(t, code)
	require.Equal(t, "no device is published: InventoryUnknown: gpu-device-plugin has not published its inventory; next: see that gpu-device-plugin runs on this node\n", out)

	info := &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA, Inventory: []nodestate.GPU{
		{UUID: "GPU-0", Product: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30, Condition: nodestate.Condition{Health: nodestate.Healthy}, Sharing: &nodestate.Sharing{Shares: 4}},
		{UUID: "GPU-1", Index: 1, Minor: 1, MIGEnabled: true, Condition: nodestate.Condition{Health: nodestate.Healthy}, MIG: []nodestate.MIGDevice{
			{UUID: "MIG-0", Profile: "1g.10gb", MemoryBytes: 10 << 30, Condition: nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 94"}}}},
	}}
	write := func() {
		require.NoError(t, nodestate.Write(filepath.Join(root, "state/deviceplugin"), nodestate.State{Component: nodestate.DevicePlugin, Phase: nodestate.Ready, DevicePlugin: info}))
	}
	write()
	_, out, _ = runCLI(t, args...)
	require.Equal(t, `DEVICE                UUID   PRODUCT                PROFILE  MEMORY  SHARES  HEALTH
gpu-0                 GPU-0  NVIDIA H100 80GB HBM3  -        80Gi    4       Healthy
gpu-1-mig-1g10gb-0-0  MIG-0  -                      1g.10gb  10Gi    -       Unhealthy: XID: XID 94
`, out)
	_, out, _ = runCLI(t, append(args, "-o", "json")...)
	var list deviceList
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Equal(t, "gpu.nvidia.com", list.Driver)
	require.Equal(t, "node-1", list.Pool)
	require.Len(t, list.Devices, 2)
	require.Equal(t, "XID", list.Devices[1].Taints[0].Value)
	info.Serve = nodestate.ServePlugin
	write()
	_, out, _ = runCLI(t, append(args, "-o", "json")...)
	require.Contains(t, out, `"why": "ServedByDevicePlugin: `)
	require.Contains(t, out, `"devices": []`)
}
