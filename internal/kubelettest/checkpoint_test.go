package kubelettest_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// written holds checkpoints that the kubelet's own code has written, for GPUs of ours:
// CreateCheckpoint of k8s.io/kubernetes/pkg/kubelet/checkpointmanager, with New of
// pkg/kubelet/cm/devicemanager/checkpoint, v1.37.1, the version that the clusters of our
// tests are built from. Those read the checkpoints of kubelets that run
// (test/e2e/kubelet_test.go).
var written = map[string]string{
	"no pods":   `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-00000000-0000-4000-8000-000000000000","GPU-00000000-0000-4000-8000-000000000001"]}},"Checksum":3881443531}`,
	"no NUMA":   `{"Data":{"PodDeviceEntries":[{"PodUID":"6f1f1f0e-0000-4000-8000-000000000001","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-00000000-0000-4000-8000-000000000000"]},"AllocResp":"Kj4KPGs4cy5ncHVyZWFkeS5pby9ncHU9R1BVLTAwMDAwMDAwLTAwMDAtNDAwMC04MDAwLTAwMDAwMDAwMDAwMA=="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-00000000-0000-4000-8000-000000000000","GPU-00000000-0000-4000-8000-000000000001"]}},"Checksum":1618463712}`,
	"NUMA node": `{"Data":{"PodDeviceEntries":[{"PodUID":"6f1f1f0e-0000-4000-8000-000000000002","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-00000000-0000-4000-8000-000000000000"],"1":["GPU-00000000-0000-4000-8000-000000000001"]},"AllocResp":"Kj4KPGs4cy5ncHVyZWFkeS5pby9ncHU9R1BVLTAwMDAwMDAwLTAwMDAtNDAwMC04MDAwLTAwMDAwMDAwMDAwMCo+CjxrOHMuZ3B1cmVhZHkuaW8vZ3B1PUdQVS0wMDAwMDAwMC0wMDAwLTQwMDAtODAwMC0wMDAwMDAwMDAwMDE="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-00000000-0000-4000-8000-000000000000","GPU-00000000-0000-4000-8000-000000000001"]}},"Checksum":2029604460}`,
}

func TestChecksumsOfTheKubeletsCodeHold(t *testing.T) {
	for name, file := range written {
		t.Run(name, func(t *testing.T) {
			c, err := kubelettest.ParseCheckpoint([]byte(file))
			require.NoError(t, err)
			back, err := c.Bytes()
			require.NoError(t, err)
			require.Equal(t, file, string(back))
		})
	}
}

func TestWhatAKubeletWritesCanBeRead(t *testing.T) {
	dir := t.TempDir()
	k := connected(t, kubelettest.Config{Dir: dir}, &plugin{}, device("a", true, 1), device("b", true))
	_, err := k.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	data, err := os.ReadFile(dir + "/" + kubelettest.CheckpointName)
	require.NoError(t, err)
	c, err := kubelettest.ParseCheckpoint(data)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{res: {"a", "b"}}, c.Registered)
	require.Len(t, c.Entries, 1)
	require.Equal(t, pod("job", 2).UID(), c.Entries[0].PodUID)
	require.Equal(t, map[int64][]string{1: {"a"}, -1: {"b"}}, c.Entries[0].DeviceIDs)
}

func TestOneChangedByteIsNoticed(t *testing.T) {
	file := []byte(written["no NUMA"])
	for i := range file {
		changed := append([]byte(nil), file...)
		changed[i] ^= 1
		c, err := kubelettest.ParseCheckpoint(changed)
		if err != nil {
			require.ErrorIs(t, err, kubelettest.ErrCorrupt)
			continue
		}
		// Field names in JSON are matched whatever their case.
		back, err := c.Bytes()
		require.NoError(t, err)
		require.Equal(t, string(file), string(back), "byte %d", i)
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	for _, file := range written {
		f.Add([]byte(file))
	}
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := kubelettest.ParseCheckpoint(data)
		if err != nil {
			require.ErrorIs(t, err, kubelettest.ErrCorrupt)
			return
		}
		back, err := c.Bytes()
		require.NoError(t, err)
		again, err := kubelettest.ParseCheckpoint(back)
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
