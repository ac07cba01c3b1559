package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// As k8s.io/kubernetes v1.37 writes it, shortened.
const kubeletRecord = `{"Data":{"PodDeviceEntries":[{"PodUID":"a-b","ContainerName":"init","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-1::2"],"0":["GPU-2"]},"AllocResp":"Cg=="}],
"RegisteredDevices":{"nvidia.com/gpu":["GPU-1::2","GPU-2"]}},"Checksum":1}`

func TestTheKubeletsRecordHasPodsThatTheAPILacks(t *testing.T) {
	path := filepath.Join(t.TempDir(), recordName)
	all, err := readRecord(path)
	require.NoError(t, err, "a kubelet without a record has allocated nothing")
	require.Empty(t, all)
	require.NoError(t, os.WriteFile(path, []byte(kubeletRecord), 0o600))
	all, err = readRecord(path)
	require.NoError(t, err)
	by := "container init of the pod with UID a-b"
	require.ElementsMatch(t, []Allocation{{"nvidia.com/gpu", "GPU-1::2", by, true}, {"nvidia.com/gpu", "GPU-2", by, true}}, all)
	for _, damaged := range []string{"", "{", `{"Checksum":1}`, `{"Data":{"PodDeviceEntries":7}}`} {
		require.NoError(t, os.WriteFile(path, []byte(damaged), 0o600))
		_, err = readRecord(path)
		require.ErrorContains(t, err, "the kubelet's record of devices: ", "nothing is free because a record cannot be read: %q", damaged)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(kubeletRecord))
	f.Add([]byte(`{"Data":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if all, err := parseRecord(data); err != nil && all != nil {
			t.Fatal("devices of a record that is refused")
		}
	})
}
