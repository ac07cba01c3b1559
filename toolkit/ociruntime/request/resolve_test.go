package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// file returns a specification in which each device has the node
// /dev/<kind's class>-<name>, which is the host's /dev/null.
func file(path, kind string, names ...string) cdi.File {
	node := func(p string) *specs.DeviceNode {
		return &specs.DeviceNode{Path: p, HostPath: "/dev/null", Permissions: "rw"}
	}
	const lib = "/usr/lib/x86_64-linux-gnu/"
	var mounts []*specs.Mount
	for _, p := range []string{lib + "libcuda.so.570.1", lib + "libnvidia-ml.so.570.1", lib + "libnvidia-encode.so.570.1", lib + "libEGL_nvidia.so.570.1", "/usr/bin/nvidia-smi"} {
		mounts = append(mounts, &specs.Mount{HostPath: p, ContainerPath: p})
	}
	s := &specs.Spec{Version: "0.5.0", Kind: kind, ContainerEdits: specs.ContainerEdits{
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
		DeviceNodes: []*specs.DeviceNode{node("/dev/nvidiactl"), node("/dev/nvidia-modeset")},
		Mounts:      mounts,
		Hooks: []*specs.Hook{
			{HookName: "createContainer", Path: "/hook", Args: []string{"hook", "create-symlinks", "--link", "x::" + lib + "libcuda.so", "--link", "y::" + lib + "libEGL_nvidia.so.0"}},
			{HookName: "createContainer", Path: "/hook", Args: []string{"hook", "update-ldcache", "--folder", lib}},
		},
	}}
	for _, n := range names {
		s.Devices = append(s.Devices, specs.Device{Name: n, ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{node("/dev/" + n)}}})
	}
	return cdi.File{Path: path, Kind: kind, Spec: s}
}

// nodeSpecs returns the specifications of a node.
func nodeSpecs() []cdi.File {
	management := file("/m.yaml", cdi.KindManagement, "all")
	management.Spec.Devices[0].ContainerEdits.DeviceNodes[0].Path = "/dev/nvidia-caps/nvidia-cap1"
	gds := file("/gds.yaml", "nvidia.com/gds", "all")
	gds.Spec.ContainerEdits = specs.ContainerEdits{}
	channels := file("/imex.yaml", "nvidia.com/imex-channel", "0", "1")
	channels.Spec.ContainerEdits = specs.ContainerEdits{}
	return []cdi.File{
		file("/n.yaml", cdi.KindNVIDIA, "0", "1", "0:1", "GPU-a", "GPU-b", "MIG-c", "all"),
		file("/k.yaml", cdi.KindGPU, "GPU-a", "GPU-b", "MIG-c"),
		management, gds, channels,
	}
}

func source(files []cdi.File) Source {
	return func(kinds ...string) ([]cdi.File, error) {
		return slices.DeleteFunc(slices.Clone(files), func(f cdi.File) bool { return !slices.Contains(kinds, f.Kind) }), nil
	}
}

func asking(names ...string) Request {
	return Request{Devices: names, Capabilities: defaultCapabilities}
}

func nodes(spec *oci.Spec) (list []string) {
	if spec.Linux == nil {
		return nil
	}
	for _, d := range spec.Linux.Devices {
		list = append(list, d.Path)
	}
	slices.Sort(list)
	return list
}

func mounts(spec *oci.Spec) (list []string) {
	for _, m := range spec.Mounts {
		list = append(list, m.Destination[len("/usr/"):])
	}
	slices.Sort(list)
	return list
}

func TestNamesAreResolved(t *testing.T) {
	ours := nodeSpecs()[1:]
	ambiguous := append(nodeSpecs(), file("/other.yaml", cdi.KindNVIDIA, "0", "GPU-a", "all"))
	for name, c := range map[string]struct {
		files []cdi.File
		r     Request
		want  []string // besides /dev/nvidiactl
	}{
		"index":             {nodeSpecs(), asking("1"), []string{"/dev/1"}},
		"two":               {nodeSpecs(), asking("0", "1"), []string{"/dev/0", "/dev/1"}},
		"MIG by place":      {nodeSpecs(), asking("0:1"), []string{"/dev/0:1"}},
		"UUID":              {nodeSpecs(), asking("GPU-a"), []string{"/dev/GPU-a"}},
		"all":               {nodeSpecs(), asking("all"), []string{"/dev/all"}},
		"UUID, ours alone":  {ours, asking("MIG-c"), []string{"/dev/MIG-c"}},
		"all, ours alone":   {ours, asking("all"), []string{"/dev/GPU-a", "/dev/GPU-b", "/dev/MIG-c"}},
		"UUID, ambiguous":   {ambiguous, asking("GPU-a"), []string{"/dev/GPU-a"}},
		"all, our kind":     {nodeSpecs(), asking("k8s.gpuready.io/gpu=all"), []string{"/dev/GPU-a", "/dev/GPU-b", "/dev/MIG-c", "/dev/nvidia-modeset"}},
		"all, ambiguous":    {ambiguous, asking("all"), []string{"/dev/GPU-a", "/dev/GPU-b", "/dev/MIG-c"}},
		"CDI name":          {nodeSpecs(), asking("k8s.gpuready.io/gpu=GPU-b"), []string{"/dev/GPU-b", "/dev/nvidia-modeset"}},
		"MIG configuration": {nodeSpecs(), Request{Devices: []string{"0"}, Capabilities: defaultCapabilities, MIGConfig: true}, []string{"/dev/0", "/dev/nvidia-caps/nvidia-cap1"}},
		"feature":           {nodeSpecs(), Request{Devices: []string{"0"}, Capabilities: defaultCapabilities, Features: []string{"gds"}}, []string{"/dev/0", "/dev/all"}},
		"channel":           {nodeSpecs(), Request{Devices: []string{"GPU-a"}, Capabilities: defaultCapabilities, Channels: []string{"1"}}, []string{"/dev/1", "/dev/GPU-a"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &oci.Spec{}
			warnings, err := c.r.Fulfill(spec, source(c.files))
			require.NoError(t, err)
			require.Empty(t, warnings)
			want := append([]string{"/dev/nvidiactl"}, c.want...)
			require.ElementsMatch(t, want, nodes(spec))
			require.Len(t, spec.Linux.Resources.Devices, len(want), "a rule for each")
			require.Equal(t, []string{"NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env, "a second runtime above or below finds nothing to do")
		})
	}
}

func TestCapabilitiesFilter(t *testing.T) {
	const lib = "lib/x86_64-linux-gnu/"
	for _, c := range []struct {
		set     Capabilities
		mounts  []string
		modeset bool
		hooks   int
	}{
		{defaultCapabilities, []string{"bin/nvidia-smi", lib + "libcuda.so.570.1", lib + "libnvidia-ml.so.570.1"}, false, 2},
		{utility, []string{"bin/nvidia-smi", lib + "libnvidia-ml.so.570.1"}, false, 1},
		{graphics, []string{lib + "libEGL_nvidia.so.570.1"}, true, 2},
		{video | compute, []string{lib + "libcuda.so.570.1", lib + "libnvidia-encode.so.570.1"}, false, 2},
		{allCapabilities, []string{"bin/nvidia-smi", lib + "libEGL_nvidia.so.570.1", lib + "libcuda.so.570.1", lib + "libnvidia-encode.so.570.1", lib + "libnvidia-ml.so.570.1"}, true, 2},
	} {
		spec := &oci.Spec{}
		_, err := Request{Devices: []string{"0"}, Capabilities: c.set}.Fulfill(spec, source(nodeSpecs()))
		require.NoError(t, err)
		require.Equal(t, c.mounts, mounts(spec), c.set)
		require.Equal(t, c.modeset, slices.Contains(nodes(spec), "/dev/nvidia-modeset"), c.set)
		require.Len(t, spec.Hooks.CreateContainer, c.hooks, c.set)
	}
	spec := &oci.Spec{}
	_, err := asking("0").Fulfill(spec, source(nodeSpecs()))
	require.NoError(t, err)
	require.Equal(t, []string{"hook", "create-symlinks", "--link", "x::/usr/lib/x86_64-linux-gnu/libcuda.so"}, spec.Hooks.CreateContainer[0].Args)
}

func TestCapabilitiesFilterHooksOfOneProcess(t *testing.T) {
	const lib = "/usr/lib/x86_64-linux-gnu/"
	links := []string{"create-symlinks", "--link", "x::" + lib + "libcuda.so", "--link=y::" + lib + "libEGL_nvidia.so.0"}
	cache := []string{"update-ldcache", "--folder", lib}
	profile := []string{"update-application-profile"}
	for _, c := range []struct {
		set  Capabilities
		args []string
		want []string
	}{
		{defaultCapabilities, joined.Args(links, cache), joined.Args([]string{"create-symlinks", "--link", "x::" + lib + "libcuda.so"}, cache)},
		{graphics, joined.Args(links, cache), joined.Args([]string{"create-symlinks", "--link", "y::" + lib + "libEGL_nvidia.so.0"}, cache)},
		{utility, joined.Args(links, cache), cache},
		{utility, links, nil},
		{compute | utility, joined.Args(cache, profile), cache},
		{graphics, joined.Args(cache, profile), joined.Args(cache, profile)},
		{compute | display, joined.Args(cache, profile), joined.Args(cache, profile)},
		{video, profile, nil},
		{utility, []string{"all", "of", "another"}, []string{"all", "of", "another"}},
	} {
		got := filterHook(&specs.Hook{Args: append([]string{"hook"}, c.args...)}, c.set)
		if c.want == nil {
			require.Nil(t, got)
			continue
		}
		require.Equal(t, append([]string{"hook"}, c.want...), got.Args)
	}
}

func TestDriverWithoutADevice(t *testing.T) {
	spec := &oci.Spec{}
	_, err := Request{DriverOnly: true, Capabilities: defaultCapabilities}.Fulfill(spec, source(nodeSpecs()))
	require.NoError(t, err)
	require.Empty(t, nodes(spec))
	require.Len(t, spec.Mounts, 3)
}

func TestExistingEditsAreNotRepeated(t *testing.T) {
	for _, names := range [][]string{{"nvidia.com/gpu=0", "nvidia.com/gpu=all"}, {"0", "1"}, {"k8s.gpuready.io/gpu=GPU-a", "nvidia.com/gpu=0"}} {
		spec := &oci.Spec{Process: &oci.Process{Env: []string{"A=b"}}}
		_, err := asking(names...).Fulfill(spec, source(nodeSpecs()))
		require.NoError(t, err)
		once, err := json.Marshal(spec)
		require.NoError(t, err)
		_, err = asking(names...).Fulfill(spec, source(nodeSpecs()))
		require.NoError(t, err)
		twice, err := json.Marshal(spec)
		require.NoError(t, err)
		require.JSONEq(t, string(once), string(twice))
		require.Len(t, spec.Hooks.CreateContainer, 2)
	}
}

// A privileged container has the host's nodes, but not the driver's files.
func TestFilesAreAddedToExistingNodes(t *testing.T) {
	spec := &oci.Spec{Linux: &oci.Linux{
		Devices:   []oci.LinuxDevice{{Path: "/dev/0", Type: "c", Major: 1, Minor: 3}, {Path: "/dev/nvidiactl", Type: "c", Major: 9, Minor: 9}},
		Resources: &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
	}}
	_, err := asking("0").Fulfill(spec, source(nodeSpecs()))
	require.NoError(t, err)
	require.Equal(t, []string{"/dev/0", "/dev/nvidiactl"}, nodes(spec))
	for _, d := range spec.Linux.Devices {
		require.Equal(t, [2]int64{1, 3}, [2]int64{d.Major, d.Minor}, "%s is that of the specification", d.Path)
	}
	require.Len(t, spec.Mounts, 3)
}

func TestDockersHookIsRemoved(t *testing.T) {
	spec := &oci.Spec{Hooks: &oci.Hooks{Prestart: []oci.Hook{{Path: "/a"}, {Path: "/usr/bin/" + HookName}}}} //nolint:staticcheck // as Docker does
	_, err := Request{RemoveHook: true}.Fulfill(spec, source(nil))
	require.NoError(t, err)
	require.Equal(t, []oci.Hook{{Path: "/a"}}, spec.Hooks.Prestart) //nolint:staticcheck // as Docker does
}

func TestErrorsNameTheExistingDevices(t *testing.T) {
	with := func(change func(*Request)) Request {
		r := asking("0")
		change(&r)
		return r
	}
	ambiguous := append(nodeSpecs(), file("/other.yaml", cdi.KindNVIDIA, "0"))
	for _, c := range []struct {
		files []cdi.File
		r     Request
		want  string
	}{
		{nodeSpecs(), asking("7"), `there is no GPU "7" on this node; there are 0, 0:1, 1, GPU-a, GPU-b, MIG-c, all`},
		{nil, asking("all"), "check that the driver is loaded"},
		{ambiguous, asking("0"), "defined by /n.yaml and /other.yaml"},
		{nodeSpecs(), asking("nvidia.com/gpu=9"), "there is no nvidia.com/gpu=9 on this node; of this kind there are 0, 1"},
		{nodeSpecs(), asking("x.y/z=9"), "no specification of kind x.y/z"},
		{nodeSpecs(), asking("7", "8"), `no GPU "7" on this node; there are 0, 0:1, 1, GPU-a, GPU-b, MIG-c, all; there is no GPU "8"`},
		{nil, Request{DriverOnly: true}, "the driver's files are not known"},
		{nodeSpecs(), with(func(r *Request) { r.MIGMonitor = true }), "NVIDIA_MIG_MONITOR_DEVICES: this node has no /dev/nvidia-caps/nvidia-cap2"},
		{nodeSpecs()[:2], with(func(r *Request) { r.MIGConfig = true }), "NVIDIA_MIG_CONFIG_DEVICES"},
		{nodeSpecs(), with(func(r *Request) { r.Channels = []string{"7"} }), "no nvidia.com/imex-channel=7 on this node; of this kind there are 0, 1"},
		{nodeSpecs(), with(func(r *Request) { r.Requirements = []string{"cuda>=13.0"} }), "requires cuda>=13.0, and this node has driver 570.1 with CUDA 12.8"},
	} {
		spec := &oci.Spec{}
		_, err := c.r.Fulfill(spec, source(c.files))
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "\n")
		require.Equal(t, &oci.Spec{}, spec, "nothing is done by half")
	}
	warnings, err := with(func(r *Request) { r.Features = []string{"mofed"} }).Fulfill(&oci.Spec{}, source(nodeSpecs()))
	require.NoError(t, err)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "NVIDIA_MOFED=enabled")
	_, err = asking("0").Fulfill(&oci.Spec{}, func(...string) ([]cdi.File, error) { return nil, errors.New("denied") })
	require.ErrorContains(t, err, "denied")
}

// A specification of another writer can have several GPUs under any name.
func TestOneEachRefusesNamesOfSeveralGPUs(t *testing.T) {
	several := file("/n.yaml", cdi.KindNVIDIA, "0", "team")
	several.Spec.Devices[1].ContainerEdits.DeviceNodes = []*specs.DeviceNode{{Path: "/dev/nvidia0", HostPath: "/dev/null"}, {Path: "/dev/nvidia1", HostPath: "/dev/null"}}
	for _, name := range []string{"team", "nvidia.com/gpu=team"} {
		r := asking("0", name)
		_, _, err := r.Edits(source([]cdi.File{several}))
		require.NoError(t, err)
		r.OneEach = true
		_, _, err = r.Edits(source([]cdi.File{several}))
		require.ErrorContains(t, err, name+" stands for 2 GPUs")
	}
}

func TestDeviceRulesHaveThePermissionsOfTheNode(t *testing.T) {
	for permissions, want := range map[string]string{"": "rwm", "r": "r", "rw": "rw", "none": ""} {
		f := file("/n.yaml", cdi.KindNVIDIA, "0")
		f.Spec.ContainerEdits.DeviceNodes = nil
		f.Spec.Devices[0].ContainerEdits.DeviceNodes[0].Permissions = permissions
		for _, name := range []string{"0", "nvidia.com/gpu=0"} {
			spec := &oci.Spec{}
			_, err := asking(name).Fulfill(spec, source([]cdi.File{f}))
			require.NoError(t, err)
			require.Len(t, spec.Linux.Resources.Devices, 1)
			require.Equal(t, want, spec.Linux.Resources.Devices[0].Access, permissions)
		}
	}
}

func TestErrorsAreShortForManyUnknownNames(t *testing.T) {
	var names, many []string
	for i := range 1000 {
		names, many = append(names, fmt.Sprint("GPU-", i)), append(many, fmt.Sprint("MIG-of-a-long-name-", i))
	}
	for _, r := range []Request{asking(names...), {Devices: names, Requirements: names}, {Devices: many, Channels: names, Requirements: slices.Repeat([]string{"cuda>=99"}, 1000)}} {
		for _, files := range [][]cdi.File{nil, nodeSpecs(), {file("/n.yaml", cdi.KindNVIDIA, many...)}} {
			if _, _, err := r.Edits(source(files)); err != nil {
				require.LessOrEqual(t, len(err.Error()), 1000)
			}
		}
	}
}

func TestOnlyRequestedKindsAreRead(t *testing.T) {
	var read []string
	_, err := asking("GPU-a", "0").Fulfill(&oci.Spec{}, func(kinds ...string) ([]cdi.File, error) {
		read = append(read, kinds...)
		return source(nodeSpecs())(kinds...)
	})
	require.NoError(t, err)
	require.Equal(t, []string{cdi.KindNVIDIA}, read)
}
