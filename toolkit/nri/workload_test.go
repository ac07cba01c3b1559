package nri

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
)

const gpuSpec = `cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [DRIVER=580]
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-modeset}]
  mounts:
  - {hostPath: /usr/lib64/libcuda.so.580.95.05, containerPath: /lib/libcuda.so.580.95.05, options: [ro, rbind]}
  - {hostPath: /usr/lib64/libnvidia-encode.so.1, containerPath: /lib/libnvidia-encode.so.1, options: [ro, rbind]}
  hooks: [{hookName: createContainer, path: /hook, args: [hook, update-ldcache]}]
devices:
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0}]}}
- {name: "1", containerEdits: {deviceNodes: [{path: /dev/nvidia1, hostPath: /run/driver/dev/nvidia1}, {path: /dev/nvidiactl}]}}
- {name: "2", containerEdits: {deviceNodes: [{path: /dev/nvidia2, hostPath: /run/driver/dev/nvidia2}]}}
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0}, {path: /dev/nvidia1, hostPath: /run/driver/dev/nvidia1}]
`

// newTable returns the table of a node with two GPUs, and a third one that only exists
// in the specification.
func newTable(t *testing.T, root *host.Root) *Table {
	t.Helper()
	for p, minor := range map[string]int{"/dev/nvidiactl": 255, "/dev/nvidia-modeset": 254, "/run/driver/dev/nvidia0": 0, "/run/driver/dev/nvidia1": 1} {
		mknod(t, root, p, minor)
	}
	parsed, err := cdi.Parse([]byte(gpuSpec))
	require.NoError(t, err)
	return NewTable(root, []cdi.File{{Path: "/var/run/cdi/nvidia.yaml", Kind: parsed.Kind, Spec: parsed}})
}

// workload returns a container of an allowed namespace.
func workload(env ...string) (*api.PodSandbox, *api.Container) {
	return &api.PodSandbox{Id: "w", Name: "job", Namespace: "team"}, &api.Container{Id: "x", PodSandboxId: "w", Name: "main", Env: env}
}

// devices returns the names of the added nodes, without /dev/nvidia.
func devices(a *api.ContainerAdjustment) string {
	var names []string
	for _, d := range a.GetLinux().GetDevices() {
		names = append(names, strings.TrimPrefix(d.GetPath(), "/dev/nvidia"))
	}
	return strings.Join(names, " ")
}

func TestWorkloadsReceiveWhatTheyRequest(t *testing.T) {
	root := newHost(t)
	table := newTable(t, root)
	null := func(at string) func(*api.PodSandbox, *api.Container) {
		return func(_ *api.PodSandbox, c *api.Container) {
			c.Mounts = append(c.Mounts, &api.Mount{Source: "/dev/null", Destination: at})
		}
	}
	for name, c := range map[string]struct {
		env    string
		change func(*api.PodSandbox, *api.Container)
		accept bool
		want   string // devices
		warns  string
	}{
		"nothing":               {},
		"void":                  {env: "void"},
		"one by index":          {env: "1", want: "ctl 1"},
		"two":                   {env: "1,0", want: "ctl 1 0"},
		"by CDI name":           {env: "nvidia.com/gpu=0", want: "ctl -modeset 0"},
		"all, as images say":    {env: "all", warns: "cdi.k8s.io/gpus"},
		"none, as images say":   {env: "none", warns: "not honoured"},
		"all, accepted":         {env: "all", accept: true, want: "ctl 0 1"},
		"all, which it has":     {env: "all", accept: true, change: func(_ *api.PodSandbox, c *api.Container) { addNodes(c, 255, 0, 1) }},
		"all, but one is given": {env: "all", accept: true, change: func(_ *api.PodSandbox, c *api.Container) { addNodes(c, 0) }, warns: "already has other GPUs"},
		"given by the kubelet": {env: "1", change: func(_ *api.PodSandbox, c *api.Container) {
			c.CDIDevices = []*api.CDIDevice{{Name: "k8s.gpuready.io/gpu=GPU-a"}}
		}},
		"another vendor's is given": {env: "1", want: "ctl 1", change: func(_ *api.PodSandbox, c *api.Container) {
			c.CDIDevices = []*api.CDIDevice{{Name: "x.y/z=1"}}
		}},
		"another is given":  {env: "1", change: func(_ *api.PodSandbox, c *api.Container) { addNodes(c, 0) }, warns: "it gets no more"},
		"an image's, given": {env: "all", change: func(_ *api.PodSandbox, c *api.Container) { addNodes(c, 0) }},
		"its node is given": {env: "1", want: "ctl", change: func(_ *api.PodSandbox, c *api.Container) { addNodes(c, 1) }},
		"by mount":          {change: null("/var/run/nvidia-container-devices/0"), want: "ctl 0"},
		"by the pod": {env: "all", want: "ctl -modeset 0 1", change: func(p *api.PodSandbox, _ *api.Container) {
			p.Annotations = map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=all"}
		}},
		"by its annotation": {want: "ctl -modeset 1", change: func(_ *api.PodSandbox, c *api.Container) {
			c.Annotations = map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=1"}
		}},
		"another namespace":  {env: "9", change: func(p *api.PodSandbox, _ *api.Container) { p.Namespace = "teams" }},
		"only much like one": {env: "9", change: func(p *api.PodSandbox, _ *api.Container) { p.Namespace = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			pod, container := workload()
			if c.env != "" {
				container.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + c.env}
			}
			if c.change != nil {
				c.change(pod, container)
			}
			w := Workloads{Namespaces: []string{"other", "team"}, AcceptEnvvar: c.accept}
			adjust, asked, err := w.Resolve(table, pod, container)
			require.NoError(t, err)
			if c.want == "" && !strings.Contains(name, "which it has") {
				require.Nil(t, adjust)
			}
			require.Equal(t, c.want, devices(adjust))
			require.Contains(t, strings.Join(asked.Warnings, ""), c.warns)
			require.Equal(t, c.warns != "", len(asked.Warnings) > 0)
		})
	}
}

// addNodes adds device nodes to a container, the control node by its minor number 255.
func addNodes(c *api.Container, minors ...int64) {
	c.Linux = &api.LinuxContainer{}
	for _, minor := range minors {
		p := map[int64]string{0: "/dev/nvidia0", 1: "/dev/nvidia1", 255: "/dev/nvidiactl"}[minor]
		c.Linux.Devices = append(c.Linux.Devices, &api.LinuxDevice{Path: p, Type: "c", Major: 195, Minor: minor})
	}
}

func TestCapabilitiesChooseTheDriversFiles(t *testing.T) {
	table := newTable(t, newHost(t))
	for capabilities, want := range map[string]string{"": "libcuda.so.580.95.05", "compute": "libcuda.so.580.95.05", "video": "libnvidia-encode.so.1", "compute,video": "libcuda.so.580.95.05 libnvidia-encode.so.1"} {
		pod, container := workload("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES="+capabilities)
		adjust, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
		require.NoError(t, err)
		var mounts []string
		for _, m := range adjust.GetMounts() {
			require.Equal(t, "bind", m.GetType())
			mounts = append(mounts, strings.TrimPrefix(m.GetDestination(), "/lib/"))
		}
		require.Equal(t, want, strings.Join(mounts, " "), capabilities)
		require.Len(t, adjust.GetHooks().GetCreateContainer(), 1)
		require.Equal(t, "DRIVER=580", adjust.GetEnv()[0].ToOCI())
	}
}

func TestWorkloadsWithUnmetRequestsDoNotStart(t *testing.T) {
	root := newHost(t)
	table := newTable(t, root)
	for env, want := range map[string]string{
		"9":                `there is no GPU "9" on this node; there are 0, 1, 2, all`,
		"0,9":              `no GPU "9"`,
		"nvidia.com/gpu=9": "there is no nvidia.com/gpu=9 on this node; of this kind there are 0, 1, 2, all",
		"x.y/z=1":          "x.y/z",
		"2":                "/dev/nvidia2 does not exist",
		"0 NVIDIA_REQUIRE_CUDA=cuda>=99 NVIDIA_REQUIRE_X=driver>=999": "NVIDIA_DISABLE_REQUIRE",
		"0 NVIDIA_MIG_CONFIG_DEVICES=all":                             "only privileged",
		"0 NVIDIA_DRIVER_CAPABILITIES=gfx":                            `"gfx" is no driver capability`,
	} {
		pod, container := workload(strings.Fields("NVIDIA_VISIBLE_DEVICES=" + env)...)
		adjust, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "container main of pod team/job")
		require.Nil(t, adjust)
	}
	pod, container := workload("NVIDIA_VISIBLE_DEVICES=0")
	for _, c := range []struct {
		table *Table
		want  string
	}{{nil, "will be retried"}, {EmptyTable("no driver"), "no driver"}, {NewTable(root, nil), "check that the driver is loaded"}} {
		_, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(c.table, pod, container)
		require.ErrorContains(t, err, c.want)
	}
	_, container = workload("NVIDIA_VISIBLE_DEVICES=all")
	_, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(nil, pod, container)
	require.NoError(t, err, "it may not ask so, and starts as it would elsewhere")
}

// Runtimes wait for the response: it must not depend on a disk.
func TestResolveOnlyUsesTheTable(t *testing.T) {
	root := newHost(t)
	table := newTable(t, root)
	require.NoError(t, os.RemoveAll(root.Path("/run/driver")))
	require.NoError(t, os.RemoveAll(root.Path("/dev")))
	pod, container := workload("NVIDIA_VISIBLE_DEVICES=0")
	for range 2 {
		adjust, _, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
		require.NoError(t, err)
		require.Equal(t, "ctl 0", devices(adjust))
	}
}

func TestContainersOfOtherNamespacesCostNothing(t *testing.T) {
	table := newTable(t, newHost(t))
	pod, container := workload("NVIDIA_VISIBLE_DEVICES=0")
	pod.Namespace = "default"
	w := Workloads{Namespaces: []string{"team"}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if adjust, _, err := w.Resolve(table, pod, container); adjust != nil || err != nil {
			panic("it was touched")
		}
	}))
}

func FuzzResolve(f *testing.F) {
	f.Add("0,GPU-a", "compute", "nvidia.com/gpu=0", "/var/run/nvidia-container-devices/cdi/a/b/c")
	table := &Table{}
	f.Fuzz(func(t *testing.T, visible, capabilities, annotation, mount string) {
		pod, container := workload("NVIDIA_VISIBLE_DEVICES="+visible, "NVIDIA_DRIVER_CAPABILITIES="+capabilities)
		pod.Annotations = map[string]string{"cdi.k8s.io/a": annotation}
		container.Mounts = []*api.Mount{{Source: "/dev/null", Destination: mount}}
		adjust, asked, err := Workloads{Namespaces: []string{"team"}}.Resolve(table, pod, container)
		if adjust != nil || err == nil && !asked.Empty() {
			t.Fatal("something was made of nothing")
		}
	})
}
