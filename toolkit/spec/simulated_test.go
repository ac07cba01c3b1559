package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/test/lab/built"
)

// profiles are all profiles of the simulator, those with MIG also with a layout, and a
// workstation with graphics, storage and network.
var profiles = []struct {
	name, profile, layout string
	rich                  bool
}{
	{name: "a100-80gb", profile: "a100-80gb"},
	{name: "a100-80gb-mig", profile: "a100-80gb", layout: "1g.10gb,2g.20gb,3g.40gb"},
	{name: "a10g", profile: "a10g"},
	{name: "b200", profile: "b200"},
	{name: "b200-mig", profile: "b200", layout: "1g.23gb,1g.23gb,2g.45gb"},
	{name: "b300", profile: "b300"},
	{name: "dgx-2", profile: "dgx-2"},
	{name: "gb10", profile: "gb10"},
	{name: "gb200", profile: "gb200"},
	{name: "gh200-mig", profile: "gh200", layout: "1g.12gb,3g.48gb"},
	{name: "h100-sxm", profile: "h100-sxm"},
	{name: "h100-sxm-mig", profile: "h100-sxm", layout: "1g.10gb,1g.10gb"},
	{name: "h20", profile: "h20"},
	{name: "h200-sxm", profile: "h200-sxm"},
	{name: "h200-sxm-mig", profile: "h200-sxm", layout: "1g.18gb,2g.35gb"},
	{name: "l40s", profile: "l40s"},
	{name: "mixed", profile: "mixed"},
	{name: "rtx-pro-6000-mig", profile: "rtx-pro-6000", layout: "1g.24gb+gfx,1g.24gb-me,2g.48gb"},
	{name: "t4", profile: "t4"},
	{name: "v100-sxm2", profile: "v100-sxm2"},
	{name: "vgpu", profile: "vgpu"},
	{name: "workstation", profile: "l40s", rich: true},
}

// simulate creates a host with a simulated driver at /driver, and runs gpu-toolkit to
// write its specifications.
func simulate(t *testing.T, profile, layout string, rich bool) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("device nodes need root")
	}
	built.Path(t, "gpu-cdi-hook")
	root := built.DriverRoot(t, profile)
	dir = filepath.Dir(root)
	if layout != "" {
		built.Gpusim(t, "mig", "--root", root, "--gpu", "0", "--layout", layout)
	}
	if rich {
		enrich(t, root)
	}
	out, err := exec.Command(built.Path(t, "gpu-toolkit"), "apply", "--host-root", dir, "--driver-root", "/driver").CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// enrich adds the files of a graphics driver, and peripheral devices.
func enrich(t *testing.T, root string) {
	t.Helper()
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	lib := root + "/usr/lib/" + triplet
	put := func(p string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte("x"), 0o755))
	}
	for _, l := range []string{
		"libEGL_nvidia.so." + version, "libGLX_nvidia.so." + version, "libnvidia-opticalflow.so." + version, "libnvidia-allocator.so." + version,
		"libnvidia-vulkan-producer.so." + version, "libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland.so.1.1.19", "libnvidia-nvvm70.so.4", "vdpau/libvdpau_nvidia.so." + version,
		"nvidia/xorg/nvidia_drv.so", "nvidia/xorg/libglxserver_nvidia.so." + version,
	} {
		put(lib + "/" + l)
		stem, _, _ := strings.Cut(filepath.Base(l), ".so")
		cmd := exec.Command("gcc", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,"+stem+".so.1", "-o", lib+"/"+l)
		cmd.Stdin = strings.NewReader("int x;")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	for _, p := range []string{
		"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
		"/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json", "/etc/OpenCL/vendors/nvidia.icd",
		"/usr/share/nvidia/nvoptix.bin", "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
		"/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin", "/lib/firmware/nvidia/" + version + "/gsp_tu10x.bin",
		"/usr/local/nvidia/firmware/nvidia/" + version + "/gsp_ga10x.bin", "/usr/local/nvidia/firmware/nvidia/" + version + "/ucodes_gb10x.bin",
		"/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-cuda-mps-server", "/usr/bin/nvidia-imex", "/usr/bin/nvidia-xconfig", "/etc/cufile.json", "/run/udev/control",
	} {
		put(root + p)
	}
	parameter := root + firmwareParameter
	require.NoError(t, os.MkdirAll(filepath.Dir(parameter), 0o755))
	require.NoError(t, os.WriteFile(parameter, []byte("/usr/local/nvidia/firmware\n"), 0o644))
	for _, p := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
		require.NoError(t, os.MkdirAll(root+"/run/"+p, 0o755))
		t.Chdir(root + "/run/" + p) // the path of a socket is short
		listener, err := net.Listen("unix", "socket")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	require.NoError(t, os.MkdirAll(root+"/tmp/nvidia-mps", 0o755)) // as the host's own MPS creates it; it is not mounted
	for i, p := range []string{"gdrdrv", "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/rdma_cm", "nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels/channel10", "nvidia-caps-imex-channels/channel2", "dri/card1", "dri/renderD128"} {
		at := root + "/dev/" + p
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, unix.Mknod(at, unix.S_IFCHR|0o660, int(unix.Mkdev(240, uint32(i)))))
	}
	devices, err := filepath.Glob(root + "/sys/bus/pci/devices/*/driver")
	require.NoError(t, err)
	require.NotEmpty(t, devices)
	var gpu string
	for _, d := range devices {
		if class, err := os.ReadFile(filepath.Dir(d) + "/class"); err == nil && strings.HasPrefix(string(class), "0x03") {
			gpu = filepath.Dir(d)
			break
		}
	}
	require.NotEmpty(t, gpu)
	require.NoError(t, os.MkdirAll(root+"/dev/dri/by-path", 0o755))
	for name, kind := range map[string]string{"card1": "card", "renderD128": "render"} {
		require.NoError(t, os.MkdirAll(gpu+"/drm/"+name, 0o755))
		require.NoError(t, os.Symlink("../"+name, root+"/dev/dri/by-path/pci-"+filepath.Base(gpu)+"-"+kind))
	}
}

// written returns the specification files of a host, in the order of Kinds.
func written(t *testing.T, dir string) (data []byte, all map[string]*specs.Spec) {
	t.Helper()
	all = map[string]*specs.Spec{}
	for _, kind := range Kinds {
		content, err := os.ReadFile(dir + "/var/run/cdi/" + FileName(kind))
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		spec, err := cdi.Parse(content)
		require.NoError(t, err)
		all[kind] = spec
		data = append(append(data, "# "+FileName(kind)+"\n"...), content...)
	}
	return data, all
}

// wholeMachine is the machine whose golden file is what gpu-toolkit writes, byte for byte.
// Those of the others are condensed: see condense.
const wholeMachine = "t4"

func TestGoldenOfEverySimulatedMachine(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("library folders in the golden files are those of amd64")
	}
	whole, err := filepath.Abs("testdata/simulated/" + wholeMachine + ".yaml")
	require.NoError(t, err)
	for _, p := range profiles {
		t.Run(p.name, func(t *testing.T) {
			file := filepath.Join(filepath.Dir(whole), p.name+".yaml")
			got, all := written(t, simulate(t, p.profile, p.layout, p.rich))
			noWritableMounts(t, all)
			if p.name != wholeMachine {
				reference, err := os.ReadFile(whole)
				require.NoError(t, err)
				got = condense(t, got, reference)
			}
			checkGolden(t, file, got)
		})
	}
}

// A partition of a simulated RTX PRO 6000 that can render has its GPU's nodes for it, and its neighbours have not.
func TestASimulatedPartitionWithGraphicsGetsItsRenderNode(t *testing.T) {
	dir := simulate(t, "rtx-pro-6000", "2g.48gb,1g.24gb+gfx,1g.24gb-me", true)
	_, all := written(t, dir)
	render := map[string]bool{}
	for _, d := range all[cdi.KindGPU].Devices {
		if strings.HasPrefix(d.Name, "MIG-") {
			render[d.Name] = slices.ContainsFunc(d.ContainerEdits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == "/dev/dri/renderD128" })
		}
	}
	require.Len(t, render, 3)
	out := built.Gpusim(t, "status", "--root", dir+"/driver", "-o", "json")
	var status struct {
		GPUs []struct {
			MIGDevices []struct{ UUID, Profile string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &status), out)
	require.Len(t, status.GPUs[0].MIGDevices, 3)
	for _, d := range status.GPUs[0].MIGDevices {
		require.Equal(t, d.Profile == "1g.24gb+gfx", render[d.UUID], d.Profile)
	}
}

// noWritableMounts checks each mount of the specifications.
func noWritableMounts(t *testing.T, all map[string]*specs.Spec) {
	t.Helper()
	count := 0
	for _, s := range all {
		mounts := s.ContainerEdits.Mounts
		for _, d := range s.Devices {
			mounts = append(mounts, d.ContainerEdits.Mounts...)
		}
		count += len(mounts)
		for _, m := range mounts {
			require.Contains(t, m.Options, "ro", m.HostPath)
			require.Contains(t, m.Options, "nosuid", m.HostPath)
			require.Contains(t, m.Options, "nodev", m.HostPath)
			for _, dir := range []string{"/tmp/", "/var/tmp/", "/dev/shm/", "/run/lock/", "/run/user/"} {
				require.NotContains(t, m.HostPath+"/", dir)
			}
		}
	}
	require.Positive(t, count)
}

// checkGolden compares a golden file with what it should hold, or writes it with -update.
func checkGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if !bytes.Equal(want, got) {
		require.Fail(t, "the specifications are not those of "+file, difference(string(want), string(got)))
	}
}

// condense returns specifications with one line for each device, node and mount. The
// containerEdits of a kind that are those of the reference are replaced by a comment.
func condense(t *testing.T, text, reference []byte) []byte {
	t.Helper()
	edits := map[string]*yaml.Node{}
	for kind, document := range split(t, reference) {
		edits[kind] = field(document, "containerEdits")
	}
	var b bytes.Buffer
	for _, head := range heads.FindAllString(string(text), -1) {
		document := split(t, text)[head]
		b.WriteString(head)
		fields := document.Content[:0]
		for i := 0; i < len(document.Content); i += 2 {
			key, value := document.Content[i], document.Content[i+1]
			if key.Value == "containerEdits" && encodeNode(t, value) == encodeNode(t, edits[head]) {
				b.WriteString("# containerEdits: as in " + wholeMachine + ".yaml\n")
				continue
			}
			inline(value)
			fields = append(fields, key, value)
		}
		document.Content = fields
		b.WriteString(encodeNode(t, document))
	}
	// Warnings follow the specifications.
	if i := bytes.Index(text, []byte("# warning: ")); i >= 0 {
		b.Write(text[i:])
	}
	return b.Bytes()
}

// heads are the lines with the names of the specification files.
var heads = regexp.MustCompile(`(?m)^# .*\.yaml\n`)

// split returns the specifications in a golden file by the line before each.
func split(t *testing.T, text []byte) map[string]*yaml.Node {
	t.Helper()
	all := map[string]*yaml.Node{}
	at := heads.FindAllIndex(text, -1)
	for i, head := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		var document yaml.Node
		require.NoError(t, yaml.Unmarshal(text[head[1]:end], &document))
		all[string(text[head[0]:head[1]])] = document.Content[0]
	}
	return all
}

func field(object *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i+1]
		}
	}
	return &yaml.Node{Kind: yaml.MappingNode}
}

// inline puts each item of the lists of a node on one line, its name first. Hooks, with their
// many arguments, stay as they are.
func inline(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			item.Style = yaml.FlowStyle
			for i := 2; i < len(item.Content); i += 2 {
				if item.Content[i].Value == "name" {
					pair := slices.Clone(item.Content[i : i+2])
					item.Content = slices.Concat(pair, slices.Delete(item.Content, i, i+2))
				}
			}
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key := n.Content[i].Value; key != "hooks" && key != "env" {
			inline(n.Content[i+1])
		}
	}
}

func encodeNode(t *testing.T, n *yaml.Node) string {
	t.Helper()
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	require.NoError(t, encoder.Encode(n))
	return b.String()
}

// difference returns the first line that differs.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d: want %q, got %q", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, not %d", len(g), len(w))
}
