package kubelettest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const res = "example.com/thing"

// plugin is a device plugin as small as it can be.
type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	options *v1beta1.DevicePluginOptions
	list    chan []*v1beta1.Device // each is sent to the stream
	prefer  []string
	refuse  error

	mu        sync.Mutex
	asked     []*v1beta1.ContainerPreferredAllocationRequest
	allocated [][]string
	started   [][]string

	server *grpc.Server
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return p.options, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, s v1beta1.DevicePlugin_ListAndWatchServer) error {
	for {
		select {
		case d, ok := <-p.list:
			if !ok {
				return nil
			}
			if err := s.Send(&v1beta1.ListAndWatchResponse{Devices: d}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (p *plugin) GetPreferredAllocation(_ context.Context, r *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, r.GetContainerRequests()...)
	return &v1beta1.PreferredAllocationResponse{ContainerResponses: []*v1beta1.ContainerPreferredAllocationResponse{{DeviceIDs: p.prefer}}}, nil
}

func (p *plugin) Allocate(_ context.Context, r *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return nil, p.refuse
	}
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	p.allocated = append(p.allocated, ids)
	resp := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{"THINGS": ids[0]}}
	for _, id := range ids {
		resp.CdiDevices = append(resp.CdiDevices, &v1beta1.CDIDevice{Name: res + "=" + id})
	}
	return &v1beta1.AllocateResponse{ContainerResponses: []*v1beta1.ContainerAllocateResponse{resp}}, nil
}

func (p *plugin) PreStartContainer(_ context.Context, r *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, r.GetDevicesIds())
	return &v1beta1.PreStartContainerResponse{}, nil
}

// serve serves p beside the kubelet's socket until the end of the test.
func (p *plugin) serve(t *testing.T, k *kubelettest.Kubelet, endpoint string) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(filepath.Dir(k.Socket()), endpoint))
	require.NoError(t, err)
	p.list = make(chan []*v1beta1.Device, 16)
	p.server = grpc.NewServer(grpc.WaitForHandlers(true))
	v1beta1.RegisterDevicePluginServer(p.server, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.server.Serve(ln) }()
	t.Cleanup(func() { p.server.Stop(); <-done })
}

func register(t *testing.T, k *kubelettest.Kubelet, req *v1beta1.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+k.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(soon(t), req)
	return err
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, cfg kubelettest.Config) *kubelettest.Kubelet {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	k, err := kubelettest.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(k.Stop)
	return k
}

func device(id string, healthy bool, nodes ...int64) *v1beta1.Device {
	d := &v1beta1.Device{ID: id, Health: v1beta1.Unhealthy}
	if healthy {
		d.Health = v1beta1.Healthy
	}
	for _, n := range nodes {
		if d.Topology == nil {
			d.Topology = &v1beta1.TopologyInfo{}
		}
		d.Topology.Nodes = append(d.Topology.Nodes, &v1beta1.NUMANode{ID: n})
	}
	return d
}

// connected starts a kubelet with a plugin that has listed devices.
func connected(t *testing.T, cfg kubelettest.Config, p *plugin, devices ...*v1beta1.Device) *kubelettest.Kubelet {
	t.Helper()
	k := start(t, cfg)
	p.serve(t, k, "thing.sock")
	require.NoError(t, register(t, k, &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: "thing.sock", ResourceName: res}))
	p.list <- devices
	_, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Lists == 1 })
	require.NoError(t, err)
	return k
}

func pod(name string, n int) kubelettest.Pod {
	return kubelettest.Pod{Namespace: "default", Name: name, Container: "main", Requests: map[string]int{res: n}}
}

func TestRegisterRefusesAsTheKubeletDoes(t *testing.T) {
	k := start(t, kubelettest.Config{DialTimeout: 50 * time.Millisecond})
	(&plugin{}).serve(t, k, "thing.sock")
	for name, c := range map[string]struct {
		req  *v1beta1.RegisterRequest
		want string
	}{
		"version":       {&v1beta1.RegisterRequest{Version: "v1alpha1", Endpoint: "thing.sock", ResourceName: res}, `requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]`},
		"no domain":     {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "thing.sock", ResourceName: "thing"}, `the ResourceName "thing" is invalid`},
		"kubernetes.io": {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "thing.sock", ResourceName: "kubernetes.io/thing"}, `invalid`},
		"upper case":    {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "thing.sock", ResourceName: "Example.com/thing"}, `invalid`},
		"no name":       {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "thing.sock", ResourceName: "example.com/"}, `invalid`},
		"outside":       {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "../thing.sock", ResourceName: res}, `is not the name of a socket in`},
		"no endpoint":   {&v1beta1.RegisterRequest{Version: "v1beta1", ResourceName: res}, `is not the name of a socket in`},
		"nobody there":  {&v1beta1.RegisterRequest{Version: "v1beta1", Endpoint: "other.sock", ResourceName: res}, `failed to get device plugin options`},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, register(t, k, c.req), c.want) })
	}
	_, known := k.Resource(res)
	require.False(t, known)
}

func TestCapacityOutlivesThePluginByFiveMinutes(t *testing.T) {
	now := time.Unix(1000, 0)
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	p := &plugin{}
	k := connected(t, kubelettest.Config{Now: clock}, p, device("a", true), device("b", false), device("c", true))
	r, _ := k.Resource(res)
	require.Equal(t, 3, r.Capacity)
	require.Equal(t, 2, r.Allocatable)
	require.False(t, r.Gone)

	p.server.Stop()
	r, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(t, err)
	require.Equal(t, 3, r.Capacity)
	require.Zero(t, r.Allocatable)

	mu.Lock()
	now = now.Add(kubelettest.GracePeriod)
	mu.Unlock()
	require.Empty(t, k.UpdateNodeStatus())
	mu.Lock()
	now = now.Add(time.Second)
	mu.Unlock()
	require.Equal(t, []string{res}, k.UpdateNodeStatus())
	_, known := k.Resource(res)
	require.False(t, known)
}

func TestRegisteringAgainReplaces(t *testing.T) {
	first, second := &plugin{}, &plugin{}
	k := connected(t, kubelettest.Config{}, first, device("a", true))
	second.serve(t, k, "second.sock")
	require.NoError(t, register(t, k, &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: "second.sock", ResourceName: res}))
	second.list <- []*v1beta1.Device{device("b", true), device("c", true)}
	_, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Allocatable == 2 })
	require.NoError(t, err)
	first.server.Stop()
	second.list <- []*v1beta1.Device{device("b", true)}
	r, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Allocatable == 1 })
	require.NoError(t, err)
	require.Equal(t, "second.sock", r.Endpoint)
	require.False(t, r.Gone)
	require.Equal(t, 2, r.Registered)
}

func TestKeepReplacedTakesTheFirstEndForTheSecond(t *testing.T) {
	first, second := &plugin{}, &plugin{}
	k := connected(t, kubelettest.Config{KeepReplaced: true}, first, device("a", true))
	second.serve(t, k, "second.sock")
	require.NoError(t, register(t, k, &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: "second.sock", ResourceName: res}))
	second.list <- []*v1beta1.Device{device("b", true)}
	_, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Allocatable == 1 && r.Lists == 1 })
	require.NoError(t, err)
	first.server.Stop()
	r, err := k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(t, err)
	require.Equal(t, "second.sock", r.Endpoint)
	require.Zero(t, r.Allocatable)
}

func TestAdmitRefusesInTheKubeletsWords(t *testing.T) {
	p := &plugin{}
	k := connected(t, kubelettest.Config{}, p, device("a", true), device("b", false))
	var refused *kubelettest.AdmissionError

	_, err := k.Admit(soon(t), pod("big", 2))
	require.EqualError(t, err, "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for example.com/thing. Requested: 2, Available: 1, which is unexpected")
	require.ErrorAs(t, err, &refused)

	_, err = k.Admit(soon(t), kubelettest.Pod{Name: "x", Requests: map[string]int{"example.com/other": 1}})
	require.EqualError(t, err, "OutOfexample.com/other: Node didn't have enough resource: example.com/other, requested: 1, used: 0, capacity: 0")

	p.refuse = errors.New("the thing is on fire")
	_, err = k.Admit(soon(t), pod("small", 1))
	require.ErrorContains(t, err, "Allocate failed due to rpc error: code = Unknown desc = the thing is on fire, which is unexpected")
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	_, err = k.Admit(soon(t), pod("small", 1))
	require.NoError(t, err, "a refused device must be free again")

	_, err = k.Admit(soon(t), pod("small", 2))
	require.ErrorContains(t, err, "changed request")

	p.list <- []*v1beta1.Device{device("a", false), device("b", true)}
	_, err = k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Lists == 2 })
	require.NoError(t, err)
	_, err = k.Admit(soon(t), pod("small", 1))
	require.ErrorContains(t, err, "previously allocated devices are no longer healthy")

	p.list <- []*v1beta1.Device{device("a", false)}
	_, err = k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Lists == 3 })
	require.NoError(t, err)
	_, err = k.Admit(soon(t), pod("other", 1))
	require.ErrorContains(t, err, "no healthy devices present; cannot allocate unhealthy devices example.com/thing")
}

func TestPreferenceIsAskedForAndFollowed(t *testing.T) {
	p := &plugin{options: &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}, prefer: []string{"d", "b", "gone"}}
	k := connected(t, kubelettest.Config{}, p, device("a", true), device("b", true), device("c", true), device("d", true))
	a, err := k.Admit(soon(t), pod("one", 2))
	require.NoError(t, err)
	require.Equal(t, []string{"b", "d"}, a.DeviceIDs[res])
	require.Equal(t, []string{res + "=b", res + "=d"}, a.CDIDevices)
	require.Equal(t, map[string]string{"THINGS": "b"}, a.Envs)
	require.Equal(t, []string{"a", "b", "c", "d"}, p.asked[0].GetAvailableDeviceIDs())
	require.Equal(t, int32(2), p.asked[0].GetAllocationSize())
	require.Equal(t, [][]string{{"b", "d"}}, p.started)

	a, err = k.Admit(soon(t), pod("two", 1))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, a.DeviceIDs[res], "what is preferred but taken is not given")
	require.Equal(t, []string{"a", "c"}, p.asked[1].GetAvailableDeviceIDs())
}

func TestAlignedDevicesComeFromOneNode(t *testing.T) {
	p := &plugin{options: &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}, prefer: []string{"a0", "c0", "a1"}}
	k := connected(t, kubelettest.Config{AlignNUMA: true}, p,
		device("a0", true, 0), device("a1", true, 1), device("b1", true, 1), device("c0", false, 0), device("d1", true, 1))
	a, err := k.Admit(soon(t), pod("pair", 2))
	require.NoError(t, err)
	require.Equal(t, []string{"a1", "b1"}, a.DeviceIDs[res])
	require.Equal(t, []string{"a1", "b1", "d1"}, p.asked[0].GetAvailableDeviceIDs())
	a, err = k.Admit(soon(t), pod("rest", 2))
	require.NoError(t, err)
	require.Equal(t, []string{"a0", "d1"}, a.DeviceIDs[res])
}

func TestDevicesAreNeverGivenTwice(t *testing.T) {
	p := &plugin{options: &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}, prefer: []string{"a"}}
	k := connected(t, kubelettest.Config{}, p, device("a", true), device("b", true), device("c", true), device("d", true))
	ctx := soon(t)
	var wg sync.WaitGroup
	type grant struct{ pod, id string }
	got := make(chan grant, 8)
	for i := range 8 {
		wg.Go(func() {
			name := string(rune('0' + i))
			if a, err := k.Admit(ctx, pod(name, 1)); err == nil {
				got <- grant{name, a.DeviceIDs[res][0]}
			}
		})
	}
	wg.Wait()
	close(got)
	var ids []string
	for g := range got {
		ids = append(ids, g.id)
		k.Remove("default", g.pod)
	}
	slices.Sort(ids)
	require.Equal(t, []string{"a", "b", "c", "d"}, ids)
	_, err := k.Admit(ctx, pod("all", 4))
	require.NoError(t, err, "the devices of removed pods are free")
}

func TestRestartKeepsWhatPodsHave(t *testing.T) {
	dir := t.TempDir()
	p := &plugin{}
	k := connected(t, kubelettest.Config{Dir: dir}, p, device("a", true, 1), device("b", true), device("c", true))
	before, err := k.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))

	require.NoError(t, k.Restart())
	require.NoFileExists(t, filepath.Join(dir, "thing.sock"))
	require.FileExists(t, filepath.Join(dir, "notes"))
	r, known := k.Resource(res)
	require.True(t, known)
	require.Zero(t, r.Capacity)
	after, err := k.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.Equal(t, before.CDIDevices, after.CDIDevices)
	_, err = k.Admit(soon(t), pod("new", 1))
	require.ErrorContains(t, err, "no healthy devices present")

	p2 := &plugin{}
	p2.serve(t, k, "thing.sock")
	require.NoError(t, register(t, k, &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: "thing.sock", ResourceName: res}))
	p2.list <- []*v1beta1.Device{device("a", true, 1), device("b", true), device("c", true)}
	_, err = k.Wait(soon(t), res, func(r kubelettest.Resource) bool { return r.Allocatable == 3 })
	require.NoError(t, err)
	again, err := k.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.Equal(t, before.DeviceIDs, again.DeviceIDs)
	require.Empty(t, p2.allocated, "a known container is not allocated again")
	fresh, err := k.Admit(soon(t), pod("new", 1))
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, fresh.DeviceIDs[res])
}

func TestADamagedCheckpointIsSetAside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, kubelettest.CheckpointName), []byte(`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a.b/c":["x"]}},"Checksum":1}`), 0o600))
	k := start(t, kubelettest.Config{Dir: dir})
	require.Empty(t, k.Resources())
}

func TestPodResourcesTellWhoHasWhat(t *testing.T) {
	dir := t.TempDir()
	p := &plugin{}
	k := connected(t, kubelettest.Config{PodResourcesDir: dir}, p, device("a", true, 1), device("b", true), device("c", false))
	_, err := k.Admit(soon(t), pod("job", 1))
	require.NoError(t, err)
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	client := podresources.NewPodResourcesListerClient(conn)

	list, err := client.List(soon(t), &podresources.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPodResources(), 1)
	require.Equal(t, "job", list.GetPodResources()[0].GetName())
	held := list.GetPodResources()[0].GetContainers()[0].GetDevices()
	require.Len(t, held, 1)
	require.Equal(t, []string{"a"}, held[0].GetDeviceIds())
	require.Equal(t, int64(1), held[0].GetTopology().GetNodes()[0].GetID())

	all, err := client.GetAllocatableResources(soon(t), &podresources.AllocatableResourcesRequest{})
	require.NoError(t, err)
	var ids []string
	for _, d := range all.GetDevices() {
		ids = append(ids, d.GetDeviceIds()...)
	}
	require.ElementsMatch(t, []string{"a", "b"}, ids)

	got, err := client.Get(soon(t), &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "job"})
	require.NoError(t, err)
	require.Len(t, got.GetPodResources().GetContainers(), 1)
	k.Remove("default", "job")
	_, err = client.Get(soon(t), &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "job"})
	require.ErrorContains(t, err, "not found")
}

func TestWaitSaysWhatItSaw(t *testing.T) {
	k := start(t, kubelettest.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.Wait(ctx, res, func(r kubelettest.Resource) bool { return !r.Gone })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, res+": it was not registered")
}

func TestTheSocketExistsBeforeItAccepts(t *testing.T) {
	dir := t.TempDir()
	checked := false
	start(t, kubelettest.Config{Dir: dir, BeforeListen: func() {
		require.FileExists(t, filepath.Join(dir, "kubelet.sock"))
		_, err := net.Dial("unix", filepath.Join(dir, "kubelet.sock"))
		require.Error(t, err)
		checked = true
	}})
	require.True(t, checked)
}
