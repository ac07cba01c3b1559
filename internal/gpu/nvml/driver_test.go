package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// Whatever call tells that a known GPU is lost, it is lost.
func TestALostGPUIsLostWhateverTellsIt(t *testing.T) {
	for name := range refusals {
		f, s := newFake(t, gputest.Node("a100-mig", 2), Options{})
		_, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		f.gpus[0].refuse = map[string]nvml.Return{name: nvml.ERROR_GPU_IS_LOST}
		if name == "nvmlDeviceGetRetiredPagesPendingStatus" {
			f.gpus[0].refuse["nvmlDeviceGetRemappedRows"] = nvml.ERROR_NOT_SUPPORTED
		}
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Contains(t, []gpu.Reason{"", gpu.ReasonLost}, got.Devices[0].Fault.Reason, name)
		require.Zero(t, got.Devices[1].Fault, name)
	}
}

// A code that is about the whole driver is not, where a single GPU answers it and the driver itself is well.
func TestOneGPUDoesNotSpeakForTheDriver(t *testing.T) {
	for name := range refusals {
		for _, code := range []nvml.Return{nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_LIB_RM_VERSION_MISMATCH} {
			f, s := newFake(t, gputest.Node("a100-mig", 2), Options{})
			f.gpus[0].refuse = map[string]nvml.Return{name: code}
			got, err := s.Snapshot(t.Context())
			require.NoError(t, err, "%s %d", name, code)
			require.Zero(t, got.Devices[1].Fault, "%s %d", name, code)
			if want := refusals[name].other; want == offered {
				require.Zero(t, got.Devices[0].Fault, "%s %d", name, code)
			}
		}
	}
}

// Nobody needs the driver's version to use a GPU.
func TestADriverWithoutAVersionIsUsed(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	s.library = "/usr/lib64/libnvidia-ml.so.580.95.05"
	f.version = nvml.ERROR_UNKNOWN
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, "580.95.05", got.Driver.Version)
	require.Len(t, got.Devices, 2)

	f.version, f.versionEnd = nvml.SUCCESS, "\x1b\xff"
	got, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, "580.95.05 \uFFFD", got.Driver.Version)
}

// A UUID that no GPU can have is none: others take it as a name.
func TestAUUIDThatIsNoneCostsItsGPUOnly(t *testing.T) {
	for _, id := range []gpu.UUID{"", "\xff\xff", "GPU-\n", "GPU 1"} {
		f, s := newFake(t, gputest.Node("a100-mig", 2), Options{})
		f.gpus[0].device.UUID = id
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, gpu.ReasonUnreadable, got.Devices[0].Fault.Reason)
		require.Empty(t, got.Devices[0].UUID)
		require.Zero(t, got.Devices[1].Fault)

		f, s = newFake(t, gputest.Node("a100-mig", 2), Options{})
		f.gpus[0].device.MIG[0].UUID = id
		got, err = s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Empty(t, got.Devices[0].MIG[0].UUID)
		require.Zero(t, got.Devices[0].Fault, "its other MIG devices are used")
	}
}

// GPUs in confidential computing mode accept no work until their ready state is set, after attestation.
func TestGPUsThatAwaitAttestation(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 1), Options{})
	awaits := func() bool {
		snapshot, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		return snapshot.Driver.AwaitsAttestation
	}
	f.locked(func() { f.confidential.CcFeature = nvml.CC_SYSTEM_FEATURE_ENABLED })
	require.True(t, awaits())
	f.locked(func() { f.accepts = nvml.CC_ACCEPTING_CLIENT_REQUESTS_TRUE })
	require.False(t, awaits())
	f.locked(func() { f.accepts = nvml.CC_ACCEPTING_CLIENT_REQUESTS_FALSE })
	require.True(t, awaits(), "it was taken back")

	f, s = newFake(t, gputest.Node("h100-sxm", 1), Options{})
	for range 3 {
		require.False(t, awaits())
	}
	require.Equal(t, 1, f.confidentialCalls, "it is off until the driver is loaded again")
	_, s = newFake(t, gputest.Node("h100-sxm", 1), Options{})
	s.has[getReadyState] = false // before R535
	require.False(t, awaits())
}
