package compare

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// folder returns a folder with a path short enough for unix sockets.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// oldKubelet is a kubelet that does not serve GetAllocatableResources.
type oldKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (oldKubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	node := func(n int64) *podresources.TopologyInfo {
		return &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: n}}}
	}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Name: "idle", Namespace: "default", Containers: []*podresources.ContainerResources{{Name: "main"}}},
		{Name: "job", Namespace: "default", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-b"}, Topology: node(1)},
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}, Topology: node(0)},
				{ResourceName: "example.com/nic", DeviceIds: []string{"0"}},
			}},
			{Name: "side", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-c"}}}},
		}},
	}}, nil
}

func serve(t testing.TB, socket string, s podresources.PodResourcesListerServer) {
	t.Helper()
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-ended)
	})
}

func TestCheckpointReplacesMissingAllocatableResources(t *testing.T) {
	dir := folder(t)
	k := Kubelet{PodResources: filepath.Join(dir, "kubelet.sock"), Plugins: dir}
	serve(t, k.PodResources, oldKubelet{})
	_, err := k.Query(soon(t))
	require.ErrorContains(t, err, "GetAllocatableResources")
	require.ErrorContains(t, err, "kubelet_internal_checkpoint: no such file")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, checkpointName), 0o600))
	_, err = k.Query(soon(t))
	require.ErrorContains(t, err, "no regular file", "nobody writes into it, and nobody is waited for")
	require.NoError(t, os.Remove(filepath.Join(dir, checkpointName)))

	data, err := kubelettest.Checkpoint{Registered: map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b"}, "nvidia.com/gone": {}}}.Bytes()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpointName), data, 0o600))
	theirs, err := k.Query(soon(t))
	require.NoError(t, err)
	require.True(t, theirs.Checkpoint)
	require.Equal(t, map[string][]Device{"nvidia.com/gpu": {{ID: "GPU-a"}, {ID: "GPU-b"}}}, theirs.Devices)
	require.Equal(t, []Allocation{
		{"default", "job", "main", "nvidia.com/gpu", []string{"GPU-a", "GPU-b"}},
		{"default", "job", "main", "example.com/nic", []string{"0"}},
		{"default", "job", "side", "nvidia.com/gpu", []string{"GPU-c"}},
	}, theirs.Allocations)
}

func TestMissingKubeletIsAnError(t *testing.T) {
	dir := folder(t)
	_, err := Kubelet{PodResources: filepath.Join(dir, "kubelet.sock"), Plugins: dir}.Query(soon(t))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubelet.sock"), nil, 0o600))
	_, err = Kubelet{PodResources: filepath.Join(dir, "kubelet.sock"), Plugins: dir}.Query(soon(t))
	require.ErrorContains(t, err, "is not a socket")
}

func FuzzParseCheckpoint(f *testing.F) {
	data, err := kubelettest.Checkpoint{
		Entries:    []kubelettest.CheckpointEntry{{PodUID: "1", ContainerName: "c", ResourceName: "nvidia.com/gpu", DeviceIDs: map[int64][]string{0: {"GPU-a"}}}},
		Registered: map[string][]string{"nvidia.com/gpu": {"GPU-a"}},
	}.Bytes()
	require.NoError(f, err)
	for _, seed := range [][]byte{data, []byte(`{}`), []byte(`{"Data":null}`), []byte(`{"Data":{"RegisteredDevices":{"a":null}}}`), []byte(`[`), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseCheckpoint(data)
		if err != nil {
			require.Nil(t, all)
			return
		}
		for _, list := range all {
			require.NotEmpty(t, list)
		}
	})
}

// disabled is a kubelet with the feature gate off: its error has no code, and its
// nodes can have many pods.
type disabled struct{ oldKubelet }

func (disabled) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "default", Name: strings.Repeat("x", 5<<20), // more than gRPC's default limit
		Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}}}},
	}}}, nil
}

func (disabled) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return nil, errors.New("PodResources API GetAllocatableResources disabled")
}

func TestCheckpointWithManyPods(t *testing.T) {
	dir := folder(t)
	k := Kubelet{PodResources: filepath.Join(dir, "kubelet.sock"), Plugins: dir}
	serve(t, k.PodResources, disabled{})
	data, err := kubelettest.Checkpoint{Registered: map[string][]string{"nvidia.com/gpu": {"GPU-a"}}}.Bytes()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpointName), data, 0o600))
	theirs, err := k.Query(soon(t))
	require.NoError(t, err)
	require.True(t, theirs.Checkpoint)
	require.Len(t, theirs.Allocations, 1)
}
