package telemetry

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// podLister is a kubelet that lists fixed pods.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
}

func (l podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: l.pods}, nil
}

// start serves the PodResources API and returns its socket.
func (l podLister) start(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") // t.TempDir() may be too long for a unix socket
	require.NoError(t, err)
	socket := filepath.Join(dir, "kubelet.sock")
	ln, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, l)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-ended)
		require.NoError(t, os.RemoveAll(dir))
	})
	return socket
}

// pod returns a pod whose containers hold devices of a resource.
func pod(name string, containers map[string][]string, resource string) *podresources.PodResources {
	p := &podresources.PodResources{Namespace: "default", Name: name}
	for container, ids := range containers {
		p.Containers = append(p.Containers, &podresources.ContainerResources{Name: container, Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}})
	}
	return p
}

// everything returns the measurement of a GPU that reports all.
func everything() gpu.Measurement {
	return gpu.Measurement{
		gpu.Utilization: 57, gpu.MemoryUtilization: 41, gpu.MemorySize: 80 << 30, gpu.MemoryReserved: 1 << 30, gpu.MemoryUsed: 30<<30 + 1<<19, gpu.MemoryFree: 49 << 30,
		gpu.Temperature: 71, gpu.Power: 612_345, gpu.PowerLimit: 700_000, gpu.SMClock: 1980, gpu.MemoryClock: 2619,
		gpu.ECCVolatileCorrected: 1, gpu.ECCVolatileUncorrected: 2, gpu.ECCAggregateCorrected: 3, gpu.ECCAggregateUncorrected: 4,
		gpu.RemappedRowsCorrected: 5, gpu.RemappedRowsUncorrected: 6,
	}
}

func memoryOnly(used uint64) gpu.Measurement {
	return gpu.Measurement{gpu.MemorySize: 40 << 30, gpu.MemoryReserved: 0, gpu.MemoryUsed: used, gpu.MemoryFree: 40<<30 - used}
}

// node returns a node with a GPU that reports all, one that reports little and is shared, one
// without a UUID, and one with MIG devices, of which two share a GPU instance.
func node() Node {
	devices := []gpu.Device{
		{Index: 0, UUID: "GPU-a", Product: "NVIDIA H100 80GB HBM3", PCI: "0000:3b:00.0", Minor: 4},
		{Index: 1, UUID: "GPU-b", Product: "Tesla T4", PCI: "0000:5e:00.0", Minor: 1},
		{Index: 2, UUID: ""},
		{Index: 3, UUID: "GPU-c", Product: "NVIDIA A100\xff", PCI: "0000:86:00.0", Minor: 2, MIGEnabled: true, MIG: []gpu.MIGDevice{
			{Index: 0, UUID: "MIG-1", Profile: "1c.3g.40gb", GPUInstance: 1},
			{Index: 1, UUID: "MIG-2", Profile: "1c.3g.40gb", GPUInstance: 1, ComputeInstance: 1},
			{Index: 2, UUID: "MIG-3", Profile: "2g.20gb", GPUInstance: 5},
		}},
		{Index: 4, UUID: "GPU-a"}, // a broken driver
	}
	whole := func(id string) plan.Device { return plan.Device{ID: id, GPU: gpu.UUID(id)} }
	replica := func(n int, id string) plan.Device {
		return plan.Device{ID: id, GPU: "GPU-b", Replica: n, Replicas: 2}
	}
	mig := func(id string) plan.Device {
		return plan.Device{ID: id, GPU: "GPU-c", MIG: gpu.MIGDevice{UUID: gpu.UUID(id)}}
	}
	return Node{
		Devices: devices,
		Plan: plan.Plan{Resources: []plan.Resource{
			{Name: "nvidia.com/gpu", Devices: []plan.Device{whole("GPU-a")}},
			{Name: "nvidia.com/gpu.shared", Devices: []plan.Device{replica(0, "GPU-b::0"), replica(1, "GPU-b::1")}},
			{Name: "nvidia.com/mig-x", Devices: []plan.Device{mig("MIG-1"), mig("MIG-2"), mig("MIG-3")}},
		}},
		Read: func(_ context.Context, devices []gpu.Device) []gpu.Telemetry {
			all := make([]gpu.Telemetry, len(devices))
			for i, d := range devices {
				switch d.UUID {
				case "GPU-a":
					all[i].GPU = everything()
				case "GPU-b":
					all[i].GPU = gpu.Measurement{gpu.Temperature: 40}
				case "GPU-c":
					all[i] = gpu.Telemetry{GPU: memoryOnly(3 << 20), MIG: map[gpu.UUID]gpu.Measurement{"MIG-1": memoryOnly(1 << 20), "MIG-2": memoryOnly(1 << 20), "MIG-3": memoryOnly(2 << 20)}}
				}
			}
			return all
		},
	}
}

func holders() podLister {
	return podLister{pods: []*podresources.PodResources{
		pod("train", map[string][]string{"main": {"GPU-a"}}, "nvidia.com/gpu"),
		pod("share-1", map[string][]string{"main": {"GPU-b::0", "GPU-b::0"}}, "nvidia.com/gpu.shared"), // once for each NUMA node
		pod("share-2", map[string][]string{"main": {"GPU-b::1"}}, "nvidia.com/gpu.shared"),
		pod("slice", map[string][]string{"main": {"MIG-2"}}, "nvidia.com/mig-x"),
		pod("other", map[string][]string{"main": {"GPU-a"}}, "example.com/gpu"),
		pod("gone", map[string][]string{"main": {"GPU-z"}}, "nvidia.com/gpu"),
		pod("none", map[string][]string{"main": nil}, "nvidia.com/gpu"),
	}}
}

func scrape(t *testing.T, c *Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	return text.String()
}

func TestMetricsOfANode(t *testing.T) {
	c := NewCollector(Config{Node: node, PodResources: holders().start(t), DCGM: DCGM48, Hostname: "node-1"})
	c.CountXID("GPU-a", 13)
	c.CountXID("GPU-a", 31)
	golden.Require(t, "testdata/metrics.txt", scrape(t, c))
}

// The names are those that dcgm-exporter has had since 4.9, and what they stand for is the same in other units.
func TestNamesOfDCGM49(t *testing.T) {
	c := NewCollector(Config{Node: node, PodResources: holders().start(t), DCGM: DCGM49, Hostname: "node-1"})
	c.CountXID("GPU-a", 31)
	text := scrape(t, c)
	for name, value := range map[string]string{
		"SM_CLOCK_HERTZ": "1.98e+09", "MEMORY_CLOCK_HERTZ": "2.619e+09", "GPU_TEMP_CELSIUS": "71", "BOARD_POWER_WATTS": "612.345", "GPU_UTIL_RATIO": "0.57",
		"MEMORY_UTIL_RATIO": "0.41", "FB_FREE_BYTES": "5.2613349376e+10", "FB_USED_BYTES": "3.2212779008e+10", "ECC_SBE_VOL_TOTAL": "1", "ECC_DBE_AGG_TOTAL": "4",
		"ROW_REMAP_CORRECTABLE_TOTAL": "5", "ROW_REMAP_UNCORRECTABLE_TOTAL": "6", "XID_ERROR": "31",
	} {
		require.Regexp(t, `(?m)^DCGM_FI_DEV_`+name+`\{[^}]*UUID="GPU-a"[^}]*\} `+regexp.QuoteMeta(value)+`$`, text)
	}
	for _, old := range []string{"SM_CLOCK{", "GPU_UTIL{", "FB_USED{", "XID_ERRORS{", "REMAPPED_ROWS{"} {
		require.NotContains(t, text, "DCGM_FI_DEV_"+old)
	}
}

func TestTheReleaseOfDCGMIsOneOfTwo(t *testing.T) {
	for value, want := range map[string]DCGM{"true": DCGM48, "4.8": DCGM48, "4.9": DCGM49, "false": "", "": ""} {
		d := DCGM49
		require.NoError(t, d.Set(value))
		require.Equal(t, want, d)
	}
	var d DCGM
	require.EqualError(t, d.Set("5.0"), `"5.0" is neither 4.8 nor 4.9`)
}

func TestNamesFollowTheConventions(t *testing.T) {
	c := NewCollector(Config{Node: node, PodResources: holders().start(t)})
	c.CountXID("GPU-a", 13)
	text := scrape(t, c)
	require.NotContains(t, text, "DCGM", "only where it is asked for")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestScrapesShareAReading(t *testing.T) {
	var reads atomic.Int32
	c := NewCollector(Config{Node: func() Node {
		reads.Add(1)
		return node()
	}})
	first := scrape(t, c)
	require.Equal(t, first, scrape(t, c))
	require.EqualValues(t, 1, reads.Load())
	require.NotContains(t, first, "pods_known", "without a socket nothing is known of pods")
	c.last.at = c.last.at.Add(-maxSampleAge)
	scrape(t, c)
	require.EqualValues(t, 2, reads.Load())
}

// A kubelet that accepts and never answers, and GPUs that hang, delay a scrape by the limit.
func TestScrapeEndsWhenNothingAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "k")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	c := NewCollector(Config{ReadTimeout: 50 * time.Millisecond, PodResources: filepath.Join(dir, "s"), Node: func() Node {
		n := node()
		n.Read = func(ctx context.Context, devices []gpu.Device) []gpu.Telemetry {
			<-ctx.Done()
			return make([]gpu.Telemetry, len(devices))
		}
		return n
	}})
	text := scrape(t, c)
	require.Contains(t, text, "gpuready_gpu_pods_known 0\n")
	require.NotContains(t, text, "temperature")
	require.Contains(t, text, `gpuready_gpu_xids_total{gpu="0",model="NVIDIA H100 80GB HBM3",uuid="GPU-a"} 0`, "from the start, for alerts")
}

func TestNothingIsServedWithoutADriver(t *testing.T) {
	require.Empty(t, scrape(t, NewCollector(Config{Node: func() Node { return Node{} }})))
}

// gpu-dra-driver names devices to the container runtime by their UUIDs.
func TestPodsWithClaimsHoldTheirDevices(t *testing.T) {
	claimed := func(name, driver string, devices ...string) *podresources.PodResources {
		p := pod(name, map[string][]string{"main": nil}, "nvidia.com/gpu")
		r := &podresources.ClaimResource{DriverName: driver, PoolName: "node-1", DeviceName: "gpu-0"}
		for _, d := range devices {
			r.CdiDevices = append(r.CdiDevices, &podresources.CDIDevice{Name: d})
		}
		p.Containers[0].DynamicResources = []*podresources.DynamicResource{{ClaimName: name, ClaimNamespace: p.GetNamespace(), ClaimResources: []*podresources.ClaimResource{r}}}
		return p
	}
	lister := podLister{pods: []*podresources.PodResources{
		claimed("train", "gpu.nvidia.com", "k8s.gpuready.io/gpu=GPU-a"),
		claimed("share", "gpu.nvidia.com", "k8s.gpuready.io/gpu=GPU-b", "k8s.gpuready.io/mps=GPU-b"),
		claimed("slice", "gpu.nvidia.com", "nvidia.com/gpu=MIG-2"),
		claimed("network", "dra.net", "k8s.gpuready.io/gpu=GPU-a"),
		claimed("other", "gpu.nvidia.com", "k8s.gpu.nvidia.com/device=7c3a-gpu-0"),
		claimed("watch", "gpu.nvidia.com", "k8s.gpuready.io/gpu=GPU-a", "k8s.gpuready.io/gpu=MIG-2"),
	}}
	admin := func() []nodestate.ClaimedDevice {
		return []nodestate.ClaimedDevice{{Claim: "default/watch", GPU: "GPU-a"}, {Claim: "default/watch", GPU: "MIG-2"}, {Claim: "default/watch", GPU: "GPU-b"}}
	}
	held, err := readHolders(t.Context(), lister.start(t), plan.Plan{}, admin)
	require.NoError(t, err)
	namespace := lister.pods[0].GetNamespace()
	require.Equal(t, map[gpu.UUID][]holder{
		"GPU-a": {{namespace, "train", "main"}}, "GPU-b": {{namespace, "share", "main"}}, "MIG-2": {{namespace, "slice", "main"}},
	}, held)
}

// Where the driver reports no XIDs, their number is not 0 but unknown.
func TestAGPUWithoutXIDsHasNoMetricOfThem(t *testing.T) {
	n := node()
	n.Devices[1].Notes = []gpu.Note{{Reason: gpu.NoteNoXIDs}}
	text := scrape(t, NewCollector(Config{Node: func() Node { return n }}))
	require.Contains(t, text, `gpuready_gpu_xids_total{gpu="0",model="NVIDIA H100 80GB HBM3",uuid="GPU-a"} 0`)
	require.NotContains(t, text, `gpuready_gpu_xids_total{gpu="1"`)
}

// What is not known of a GPU is no name of another.
func TestDCGMLabelsOfAGPUWithoutAnAddress(t *testing.T) {
	n := node()
	n.Devices[0].Minor, n.Devices[0].PCI = -1, ""
	text := scrape(t, NewCollector(Config{Node: func() Node { return n }, DCGM: DCGM48, Hostname: "node-1"}))
	require.Contains(t, text, `DCGM_FI_DEV_XID_ERRORS{GPU_I_ID="",GPU_I_PROFILE="",UUID="GPU-a",container="",device="",gpu="0",`)
	require.NotContains(t, text, "nvidia-1")
	require.NotContains(t, text, `pci_bus_id="0000"`)
}
