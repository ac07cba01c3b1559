package claim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpaqueConfigurations(t *testing.T) {
	const head = `{"apiVersion":"resource.nvidia.com/v1beta1",`
	for text, want := range map[string]string{
		head + `"kind":"GpuConfig"}`: "",
		head + `"kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`:                                                 "",
		head + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}}`:            "",
		head + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`:                                "",
		head + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`:               `parameters.sharing.timeSlicingConfig.interval: "Long" is not served, only Default`,
		head + `"kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`:                          "parameters.sharing.timeSlicingConfig: a MIG device has none",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS"}}`:                                                               "",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{}}}`:                                                "",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50}}}`:              "parameters.sharing.mpsConfig.defaultActiveThreadPercentage: a claim has no limits of its own; next: ",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1Gi"}}}`:          "parameters.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: a claim",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}}}}`: "parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: a claim",
		head + `"kind":"GpuConfig","sharing":{"strategy":"MPS","timeSlicingConfig":{}}}`:                                        "parameters.sharing.timeSlicingConfig: does not belong to the strategy MPS",
		head + `"kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`:                                                         "parameters.sharing.strategy: MPS shares no MIG device here; next: ",
		head + `"kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","mpsConfig":{}}}`:                                        "parameters.sharing.mpsConfig: does not belong",
		head + `"kind":"GpuConfig","sharing":{"strategy":"Fair"}}`:                                                              `parameters.sharing.strategy: "Fair" is not known here`,
		head + `"kind":"GpuConfig","sharing":{}}`:                                                                               `parameters.sharing.strategy: "" is not known here`,
		head + `"kind":"GpuConfig","sharing":{"strategi":"MPS"}}`:                                                               "sharing.strategi: unknown key",
		head + `"kind":"GpuConfig","sharing":{"strategy":{}}}`:                                                                  "parameters: sharing.strategy: want a string",
		head + `"kind":"GpuConfig","KIND":"x"}`:                                                                                 `parameters.kind: "x" is not known here`,
		head + `"kind":"GpuConfig","memory":"1Gi"}`:                                                                             "memory: unknown key",
		head + `"kind":"VfioDeviceConfig"}`:                                                                                     `parameters.kind: "VfioDeviceConfig" is not known here`,
		`{"apiVersion":"gpu.nvidia.com/v1alpha1","kind":"GpuConfig"}`:                                                           `parameters.apiVersion: "gpu.nvidia.com/v1alpha1" is not known here, only resource.nvidia.com/v1beta1`,
		``: "parameters: ", `null`: "parameters.apiVersion", `[]`: "parameters: ", `{`: "parameters: ",
	} {
		_, err := parseConfig([]byte(text))
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "\n")
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}}`))
	f.Add([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1Gi"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data)
		if err == nil && (c.APIVersion != configVersion || c.Kind != kindGPU && c.Kind != kindMIG || c.Sharing != nil && c.Sharing.Strategy != strategyTimeSlicing && c.Sharing.Strategy != strategyMPS) {
			t.Fatalf("accepted %q as %+v", data, c)
		}
	})
}

func FuzzDecodeCheckpoint(f *testing.F) {
	f.Add(mustEncode(&Checkpoint{BootID: boot}))
	f.Add(mustEncode(&Checkpoint{BootID: boot, Claims: []Prepared{{UID: "a", Namespace: "n", Name: "c", Devices: []PreparedDevice{{Request: "r", Name: "gpu-0", UUID: "GPU-0", CDI: "a/b=c"}}}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(mustEncode(c))
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
