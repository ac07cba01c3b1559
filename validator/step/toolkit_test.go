package step

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

const (
	stateDir = "/run/nvidia/gpuready"
)

// fixture is a host's root with the toolkit's files for a driver.
type fixture struct {
	t      *testing.T
	dir    string
	node   check.Node
	driver check.Driver
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir()}
	root, err := host.Open(f.dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	f.node = check.Node{Root: root, BootID: boot, StateDir: stateDir, CDIDirs: []string{cdi.StaticDir, cdi.DynamicDir}}
	f.driver = check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, GPUs: gputest.Node("a100-80gb", 2).Devices}
	f.driver.GPUs[1] = gputest.WithMIG(f.driver.GPUs[1], "1g.10gb")
	f.file("usr/bin/hook", 0o755)
	f.file("usr/lib/libcuda.so", 0o644)
	require.NoError(t, os.MkdirAll(f.path("dev"), 0o755))
	if err := unix.Mknod(f.path("dev/nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Skipf("making device nodes needs root: %v", err)
	}
	f.spec(cdi.DynamicDir+"/gpuready.yaml", f.driver.GPUs[0].UUID, f.driver.GPUs[1].MIG[0].UUID)
	f.writeState(nodestate.State{Phase: nodestate.Ready, Driver: &f.driver.Info})
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) file(name string, mode os.FileMode) {
	f.t.Helper()
	require.NoError(f.t, os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	require.NoError(f.t, os.WriteFile(f.path(name), nil, mode))
}

func (f *fixture) spec(name string, ids ...gpu.UUID) {
	f.t.Helper()
	spec := specs.Spec{Kind: cdi.KindGPU, ContainerEdits: specs.ContainerEdits{
		Mounts: []*specs.Mount{{HostPath: "/usr/lib/libcuda.so", ContainerPath: "/usr/lib/libcuda.so"}},
		Hooks:  []*specs.Hook{{HookName: "createContainer", Path: "/usr/bin/hook"}},
	}}
	for _, id := range ids {
		spec.Devices = append(spec.Devices, specs.Device{Name: string(id), ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0"}},
		}})
	}
	data, err := cdi.Encode(spec)
	require.NoError(f.t, err)
	require.NoError(f.t, os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	require.NoError(f.t, os.WriteFile(f.path(name), data, 0o644))
}

func (f *fixture) writeState(s nodestate.State) {
	f.t.Helper()
	s.Component = nodestate.Toolkit
	if s.BootID == "" {
		s.BootID = boot
	}
	require.NoError(f.t, nodestate.Write(f.path(stateDir+"/toolkit"), s))
}

func TestNamesOfAllGPUsAndMIGDevicesResolve(t *testing.T) {
	f := newFixture(t)
	o := checkToolkit(t.Context(), f.node, f.driver)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Equal(t, "2 CDI names of kind k8s.gpuready.io/gpu resolve", o.Proof.Summary)
}

func TestEachObstacleToAContainerIsNamed(t *testing.T) {
	state := stateDir + "/toolkit/state.json"
	cases := []struct {
		name    string
		breakIt func(f *fixture)
		reason  gpu.Reason
		says    string
	}{
		{"no state", func(f *fixture) { f.remove(state) }, reasonToolkitSilent, "has reported nothing since the node booted"},
		{"state of another boot", func(f *fixture) {
			f.writeState(nodestate.State{Phase: nodestate.Ready, BootID: "11111111-0000-4000-8000-000000000000"})
		}, reasonToolkitSilent, "since the node booted"},
		{"truncated state", func(f *fixture) { require.NoError(f.t, os.Truncate(f.path(state), 20)) }, reasonToolkitStateInvalid, "unexpected end of JSON"},
		{"waiting", func(f *fixture) {
			f.writeState(nodestate.State{Phase: nodestate.Waiting, Reason: "DriverMissing", Message: "no driver below /"})
		}, "DriverMissing", "the toolkit says Waiting: no driver below /"},
		{"failed without a reason", func(f *fixture) { f.writeState(nodestate.State{Phase: nodestate.Failed}) }, reasonToolkitNotReady, "the toolkit says Failed"},
		{"specs of the driver before", func(f *fixture) {
			f.writeState(nodestate.State{Phase: nodestate.Ready, Driver: &nodestate.DriverInfo{Root: "/", Version: "570.1"}})
		}, reasonOtherDriver, "for driver 570.1, but 580.95.05 is loaded"},
		{"no spec", func(f *fixture) { f.remove(cdi.DynamicDir) }, reasonSpecMissing, "there is no CDI specification of kind k8s.gpuready.io/gpu in /etc/cdi, /var/run/cdi"},
		{"the toolkit's spec gone", func(f *fixture) {
			f.setSpecPath("/var/run/cdi/gpuready.yaml")
			f.remove(cdi.DynamicDir + "/gpuready.yaml")
		}, reasonSpecMissing, "the CDI specification /run/cdi/gpuready.yaml of kind k8s.gpuready.io/gpu, which gpu-toolkit wrote, is gone"},
		{"a spec cut short", func(f *fixture) {
			f.setSpecPath("/run/cdi/gpuready.yaml")
			require.NoError(f.t, os.Truncate(f.path(cdi.DynamicDir+"/gpuready.yaml"), 60))
		},
			reasonSpecInvalid, "runtimes ignore the CDI specification of kind k8s.gpuready.io/gpu: /var/run/cdi/gpuready.yaml"},
		{"a higher directory", func(f *fixture) {
			f.spec(cdi.StaticDir+"/gpuready.yaml", f.driver.GPUs[0].UUID)
			f.setSpecPath(cdi.StaticDir + "/gpuready.yaml")
		}, reasonConflict, "/etc/cdi/gpuready.yaml and /var/run/cdi/gpuready.yaml, and runtimes take that of /var/run/cdi/gpuready.yaml, which is not gpu-toolkit's"},
		{"a device missing in the spec", func(f *fixture) { f.spec(cdi.DynamicDir+"/gpuready.yaml", f.driver.GPUs[0].UUID) },
			reasonUnresolved, string(gputest.WithMIG(gputest.Node("a100-80gb", 2).Devices[1], "1g.10gb").MIG[0].UUID)},
		{"two files claim a name", func(f *fixture) { f.spec(cdi.DynamicDir+"/other.yaml", f.driver.GPUs[0].UUID) },
			reasonConflict, "is claimed by /var/run/cdi/gpuready.yaml and /var/run/cdi/other.yaml: runtimes refuse a name that two files of one directory define"},
		{"device node gone", func(f *fixture) { f.remove("dev/nvidia0") }, reasonIncomplete, "device node /dev/nvidia0"},
		{"library gone", func(f *fixture) { f.remove("usr/lib/libcuda.so") }, reasonIncomplete, "/usr/lib/libcuda.so"},
		{"hook gone", func(f *fixture) { f.remove("usr/bin/hook") }, reasonIncomplete, "hook /usr/bin/hook"},
		{"hook not executable", func(f *fixture) { require.NoError(f.t, os.Chmod(f.path("usr/bin/hook"), 0o644)) }, reasonIncomplete, "hook /usr/bin/hook"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.breakIt(f)
			o := checkToolkit(t.Context(), f.node, f.driver)
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, c.reason, o.NotReady.Reason, o.NotReady.Message)
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotEmpty(t, o.NotReady.Action)
		})
	}
}

// setSpecPath sets the path of the specification in the toolkit's state.
func (f *fixture) setSpecPath(path string) {
	f.writeState(nodestate.State{Phase: nodestate.Ready, Driver: &f.driver.Info, Toolkit: &nodestate.ToolkitInfo{
		Specs: []nodestate.Spec{{Kind: cdi.KindGPU, Path: path}},
	}})
}

func (f *fixture) remove(name string) {
	f.t.Helper()
	require.NoError(f.t, os.RemoveAll(f.path(name)))
}

func TestALostGPUNeedsNoName(t *testing.T) {
	f := newFixture(t)
	f.spec(cdi.DynamicDir+"/gpuready.yaml", f.driver.GPUs[0].UUID)
	f.driver.GPUs[1].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	o := checkToolkit(t.Context(), f.node, f.driver)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
}

func TestManyFindingsAreCounted(t *testing.T) {
	require.Equal(t, "a; b; c", firstOf([]string{"a", "b", "c"}, 8))
	require.Equal(t, "a; b; c; and so on for 5 of 8 GPUs", firstOf([]string{"a", "b", "c", "d", "e"}, 8))
}

func TestAContainerChecksOnlyMountedFiles(t *testing.T) {
	f := newFixture(t)
	root, err := host.Open("/")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	// The files named in the specification are below a folder that stands for the host's
	// root. This process has it elsewhere, except for the driver's root.
	f.node.Root, f.node.StateDir, f.node.CDIDirs = root, f.path(stateDir), []string{f.path(cdi.DynamicDir)}
	f.node.Injection = "0a1b2c"
	require.Equal(t, check.Passed, checkToolkit(t.Context(), f.node, f.driver).Kind)

	driverRoot := f.path("driver")
	f.driver.Info.Root = driverRoot
	f.edit(func(s *specs.Spec) {
		s.ContainerEdits.Mounts = append(s.ContainerEdits.Mounts, &specs.Mount{HostPath: driverRoot + "/usr/lib/libcuda.so", ContainerPath: "/libcuda.so"})
	})
	o := checkToolkit(t.Context(), f.node, f.driver)
	require.Equal(t, reasonIncomplete, o.NotReady.Reason)
	require.Contains(t, o.NotReady.Message, driverRoot+"/usr/lib/libcuda.so")
	require.NotContains(t, o.NotReady.Message, "/usr/bin/hook")
	f.file("driver/usr/lib/libcuda.so", 0o644)
	require.Equal(t, check.Passed, checkToolkit(t.Context(), f.node, f.driver).Kind)

	f.node.Injection = ""
	require.Equal(t, reasonIncomplete, checkToolkit(t.Context(), f.node, f.driver).NotReady.Reason, "a process of the host sees all")
}

// edit changes the specification that the toolkit wrote.
func (f *fixture) edit(change func(*specs.Spec)) {
	f.t.Helper()
	name := f.path(cdi.DynamicDir + "/gpuready.yaml")
	data, err := os.ReadFile(name)
	require.NoError(f.t, err)
	spec, err := cdi.Parse(data)
	require.NoError(f.t, err)
	change(spec)
	data, err = cdi.Encode(*spec)
	require.NoError(f.t, err)
	require.NoError(f.t, os.WriteFile(name, data, 0o644))
}

func TestARuntimeWithoutCDIIsRefusedWithTheToolkitsMessage(t *testing.T) {
	f := newFixture(t)
	yes, no := true, false
	say := func(on *bool, message string) check.Outcome {
		f.writeState(nodestate.State{Phase: nodestate.Ready, Driver: &f.driver.Info, Toolkit: &nodestate.ToolkitInfo{
			Runtime: &nodestate.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", CDI: on, Message: message},
		}})
		return checkToolkit(t.Context(), f.node, f.driver)
	}
	o := say(&no, "set enable_cdi = true")
	require.Equal(t, reasonRuntime, o.NotReady.Reason)
	require.Contains(t, o.NotReady.Message, "set enable_cdi = true")
	require.Empty(t, say(&yes, "").Notes)
	o = say(nil, "it does not answer")
	require.Equal(t, check.Passed, o.Kind, "not known is no failure")
	require.Contains(t, o.Notes[0], "it does not answer")
}
