package kubelettest_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

// Written by real kubelets, as their owners published them: Alibaba Cloud's
// documentation (2020), a Jetson board in a kind cluster, two pods on a machine
// with three P100 (Kubernetes 1.20).
var published = map[string]string{
	"no pods":   `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}`,
	"no NUMA":   `{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}`,
	"NUMA node": `{"Data":{"PodDeviceEntries":[{"PodUID":"513cb897-0262-4868-826f-aa943ee45a38","ContainerName":"app","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-77a702db-e37f-3a74-d46d-c5713f66058c"]},"AllocResp":"CkIKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSKEdQVS03N2E3MDJkYi1lMzdmLTNhNzQtZDQ2ZC1jNTcxM2Y2NjA1OGMaJAoOL2Rldi9udmlkaWFjdGwSDi9kZXYvbnZpZGlhY3RsGgJydxomCg8vZGV2L252aWRpYS11dm0SDy9kZXYvbnZpZGlhLXV2bRoCcncaMgoVL2Rldi9udmlkaWEtdXZtLXRvb2xzEhUvZGV2L252aWRpYS11dm0tdG9vbHMaAnJ3Gi4KEy9kZXYvbnZpZGlhLW1vZGVzZXQSEy9kZXYvbnZpZGlhLW1vZGVzZXQaAnJ3GiAKDC9kZXYvbnZpZGlhMBIML2Rldi9udmlkaWEwGgJydw=="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-77a702db-e37f-3a74-d46d-c5713f66058c","GPU-9b341c59-f96b-ba85-c137-78c3652fea65","GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"]}},"Checksum":133412836}`,
}

func TestChecksumsOfRealKubeletsHold(t *testing.T) {
	for name, file := range published {
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
	file := []byte(published["no NUMA"])
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
	for _, file := range published {
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
