package cluster

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/lab/golden"
)

func TestKubeletConfig(t *testing.T) {
	got := kubeletConfig(nodeConfig{Status: 2 * time.Second})
	golden.Require(t, "testdata/kubelet.yaml", got)
	var generic map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(got), &generic))

	numa := kubeletConfig(nodeConfig{Status: 10 * time.Second, NUMA: true})
	require.Contains(t, numa, "topologyManagerPolicy: single-numa-node\n")
	require.Contains(t, numa, "nodeStatusUpdateFrequency: 10s\n")
}

func TestAGuestSharesNothingWithOtherNodes(t *testing.T) {
	golden.Require(t, "testdata/guest-kubelet.yaml", kubeletConfig(nodeConfig{Status: 2 * time.Second, guest: true}))
	golden.Require(t, "testdata/guest-containerd.toml", containerdConfig(nodeConfig{guest: true}))
}

func TestContainerdConfig(t *testing.T) {
	require.Contains(t, containerdConfig(nodeConfig{}), "enable_cdi = true\n  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n")
	require.Contains(t, containerdConfig(nodeConfig{WithoutCDI: true}), "enable_cdi = false\n  cdi_spec_dirs = ['/etc/cdi-is-off']\n")
}

func TestNetworkConfigIsJSON(t *testing.T) {
	require.True(t, json.Valid([]byte(cniConfig(PodNet(7)))))
	require.Contains(t, cniConfig(PodNet(7)), `"10.244.7.0/24"`)
}

func TestHookIsAddedToContainerdsDefault(t *testing.T) {
	got, err := addHook([]byte(`{"ociVersion":"1.2.1","process":{"cwd":"/","rlimits":[{"type":"RLIMIT_NOFILE"}]},"mounts":[]}`))
	require.NoError(t, err)
	golden.Require(t, "testdata/base.json", got+"\n")
	_, err = addHook([]byte(`x`))
	require.ErrorContains(t, err, "default OCI spec")
}

func TestHalvesOfTheMachine(t *testing.T) {
	require.Len(t, halves(), 2)
	require.Equal(t, "0", cpuRange(0, 0))
	require.Equal(t, "2-3", cpuRange(2, 3))
}

func TestTheKubeletRegistersTheSpec(t *testing.T) {
	require.Empty(t, NodeSpec{}.args())
	require.Equal(t, []string{"--provider-id=cloud://a", "--node-labels=x=1,y=2", "--register-with-taints=k:NoSchedule,l=v:NoExecute"},
		NodeSpec{ProviderID: "cloud://a", Labels: map[string]string{"y": "2", "x": "1"}, Taints: []string{"k:NoSchedule", "l=v:NoExecute"}}.args())
}
