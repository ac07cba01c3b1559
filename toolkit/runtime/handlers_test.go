package runtime

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A handler is recognised by its program, or by its name if the runtime does not report programs.
func TestHandlersThatGiveGPUsAreRecognised(t *testing.T) {
	runtimes := func(text string) *runtimeapi.StatusResponse {
		return &runtimeapi.StatusResponse{Info: map[string]string{"config": `{"containerd":{"runtimes":` + text + `}}`}}
	}
	for _, c := range []struct {
		verbose *runtimeapi.StatusResponse
		want    []string
	}{
		{runtimes(`{}`), nil},
		{runtimes(`{"runc":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"/usr/bin/runc"}},"kata":{"runtimePath":"/opt/nvidia/kata"}}`), []string{}},
		{runtimes(`{"gpu":{"options":{"BinaryName":"/usr/local/nvidia/gpuready/gpu-oci-runtime"}},"runc":{}}`), []string{"gpu"}},
		{runtimes(`{"a":{"options":{"BinaryName":"/usr/bin/nvidia-container-runtime.cdi"}},"nvidia":{"options":{"BinaryName":7}},"b":1}`), []string{"a", "nvidia"}},
		{&runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "crun"}, {Name: "nvidia"}}}, []string{"nvidia"}},
	} {
		a, err := parseCRI(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.2.1"}, c.verbose)
		require.NoError(t, err)
		require.Equal(t, c.want, a.GPUHandlers)
	}
	a, err := parseCRI(&runtimeapi.VersionResponse{RuntimeName: "containerd"}, runtimes(`{"gpu":{"options":{"BinaryName":"/usr/bin/gpu"}},"kata":{"runtimePath":"/opt/kata"},"runc":{}}`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"gpu": "/usr/bin/gpu", "kata": "/opt/kata"}, a.Programs)
	require.Equal(t, map[string]string{"nvidia": "/usr/bin/nvidia-container-runtime"}, convertDocker(dockerInfo{Runtimes: map[string]json.RawMessage{
		"nvidia": json.RawMessage(`{"path":"/usr/bin/nvidia-container-runtime","runtimeArgs":[]}`), "runc": json.RawMessage(`{}`), "x": json.RawMessage(`7`),
	}}).Programs)
}
