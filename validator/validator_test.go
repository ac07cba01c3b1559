package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// The tests run the built binary against a host's root in a folder. The simulator is the
// driver, the test writes the toolkit's files, and the device plugin is the real one with an
// in-process kubelet.

const (
	driverRoot = "/run/nvidia/driver"
	version    = "580.95.05"
	deadline   = 2 * time.Minute
)

type rig struct {
	t    *testing.T
	root string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	// A short name: the paths of sockets below it are limited to 107 bytes.
	root, err := os.MkdirTemp("", "gv")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	return &rig{t: t, root: root}
}

func (r *rig) path(name string) string { return filepath.Join(r.root, name) }

// driver installs a simulated driver.
func (r *rig) driver(gpus int, args ...string) {
	r.t.Helper()
	built.Gpusim(r.t, append([]string{"up", "--root", r.path(driverRoot), "--profile", "a100-80gb", "--gpus", fmt.Sprint(gpus)}, args...)...)
}

func (r *rig) args(command string, more ...string) []string {
	return append([]string{command, "--host-root", r.root}, more...)
}

// run runs the validator to its end.
func (r *rig) run(args ...string) (exit int, stdout, stderr string) {
	r.t.Helper()
	return r.runWith(nil, args...)
}

// runWith runs the validator to its end, with more variables.
func (r *rig) runWith(variables []string, args ...string) (exit int, stdout, stderr string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.Path(r.t, "gpu-validator"), args...)
	cmd.Env = append(r.env(), variables...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	require.NoError(r.t, ctx.Err(), "it hangs; it printed:\n%s%s", &out, &said)
	if err != nil {
		require.IsType(r.t, &exec.ExitError{}, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), said.String()
}

// env lets the validator find the sample, and keeps a program that was built with the race
// detector from sleeping for a second at its end.
func (r *rig) env() []string {
	r.t.Helper()
	return []string{"PATH=" + filepath.Dir(built.Path(r.t, "vectoradd")), "GORACE=atexit_sleep_ms=0"}
}

// gpus returns the driver's GPUs, read by the validator's own probe.
func (r *rig) gpus() []gpu.Device {
	r.t.Helper()
	exit, out, said := r.run("nvml-reading", r.root, driverRoot)
	require.Zero(r.t, exit, said)
	var reading struct {
		Snapshot gpu.Snapshot
		Error    string
	}
	require.NoError(r.t, json.Unmarshal([]byte(out), &reading))
	require.Empty(r.t, reading.Error)
	return reading.Snapshot.Devices
}

// toolkit writes the toolkit's files for these GPUs.
func (r *rig) toolkit(gpus ...gpu.Device) {
	r.t.Helper()
	spec := specs.Spec{Kind: cdi.KindGPU}
	for _, g := range gpus {
		spec.Devices = append(spec.Devices, specs.Device{Name: string(g.UUID), ContainerEdits: specs.ContainerEdits{
			Mounts: []*specs.Mount{{HostPath: driverRoot + "/usr", ContainerPath: "/usr/driver"}},
		}})
	}
	data, err := cdi.Encode(spec)
	require.NoError(r.t, err)
	require.NoError(r.t, record.Write(r.path(cdi.DynamicDir+"/"+"gpuready.yaml"), data))
	r.writeState(nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Driver: &nodestate.DriverInfo{Root: driverRoot, Version: version, Simulated: true}})
}

func (r *rig) writeState(s nodestate.State) {
	r.t.Helper()
	require.NoError(r.t, nodestate.Write(r.path("/run/nvidia/gpuready/"+string(s.Component)), s))
}

// kubelet starts a kubelet and the real device plugin.
func (r *rig) kubelet(gpus int) *kubelettest.Kubelet {
	r.t.Helper()
	k, err := kubelettest.Start(kubelettest.Config{Dir: r.path("/var/lib/kubelet/device-plugins"), PodResourcesDir: r.path("/var/lib/kubelet/pod-resources")})
	require.NoError(r.t, err)
	r.t.Cleanup(k.Stop)
	built.Start(r.t, "gpu-device-plugin", []string{"--host-root", r.root, "--listen="}, r.env()...)
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	_, err = k.Wait(ctx, "nvidia.com/gpu", func(res kubelettest.Resource) bool { return res.Allocatable == gpus })
	require.NoError(r.t, err)
	require.NoError(r.t, untilState(ctx, r.path("/run/nvidia/gpuready/deviceplugin"), func(s nodestate.State) bool {
		return s.DevicePlugin != nil && s.DevicePlugin.Registered
	}))
	return k
}

func untilState(ctx context.Context, dir string, cond func(nodestate.State) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	met := false
	err := nodestate.Watch(ctx, dir, func(s nodestate.State, err error) {
		if err == nil && cond(s) {
			met = true
			cancel()
		}
	})
	if met {
		return nil
	}
	return err
}

func TestAWholeNodePasses(t *testing.T) {
	r := newRig(t)
	r.driver(2)
	gpus := r.gpus()
	r.toolkit(gpus...)
	r.kubelet(2)

	exit, out, said := r.run(r.args("run", "--allow-simulated")...)
	require.Zero(t, exit, "%s%s", out, said)
	require.Contains(t, out, "ok       driver")
	require.Contains(t, out, "vectorAdd on 2 of 2 GPUs")
	require.Contains(t, out, "nvidia.com/gpu: 2 allocatable, 0 allocated")
	require.True(t, strings.HasSuffix(out, "gpu-validator: PASSED (SIMULATED)\n"), out)
	require.NotContains(t, out, "\x1b", "no colour where there is no terminal")
	require.NoDirExists(t, r.path(readiness.DefaultDir), "run writes nothing")

	exit, out, _ = r.run(r.args("run", "--allow-simulated", "-o", "json")...)
	require.Zero(t, exit)
	var parsed struct {
		Result string
		Layers []struct {
			Layer        string
			SecondsByGPU map[gpu.UUID]float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &parsed))
	require.Equal(t, "PASSED (SIMULATED)", parsed.Result)
	for _, g := range gpus {
		require.Positive(t, parsed.Layers[2].SecondsByGPU[g.UUID])
	}
}

func TestEachLayerFailsWithItsReasonAndExitCode(t *testing.T) {
	built.Path(t, "gpu-device-plugin")
	cases := []struct {
		name    string
		prepare func(r *rig)
		args    []string
		exit    int
		says    string
	}{
		{"driver missing", func(r *rig) {
			dir := r.path("sys/bus/pci/devices/0000:3b:00.0")
			require.NoError(r.t, os.MkdirAll(dir, 0o755))
			require.NoError(r.t, os.WriteFile(filepath.Join(dir, "vendor"), []byte("0x10de\n"), 0o644))
			require.NoError(r.t, os.WriteFile(filepath.Join(dir, "class"), []byte("0x030200\n"), 0o644))
		}, nil, 10, "driver: DriverLibraryMissing: the PCI bus shows 1 NVIDIA GPU, but there is no libnvidia-ml.so.1 below /"},
		{"no libcuda", func(r *rig) {
			r.driver(1)
			found, err := filepath.Glob(r.path(driverRoot + "/usr/lib/*/libcuda.so*"))
			require.NoError(r.t, err)
			require.NotEmpty(r.t, found)
			for _, f := range found {
				require.NoError(r.t, os.Remove(f))
			}
		}, nil, 10, "driver: LibcudaMissing: there is no libcuda.so.1 in " + driverRoot + "/usr/lib/"},
		{"NVML does not initialise", func(r *rig) {
			r.driver(1)
			truncateState(r)
		}, nil, 10, "driver: NVMLFailed: "},
		{"library and module differ", func(r *rig) { r.driver(1, "--module-version", "570.1.2") }, nil, 10,
			"driver: DriverVersionMismatch: the driver's libraries are of version 580.95.05, the kernel module is 570.1.2"},
		{"simulated and not allowed", func(r *rig) { r.driver(1) }, []string{"--allow-simulated=false"}, 10, "driver: SimulatedDriverRefused"},
		{"toolkit silent", func(r *rig) { r.driver(1) }, nil, 11, "toolkit: ToolkitSilent"},
		{"truncated state", func(r *rig) {
			r.driver(1)
			r.toolkit(r.gpus()...)
			require.NoError(r.t, os.Truncate(r.path("/run/nvidia/gpuready/toolkit/state.json"), 40))
		}, nil, 11, "toolkit: ToolkitStateInvalid"},
		{"state of another boot", func(r *rig) {
			r.driver(1)
			r.toolkit(r.gpus()...)
			r.writeState(nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, BootID: "00000000-0000-4000-8000-000000000000"})
		}, nil, 11, "toolkit: ToolkitSilent: the toolkit has reported nothing since the node booted"},
		{"spec lacks a GPU", func(r *rig) { r.driver(2); r.toolkit(r.gpus()[0]) }, nil, 11, "toolkit: CDINameUnresolvable"},
		{"sample missing", func(r *rig) { r.driver(1) }, []string{"--layers", "cuda", "--vectoradd", "/nonexistent"}, 12, "cuda: CUDASampleFailed"},
		{"plugin not registered", func(r *rig) {
			r.driver(1)
			r.toolkit(r.gpus()...)
			r.writeState(nodestate.State{Component: nodestate.DevicePlugin, Phase: nodestate.Waiting, Reason: "KubeletMissing", Message: "no kubelet socket"})
		}, nil, 13, "plugin: KubeletMissing: the device plugin is not registered with the kubelet; it says Waiting: no kubelet socket"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "driver missing" {
				built.SkipWithDriver(t)
			}
			r := newRig(t)
			c.prepare(r)
			exit, out, said := r.run(r.args("run", append([]string{"--allow-simulated"}, c.args...)...)...)
			require.Equal(t, c.exit, exit, "%s%s", out, said)
			lines := strings.Split(strings.TrimSpace(said), "\n")
			last := lines[len(lines)-1]
			require.Contains(t, last, "gpu-validator: "+c.says, "the last line says it")
			require.Contains(t, last, "; ", "and what to do")
			require.Contains(t, out, "gpu-validator: FAILED")
		})
	}
}

// truncateState truncates the simulated driver's state file.
func truncateState(r *rig) {
	r.t.Helper()
	found, err := filepath.Glob(r.path(driverRoot + "/usr/lib/*/libnvidia-gpusim.so.*"))
	require.NoError(r.t, err)
	require.Len(r.t, found, 1)
	require.NoError(r.t, os.Truncate(found[0], 100))
}

func TestTheGPUWithAMemoryFaultIsNamed(t *testing.T) {
	r := newRig(t)
	r.driver(3)
	gpus := r.gpus()
	built.Gpusim(t, "memfault", "--root", r.path(driverRoot), "--gpu", "1", "--kind", "stuck")
	exit, out, said := r.run(r.args("run", "--allow-simulated", "--layers", "cuda")...)
	require.Equal(t, 12, exit, "%s%s", out, said)
	require.Contains(t, out, "CUDASampleFailed: vectorAdd failed on 1 of 3 GPUs: GPU 1 ("+string(gpus[1].UUID))
	require.Contains(t, out, "CUDA_VISIBLE_DEVICES="+string(gpus[1].UUID)+" vectoradd")
	require.Equal(t, 1, strings.Count(out, "take the GPU out of service"), out)
	require.NotContains(t, out, string(gpus[0].UUID))
	require.NotContains(t, out, string(gpus[2].UUID))
}

func TestANodeWithoutGPUHasNothingToProve(t *testing.T) {
	built.SkipWithDriver(t)
	r := newRig(t)
	exit, out, said := r.run(r.args("run")...)
	require.Zero(t, exit, said)
	require.Contains(t, out, "nothing to prove on this node")
	require.Contains(t, out, "gpu-validator: NO GPU\n")
	require.NotContains(t, out, "PASSED")
}

func TestWaitsExitCodeIsTheLayersOrTheTimeouts(t *testing.T) {
	r := newRig(t)
	wait := r.args("wait", "driver", "cuda", "--timeout", "100ms")
	exit, _, said := r.run(wait...)
	require.Equal(t, 20, exit)
	require.Contains(t, said, "gpu-validator: waiting for driver: the validator has not reported on it yet\n")
	require.Contains(t, said, "see that gpu-validator daemon runs on this node")

	dir := r.path(readiness.DefaultDir)
	require.NoError(t, readiness.WriteReady(dir, readiness.Driver, readiness.Proof{}))
	require.NoError(t, readiness.WriteNotReady(dir, readiness.CUDA, readiness.NotReady{Reason: "CUDASampleFailed", Message: "GPU 3 is wrong", Action: "replace it"}))
	exit, _, said = r.run(wait...)
	require.Equal(t, 12, exit)
	require.Contains(t, said, "gpu-validator: cuda is not ready: CUDASampleFailed: GPU 3 is wrong; replace it (waited 100ms)\n")

	require.NoError(t, readiness.WriteReady(dir, readiness.CUDA, readiness.Proof{BootID: "00000000-0000-4000-8000-000000000000"}))
	exit, _, said = r.run(wait...)
	require.Equal(t, 20, exit, said)
	require.Contains(t, said, "what is known is from an earlier boot")

	require.NoError(t, readiness.WriteReady(dir, readiness.CUDA, readiness.Proof{}))
	exit, _, _ = r.run(wait...)
	require.Zero(t, exit)
}

func TestWaitNamesTheReasonOfTheDriversContainer(t *testing.T) {
	r := newRig(t)
	require.NoError(t, readiness.WriteNotReady(r.path(readiness.DefaultDir), readiness.Driver, readiness.NotReady{Reason: "DriverLibraryMissing", Message: "none", Action: "install it"}))
	r.writeState(nodestate.State{Component: nodestate.Driver, Phase: nodestate.Failed, Reason: "BuildFailed", Message: "no headers; name another image"})
	exit, _, said := r.run(r.args("wait", "driver", "--timeout", "100ms")...)
	require.Equal(t, 10, exit)
	require.Contains(t, said, "gpu-validator: waiting for driver: BuildFailed: no driver is loaded: no headers; name another image\n")
	require.Contains(t, said, "gpu-validator: driver is not ready: BuildFailed: no driver is loaded: no headers; name another image (waited 100ms)\n")
}

func TestBadUsageExitsWithTwo(t *testing.T) {
	r := newRig(t)
	for want, args := range map[string][]string{
		"no command":                    {},
		`unknown command "validate"`:    {"validate"},
		"wait for what?":                {"wait"},
		"--workload-image needs":        {"daemon", "--node-name", "n1", "--workload-image", "x"},
		`unknown layer "kubelet"`:       {"wait", "kubelet"},
		"did you mean --layers driver?": {"run", "driver"},
		`unknown flag --alow-simulated, did you mean "--allow-simulated"? See gpu-validator run --help`: {"run", "--alow-simulated"},
		`--output "html"`:                  {"run", "-o", "html"},
		"want an absolute path":            {"daemon", "--output-dir", "here"},
		`--log-format "xml"`:               {"daemon", "--log-format", "xml"},
		"--host-root " + r.path("nothing"): {"run", "--host-root", r.path("nothing")},
	} {
		exit, out, said := r.run(args...)
		require.Equal(t, 2, exit, said)
		require.Contains(t, said, want)
		require.Equal(t, 1, strings.Count(said, "\n"), "one line: %s", said)
		require.Empty(t, out)
	}
	for _, command := range []string{"run", "wait", "daemon"} {
		exit, out, _ := r.run(command, "--help")
		require.Zero(t, exit)
		require.Contains(t, out, "Exit codes:")
		require.Contains(t, out, "[$OUTPUT_DIR]")
		require.Contains(t, out, "Example")
	}
}

// until waits until the status of a layer satisfies cond.
func (r *rig) until(l readiness.Layer, cond func(readiness.Status) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	met := false
	dir := r.path(readiness.DefaultDir)
	err := readiness.Watch(ctx, dir, []readiness.Layer{l}, "", func(_ readiness.Layer, s readiness.Status, err error) {
		if err == nil && cond(s) {
			met = true
			cancel()
		}
	})
	require.True(r.t, met, "%s: %v", l, err)
}

func proven(s readiness.Status) bool { return s.Proof != nil }

func refused(reason gpu.Reason) func(readiness.Status) bool {
	return func(s readiness.Status) bool { return s.NotReady != nil && s.NotReady.Reason == reason }
}

func TestTheDaemonFollowsTheNode(t *testing.T) {
	built.SkipWithDriver(t)
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	dir := r.path(readiness.DefaultDir)
	require.NoError(t, readiness.WriteReady(dir, readiness.Plugin, readiness.Proof{BootID: "00000000-0000-4000-8000-000000000000"}))
	daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen="), r.env()...)
	waiter := built.Start(t, "gpu-validator", r.args("wait", "driver", "toolkit", "cuda", "plugin", "--timeout=0"), r.env()...)

	r.until(readiness.Driver, refused("NoGPU"))
	r.driver(2)
	r.until(readiness.Driver, proven)
	r.until(readiness.Toolkit, refused("ToolkitSilent"))
	r.toolkit(r.gpus()...)
	r.until(readiness.CUDA, proven)
	r.kubelet(2)
	r.until(readiness.Plugin, proven)
	exit, err := waiter.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, waiter.Output())
	require.Contains(t, waiter.Output(), "waiting for driver: NoGPU")
	require.Contains(t, waiter.Output(), "plugin is ready: nvidia.com/gpu: 2 allocatable, 0 allocated (SIMULATED)")

	data, err := os.ReadFile(filepath.Join(dir, "driver-ready"))
	require.NoError(t, err)
	require.Contains(t, string(data), "\nSIMULATED=true\n")
	require.Contains(t, string(data), "\nNVIDIA_DRIVER_ROOT="+driverRoot+"\n")

	// Without a CDI spec the layer is no longer proven, and with it again.
	spec := r.path(cdi.DynamicDir + "/gpuready.yaml")
	require.NoError(t, os.Rename(spec, spec+".away"))
	r.until(readiness.Toolkit, refused("CDISpecMissing"))
	r.until(readiness.Plugin, refused("NotRun"))
	require.NoFileExists(t, filepath.Join(dir, "toolkit-ready"))
	require.NoError(t, os.Rename(spec+".away", spec))
	r.until(readiness.Plugin, proven)

	require.NoError(t, daemon.Signal(syscall.SIGTERM))
	exit, err = daemon.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, daemon.Output())
	for _, l := range readiness.Layers() {
		require.FileExists(t, filepath.Join(dir, string(l)+"-ready"), "proofs stay when the daemon ends")
	}
}

func TestTheDaemonFollowsDriverUpgradeAndRemoval(t *testing.T) {
	built.SkipWithDriver(t)
	r := newRig(t)
	r.driver(1)
	built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen="), r.env()...)
	r.until(readiness.Driver, proven)
	r.driver(1, "--driver-version", "590.10.01")
	r.until(readiness.Driver, func(s readiness.Status) bool { return s.Proof != nil && s.Proof.Driver.Version == "590.10.01" })
	built.Gpusim(t, "down", "--root", r.path(driverRoot))
	r.until(readiness.Driver, refused("NoGPU"))
	require.NoFileExists(t, r.path(readiness.DefaultDir+"/driver-ready"))
	r.until(readiness.Plugin, refused("NoGPU"))
}

func TestTheInitContainerWaitsForInjection(t *testing.T) {
	r := newRig(t)
	wait := r.args("wait", "injection", "--timeout", "100ms")
	exit, _, said := r.run(wait...)
	require.Equal(t, 20, exit)
	require.Contains(t, said, "gpu-validator: waiting for injection: the toolkit has reported nothing since the node booted")
	require.Contains(t, said, "(waited 100ms)")
	say := func(i nodestate.Injection) {
		r.writeState(nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Injection: &i}})
	}
	say(nodestate.Injection{Message: "NRI is off; set disable = false"})
	exit, _, said = r.run(wait...)
	require.Equal(t, 11, exit)
	require.Contains(t, said, "the toolkit cannot inject devices: NRI is off; set disable = false")
	r.writeState(nodestate.State{Component: nodestate.Driver, Phase: nodestate.Failed, Reason: "BuildFailed", Message: "no headers; name another image"})
	exit, _, _ = r.run(wait...)
	require.Equal(t, 11, exit, "for operands that do nothing without GPUs")
	exit, _, said = r.run(r.args("wait", "injection", "--or-no-driver", "--timeout", "1m")...)
	require.Zero(t, exit)
	require.Contains(t, said, "the wait ends: the driver's container reports BuildFailed: no driver is loaded: no headers; name another image")
	r.writeState(nodestate.State{Component: nodestate.Driver, Phase: nodestate.Waiting, Reason: "DriverStarting", Message: "it is being loaded"})
	exit, _, _ = r.run(r.args("wait", "injection", "--or-no-driver", "--timeout", "100ms")...)
	require.Equal(t, 11, exit, "it comes within half a minute, mostly")
	say(nodestate.Injection{Working: true, Generation: "a"})
	exit, _, said = r.run(wait...)
	require.Zero(t, exit, said)
	exit, _, _ = r.run(r.args("wait", "injection", "driver", "--timeout", "100ms")...)
	require.Equal(t, 20, exit, "then for the layers")
}

func TestAContainerWithoutInjectionReportsItAndEnds(t *testing.T) {
	built.SkipWithDriver(t)
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	env := append(r.env(), "GPUREADY_INJECTION=expected")
	daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen="), env...)
	r.until(readiness.Driver, refused("NoGPU"))
	r.driver(1)
	r.until(readiness.Driver, refused("InjectionMissing"))
	r.writeState(nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Working: true, Generation: "a"}}})
	exit, err := daemon.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, daemon.Output())
	require.Equal(t, 1, strings.Count(daemon.Output(), "has to be created anew"), daemon.Output())
	s, err := nodestate.Read(r.path("/run/nvidia/gpuready/validator"))
	require.NoError(t, err)
	require.Equal(t, gpu.Reason("InjectionMissing"), s.Reason)

	// A container with the present devices stays until they change.
	env[len(env)-1] = "GPUREADY_INJECTION=a"
	daemon = built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen="), env...)
	r.until(readiness.Driver, proven)
	r.writeState(nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Working: true, Generation: "b"}}})
	exit, err = daemon.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, daemon.Output())
	s, err = nodestate.Read(r.path("/run/nvidia/gpuready/validator"))
	require.NoError(t, err)
	require.Equal(t, gpu.Reason("InjectionOutdated"), s.Reason)
	require.FileExists(t, filepath.Join(r.path(readiness.DefaultDir), "driver-ready"), "what was proven stays proven")
}

func TestTheDaemonPublishesTheNodesState(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	server := kubetest.Start("n1")
	t.Cleanup(func() { server.Stop() })
	server.Token("secret")
	server.Node("n1", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"}}
	})
	account := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte("secret"), 0o600))
	condition := func(reason string) func() bool {
		return func() bool {
			c := server.Condition("n1", "GPUReady")
			return c != nil && c.Reason == reason
		}
	}
	daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen=", "--node-name=n1", "--namespace=gpuready",
		"--workload-image=gpuready/validator", "--api-server="+server.URL(), "--service-account-dir="+account), r.env()...)
	require.NoError(t, server.Wait(ctx, condition("NoGPU")))
	require.NoError(t, server.Wait(ctx, func() bool { return len(server.Node("n1", nil).Spec.Taints) == 0 }))

	r.driver(2)
	gpus := r.gpus()
	require.NoError(t, server.Wait(ctx, condition("ToolkitSilent")))
	r.toolkit(gpus...)
	r.kubelet(2)
	require.NoError(t, server.Wait(ctx, func() bool { return len(server.Pods()) == 1 }), daemon.Output())
	require.NoFileExists(t, filepath.Join(r.path(readiness.DefaultDir), "plugin-ready"), "the pod is the proof")
	require.FileExists(t, filepath.Join(r.path(readiness.DefaultDir), "cuda-ready"), "the others do not wait for it")
	require.NoError(t, server.Wait(ctx, func() bool { return server.Node("n1", nil).Labels["nvidia.com/gpu.count"] == "2" }))
	require.Equal(t, "NVIDIA-A100-SXM4-80GB", strings.TrimPrefix(server.Node("n1", nil).Labels["nvidia.com/gpu.product"], "SIMULATED-"))
	key := server.Pods()[0]
	require.Equal(t, "gpuready/nvidia-device-plugin-validation-n1", key)
	server.Update(key, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: fmt.Sprintf(`{"passed":true,"simulated":true,"uuid":%q}`, gpus[1].UUID),
		}}}}
	})
	r.until(readiness.Plugin, proven)
	require.NoError(t, server.Wait(ctx, condition("Ready")))
	require.Equal(t, "2 of 2 GPUs ready (SIMULATED), driver 580.95.05", server.Condition("n1", "GPUReady").Message)

	built.Gpusim(t, "xid", "--root", r.path(driverRoot), "--gpu", "1", "--xid", "79")
	require.NoError(t, server.Wait(ctx, condition("Degraded")))
	require.NoError(t, server.Wait(ctx, func() bool { return len(server.Events()) == 1 }))
	e := server.Events()[0]
	require.Equal(t, "XID", e.Reason)
	require.Contains(t, e.Message, "GPU 1 ("+string(gpus[1].UUID))
	require.Contains(t, e.Message, "XID 79")
	require.Contains(t, server.Condition("n1", "GPUReady").Message, "1 of 2 GPUs ready")
	require.Equal(t, corev1.ConditionFalse, server.Condition("n1", "GPUHealthy").Status)
	require.Contains(t, server.Condition("n1", "GPUHealthy").Message, "GPU 1 ("+string(gpus[1].UUID))

	// The proofs do not depend on the API server.
	server.Stop()
	built.Gpusim(t, "down", "--root", r.path(driverRoot))
	r.until(readiness.Plugin, refused("NoGPU"))
	server.Restart()
	require.NoError(t, server.Wait(ctx, condition("NoGPU")))
	require.NoError(t, daemon.Signal(syscall.SIGTERM))
	exit, err := daemon.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, daemon.Output())
	for _, kind := range []corev1.NodeConditionType{"GPUReady", "GPUHealthy"} {
		c := server.Condition("n1", kind)
		require.Equal(t, corev1.ConditionUnknown, c.Status, "nobody renews it")
		require.Equal(t, "ValidatorStopped", c.Reason)
	}
}

func TestTheNodesChoiceIsInTheStateFile(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	server := kubetest.Start("n1")
	t.Cleanup(func() { server.Stop() })
	account := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte("secret"), 0o600))
	label := func(name string) {
		server.Node("n1", func(n *corev1.Node) { n.Labels = map[string]string{nodestate.ConfigLabel: name} })
	}
	start := func() *built.Process {
		return built.Start(t, "gpu-validator", r.args("daemon", "--listen=", "--node-name=n1", "--api-server="+server.URL(), "--service-account-dir="+account), r.env()...)
	}
	chosen := func(want string) {
		t.Helper()
		require.NoError(t, untilState(ctx, r.path("/run/nvidia/gpuready/validator"), func(s nodestate.State) bool {
			return s.Validator != nil && s.Validator.NodeLabels != nil && s.Validator.NodeLabels[nodestate.ConfigLabel] == want
		}))
	}
	daemon := start()
	chosen("")
	label("shared")
	chosen("shared")
	label("whole")
	chosen("whole")

	// Another process, without API server: the last state of this boot stands.
	require.NoError(t, daemon.Signal(syscall.SIGKILL))
	_, err := daemon.Wait(ctx)
	require.NoError(t, err)
	server.Stop()
	start()
	r.driver(1)
	r.until(readiness.Driver, func(s readiness.Status) bool { return s.NotReady != nil && s.NotReady.Reason != "NoGPU" })
	chosen("whole")
	server.Restart()
	label("shared")
	chosen("shared")
}

func TestOptionalLayersAreCheckedWhereWanted(t *testing.T) {
	r := newRig(t)
	r.driver(1)
	r.toolkit(r.gpus()...)
	exit, out, _ := r.run(r.args("run", "--allow-simulated", "--layers", "driver,gds")...)
	require.Equal(t, 31, exit, out)
	require.Contains(t, out, "GDSModuleNotLoaded: the kernel module nvidia_fs is not loaded")
	require.NotContains(t, out, "not asked for", "only these layers are wanted")

	exit, out, _ = r.run(r.args("run", "--allow-simulated", "--optional", "vfio,fabric", "-o", "json")...)
	require.Equal(t, 13, exit, "the first that fails is the plugin's: %s", out)
	var parsed struct {
		Layers []struct{ Layer, Outcome string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &parsed))
	require.Len(t, parsed.Layers, len(readiness.Layers())+len(readiness.Optional()))
	for _, l := range parsed.Layers {
		if l.Layer == "peermem" || l.Layer == "mofed" || l.Layer == "vgpu" {
			require.Equal(t, "not asked for", l.Outcome, l.Layer)
		}
	}
	exit, _, said := r.run(r.args("run", "--optional", "cuda")...)
	require.Equal(t, 2, exit)
	require.Contains(t, said, "unknown layer \"cuda\"")
}
