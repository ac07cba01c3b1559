package allocate_test

import (
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
	spec "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func parse(t testing.TB, text string) *config.Config {
	t.Helper()
	c, _, err := config.Parse([]byte(text), "config.yaml", config.Options{})
	require.NoError(t, err)
	return c
}

// node has two GPUs, of which the second has three MIG devices.
func node() gpu.Snapshot {
	s := gputest.Node("a100-80gb", 2)
	s.Devices[1] = gputest.WithMIG(s.Devices[1], "1g.10gb", "1g.10gb", "3g.40gb")
	return s
}

func host() allocate.DeviceNodes {
	s := node()
	h := allocate.DeviceNodes{
		DevRoot: "/run/nvidia/driver",
		Control: []string{"/dev/nvidiactl", "/dev/nvidia-uvm"},
		GPUs:    map[gpu.UUID][]string{},
		GDRCopy: []string{"/dev/gdrdrv"},
		GDS:     []string{"/dev/nvidia-fs0", "/dev/nvidia-fs1"},
		MOFED:   []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"},
		Imex:    []int{0},
	}
	for _, d := range s.Devices {
		node := "/dev/nvidia" + strconv.Itoa(d.Minor)
		h.GPUs[d.UUID] = []string{node}
		for i, m := range d.MIG {
			h.GPUs[m.UUID] = []string{node, "/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(10+i), "/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(20+i)}
		}
	}
	return h
}

func resource(t testing.TB, c *config.Config, s gpu.Snapshot, name string) plan.Resource {
	t.Helper()
	p := plan.Compute(c, s, health.New(gpu.Fault{}).ApplySnapshot(s, time.Unix(0, 0)))
	for _, r := range p.Resources {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("there is no %s in %+v", name, p)
	return plan.Resource{}
}

// It covers each device list strategy.
func TestResponses(t *testing.T) {
	for name, c := range map[string]struct {
		config, resource string
		take             []int
	}{
		"cdi-cri":               {"version: v1", "nvidia.com/gpu", []int{0, 1}},
		"cdi-cri-everything":    {"flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true, plugin: {passDeviceSpecs: true}}\nimex: {channelIDs: [0]}", "nvidia.com/gpu", []int{0}},
		"cdi-annotations":       {"flags: {plugin: {deviceListStrategy: cdi-annotations}}", "nvidia.com/gpu", []int{0, 1}},
		"cdi-annotations-own":   {"flags: {plugin: {deviceListStrategy: cdi-annotations, cdiAnnotationPrefix: nvidia.cdi.k8s.io/, deviceIDStrategy: index}}", "nvidia.com/gpu", []int{0}},
		"envvar":                {"flags: {plugin: {deviceListStrategy: envvar}}", "nvidia.com/gpu", []int{0, 1}},
		"envvar-everything":     {"flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true, plugin: {deviceListStrategy: envvar, passDeviceSpecs: true}}\nimex: {channelIDs: [0]}", "nvidia.com/gpu", []int{0}},
		"envvar-index-mig":      {"flags: {migStrategy: mixed, plugin: {deviceListStrategy: envvar, deviceIDStrategy: index, passDeviceSpecs: true}}", "nvidia.com/mig-1g.10gb", []int{0, 1}},
		"volume-mounts-gds":     {"flags: {gdsEnabled: true, plugin: {deviceListStrategy: volume-mounts}}", "nvidia.com/gpu", []int{0}},
		"volume-mounts":         {"flags: {plugin: {deviceListStrategy: volume-mounts}}\nimex: {channelIDs: [0]}", "nvidia.com/gpu", []int{0, 1}},
		"envvar-and-annotation": {"flags: {plugin: {deviceListStrategy: [envvar, cdi-annotations]}}", "nvidia.com/gpu", []int{0}},
		"replicas-of-one-gpu":   {"flags: {plugin: {deviceListStrategy: envvar}}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", "nvidia.com/gpu", []int{0, 1}},
		"mps-cdi":               {"sharing: {mps: {resources: [{name: gpu, rename: gpu.shared, replicas: 2, devices: [0]}]}}", "nvidia.com/gpu.shared", []int{1}},
		"mps-envvar":            {"flags: {mpsRoot: /srv/mps, plugin: {deviceListStrategy: envvar}}\nsharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}", "nvidia.com/gpu", []int{0}},
		"mig-cdi":               {"flags: {migStrategy: mixed}", "nvidia.com/mig-3g.40gb", []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := parse(t, c.config)
			r := resource(t, cfg, node(), c.resource)
			h := host()
			if len(cfg.Imex.ChannelIDs) == 0 {
				h.Imex = nil
			}
			var ids []string
			for _, i := range c.take {
				ids = append(ids, r.Devices[i].ID)
			}
			resp, err := allocate.New(cfg, h, r).Allocate(ids)
			require.NoError(t, err)
			data, err := protojson.Marshal(resp)
			require.NoError(t, err)
			got, err := yaml.JSONToYAML(data)
			require.NoError(t, err)
			golden.Require(t, "testdata/"+name+".yaml", got)
		})
	}
}

func TestAnnotationsAreValidAndDifferForEachResource(t *testing.T) {
	cfg := parse(t, "flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-annotations}}")
	all := map[string]string{}
	for _, name := range []string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"} {
		r := resource(t, cfg, node(), name)
		resp, err := allocate.New(cfg, host(), r).Allocate([]string{r.Devices[0].ID})
		require.NoError(t, err)
		maps.Copy(all, resp.GetAnnotations())
	}
	keys, devices, err := spec.ParseAnnotations(all)
	require.NoError(t, err)
	require.Len(t, keys, 3)
	require.Len(t, devices, 3)
}

// Errors appear in the pod's events.
func TestRefusalsHaveAReason(t *testing.T) {
	broken := node()
	broken.Devices[0].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off the bus"}
	id := string(gputest.GPU(0))
	noCaps := host()
	delete(noCaps.GPUs, node().Devices[1].MIG[0].UUID)
	mig := string(node().Devices[1].MIG[0].UUID)
	shared := "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, rename: gpu.shared, replicas: 40}]}}"
	for name, c := range map[string]struct {
		config, resource string
		snapshot         gpu.Snapshot
		host             allocate.DeviceNodes
		ids              []string
		code             codes.Code
		says             string
	}{
		"nothing": {"", "gpu", node(), host(), nil, codes.InvalidArgument, "no devices of nvidia.com/gpu were requested"},
		"unknown": {"", "gpu", node(), host(), []string{"GPU-x"}, codes.NotFound, `nvidia.com/gpu has no device "GPU-x"; it has ` + id + ", "},
		"unknown, of a list too long for an event": {shared, "gpu.shared", node(), host(), []string{"GPU-x"}, codes.NotFound,
			`nvidia.com/gpu.shared has no device "GPU-x"; it has ` + id + "::0, " + string(gputest.GPU(1)) + "::0"},
		"twice":     {"", "gpu", node(), host(), []string{id, id}, codes.InvalidArgument, "device " + id + " was requested twice"},
		"unhealthy": {"", "gpu", broken, host(), []string{id}, codes.FailedPrecondition, "device " + id + " has been unhealthy since 1970-01-01T00:00:00Z: GPULost: fell off the bus"},
		"two parts": {shared, "gpu.shared", node(), host(), []string{id + "::0", id + "::1"}, codes.InvalidArgument,
			"a container may have one nvidia.com/gpu.shared and requested 2: it is a part of a shared GPU, and more parts do not give more of the GPU; request 1"},
		"no nodes": {"flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}", "mig-1g.10gb", node(), noCaps, []string{mig}, codes.FailedPrecondition,
			"the device nodes of " + mig + " are not known"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := parse(t, "version: v1\n"+c.config)
			_, err := allocate.New(cfg, c.host, resource(t, cfg, c.snapshot, "nvidia.com/"+c.resource)).Allocate(c.ids)
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.Contains(t, status.Convert(err).Message(), c.says)
		})
	}
}

// The device plugin does not learn whose pod it is that is refused.
func TestARefusalNamesNoClaim(t *testing.T) {
	cfg, r := parse(t, "version: v1"), resource(t, parse(t, "version: v1"), node(), "nvidia.com/gpu")
	r.Devices[0].Fault = gpu.Fault{Reason: "HeldByClaim", Message: "held by claim secret/job (8a1f)"}
	_, err := allocate.New(cfg, host(), r).Allocate([]string{r.Devices[0].ID})
	require.ErrorContains(t, err, ": HeldByClaim; next: ")
	require.NotContains(t, err.Error(), "secret")
}

// With CDI no response sets the variable that the NVIDIA container runtime uses, or the
// container would get its GPUs twice. The given device nodes belong to the allocated
// devices alone, each once.
func TestResponseHasExactlyTheDevices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		strategy := rapid.SampledFrom([]string{"cdi-cri", "cdi-annotations", "envvar", "volume-mounts"}).Draw(t, "strategy")
		replicas := rapid.IntRange(0, 4).Draw(t, "replicas")
		text := "flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true, deviceListStrategy: " + strategy + "}}\n"
		if replicas > 1 {
			text += "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: " + strconv.Itoa(replicas) + "}]}}"
		}
		c, _, err := config.Parse([]byte(text), "", config.Options{})
		require.NoError(t, err)
		s := node()
		p := plan.Compute(c, s, health.New(gpu.Fault{}).ApplySnapshot(s, time.Unix(0, 0)))
		r := rapid.SampledFrom(p.Resources).Draw(t, "resource")
		chosen := rapid.SliceOfNDistinct(rapid.IntRange(0, len(r.Devices)-1), 1, len(r.Devices), rapid.ID[int]).Draw(t, "chosen")
		var ids []string
		want := map[string]bool{}
		nodes := map[string]bool{"/dev/nvidiactl": true, "/dev/nvidia-uvm": true}
		h := host()
		h.Imex = nil
		for _, i := range chosen {
			ids = append(ids, r.Devices[i].ID)
			want[string(r.Devices[i].UUID())] = true
			for _, node := range h.GPUs[r.Devices[i].UUID()] {
				nodes[node] = true
			}
		}
		resp, err := allocate.New(c, h, r).Allocate(ids)
		require.NoError(t, err)
		var got []string
		for _, d := range resp.GetCdiDevices() {
			got = append(got, strings.TrimPrefix(d.GetName(), "k8s.gpuready.io/gpu="))
		}
		for _, value := range resp.GetAnnotations() {
			for name := range strings.SplitSeq(value, ",") {
				got = append(got, strings.TrimPrefix(name, "k8s.gpuready.io/gpu="))
			}
		}
		switch value, set := resp.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]; {
		case strings.HasPrefix(strategy, "cdi"):
			require.False(t, set)
		case strategy == "envvar":
			got = append(got, strings.Split(value, ",")...)
		default:
			require.Equal(t, "/var/run/nvidia-container-devices", value)
			for _, m := range resp.GetMounts() {
				got = append(got, filepath.Base(m.GetContainerPath()))
			}
		}
		require.Len(t, got, len(want))
		for _, id := range got {
			require.True(t, want[id], id)
		}
		require.Len(t, resp.GetDevices(), len(nodes))
		for _, d := range resp.GetDevices() {
			require.True(t, nodes[d.GetContainerPath()], d.GetContainerPath())
			require.Equal(t, "/run/nvidia/driver"+d.GetContainerPath(), d.GetHostPath())
		}
	})
}

func TestWholeGPUIsRefusedBesideAnMPSPart(t *testing.T) {
	const text = "sharing: {%s: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2, devices: [0]}]}}"
	s := gputest.Node("t4", 3)
	of := func(strategy string) *allocate.Resource {
		c := parse(t, strings.Replace(text, "%s", strategy, 1))
		return allocate.New(c, host(), resource(t, c, s, "nvidia.com/gpu"))
	}
	part, other := string(gputest.GPU(0))+"::0", string(gputest.GPU(0))+"::1"
	whole, more := string(gputest.GPU(1)), string(gputest.GPU(2))
	for _, ids := range [][]string{{part, whole}, {whole, part}, {part, other, whole}} {
		_, err := of("mps").Allocate(ids)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "a whole GPU and a part of a GPU")
		require.ErrorContains(t, err, "rename")
		_, err = of("timeSlicing").Allocate(ids)
		require.NoError(t, err, "there is no daemon")
	}
	for _, ids := range [][]string{{part, other}, {whole, more}, {whole}} {
		_, err := of("mps").Allocate(ids)
		require.NoError(t, err)
	}
}

func BenchmarkAllocateOfManyReplicas(b *testing.B) {
	cfg := parse(b, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 6000}]}}")
	s := gputest.Node("a100-80gb", 8)
	r := resource(b, cfg, s, "nvidia.com/gpu")
	a := allocate.New(cfg, allocate.DeviceNodes{}, r)
	var resp *v1beta1.ContainerAllocateResponse
	for b.Loop() {
		resp, _ = a.Allocate([]string{r.Devices[len(r.Devices)-1].ID})
	}
	require.Len(b, resp.GetCdiDevices(), 1)
}
