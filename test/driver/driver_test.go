// Package driver tests gpu-driver on real kernels, in virtual machines: modules are really loaded,
// refused and unloaded.
package driver

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/vm"
)

func TestDriver(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	kernels := map[vm.Series]*vm.Kernel{}
	for _, series := range vm.AllSeries {
		kernels[series] = vm.FetchKernel(t, series)
	}
	for i, series := range vm.AllSeries {
		k, other := kernels[series], kernels[vm.AllSeries[1-i]]
		t.Run("Linux-"+k.Release, func(t *testing.T) {
			t.Parallel()
			stubs := vm.BuildStubs(t, k, version)
			n := boot(t, vm.Config{Kernel: k, Files: vm.Merge(
				k.ModuleTree(t, []string{"ecc"}, nil),
				image("/driver", k.Release, stubs),
				image("/newer", k.Release, vm.BuildStubs(t, k, "590.10")),
				image("/other", k.Release, vm.BuildStubs(t, other, version)), // in the wrong folder
			)})
			for _, c := range []struct {
				name string
				run  func(*node)
			}{
				{"Loads", loadsAndUnloads},
				{"FirmwarePath", firmwarePath},
				{"Adopts", adopts},
				{"Parameters", parameters},
				{"Upgrades", upgrades},
				{"InUse", inUse},
				{"Failures", failures},
				{"WithoutGPU", withoutAGPU},
				{"Killed", killed},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(n.as(t)) })
			}
		})
	}
}

func loadsAndUnloads(n *node) {
	ctx := n.t.Context()
	plan := n.driver("check", withoutGPU()...)
	require.Zero(n.t, plan.Code, "%s", plan)
	n.t.Log(plan.Stdout)
	require.Contains(n.t, plan.Stdout, "driver   "+version+", open modules: the image has no other")
	require.Empty(n.t, n.modules(), "check changes nothing")

	p := n.run()
	require.Equal(n.t, map[string]string{"nvidia": "2", "nvidia_uvm": "0", "nvidia_modeset": "0"}, n.modules())
	s := n.state()
	require.Equal(n.t, nodestate.Ready, s.Phase)
	require.Equal(n.t, &nodestate.DriverInfo{Root: driverRoot, Version: version, Simulated: true}, s.Driver)
	require.Equal(n.t, "the library", n.MustRun(ctx, "cat", driverRoot+"/usr/lib/x86_64-linux-gnu/libcuda.so."+version))
	require.Equal(n.t, "sources", n.MustRun(ctx, "cat", driverRoot+"/usr/src/README"))
	require.Contains(n.t, n.Run(ctx, "touch", driverRoot+"/usr/x").Stderr, "Read-only file system")
	require.Contains(n.t, n.MustRun(ctx, "cat", readyFile), "GPU_DIRECT_RDMA_ENABLED: false")
	require.Equal(n.t, "DRIVER_CONFIG_DIGEST=\n", n.MustRun(ctx, "cat", "/run/nvidia/nvidia-driver.state"))
	require.Equal(n.t, "/run/nvidia/gpuready/driver/firmware", strings.TrimSpace(n.MustRun(ctx, "cat", "/sys/module/firmware_class/parameters/path")))
	require.Equal(n.t, "the firmware", n.MustRun(ctx, "cat", "/run/nvidia/gpuready/driver/firmware/nvidia/"+version+"/gsp_ga10x.bin"))
	require.Zero(n.t, n.driver("probe").Code)
	require.Contains(n.t, n.MustRun(ctx, "gpu-driver", "status"), "driver   "+version+" at "+driverRoot+" (SIMULATED)")

	r := n.ends(p)
	require.Contains(n.t, r.Stderr, "module unloaded")
	require.Empty(n.t, n.modules())
	require.NotZero(n.t, n.Run(ctx, "test", "-e", readyFile).Code)
	require.NotZero(n.t, n.Run(ctx, "test", "-e", driverRoot+"/usr").Code)
	require.EqualValues(n.t, "DriverStopped", n.state().Reason)
	require.Equal(n.t, 4, n.driver("probe").Code)
}

// firmwarePath sets the kernel's firmware path, as for a network card, before the driver is loaded.
func firmwarePath(n *node) {
	ctx := n.t.Context()
	const parameter, ours = "/sys/module/firmware_class/parameters/path", "/firmware/nvidia/" + version + "/gsp_ga10x.bin"
	was := strings.TrimSpace(n.MustRun(ctx, "cat", parameter))
	n.MustRun(ctx, "sh", "-c", "mkdir /firmware && touch /firmware/other.bin && printf /firmware > "+parameter)
	path := func() string { return strings.TrimSpace(n.MustRun(ctx, "cat", parameter)) }
	n.loads()
	require.Equal(n.t, "/firmware", path())
	require.Equal(n.t, "the firmware", n.MustRun(ctx, "cat", ours))
	require.NotZero(n.t, n.Run(ctx, "test", "-e", "/run/nvidia/gpuready/driver/firmware").Code)
	n.unloads()
	require.Equal(n.t, "/firmware", path())
	require.Equal(n.t, "other.bin\n", n.MustRun(ctx, "ls", "/firmware"))

	n.MustRun(ctx, "mkdir", "-p", "/drivers")
	require.NoError(n.t, n.WriteFile(ctx, "/drivers/nvidia.conf", "NVreg_EnableGpuFirmware=0\n", 0o644))
	n.loads()
	require.Equal(n.t, "other.bin\n", n.MustRun(ctx, "ls", "/firmware"))
	n.unloads()
	n.MustRun(ctx, "sh", "-c", "rm -r /drivers/nvidia.conf /firmware && printf "+was+" > "+parameter)
}

func adopts(n *node) {
	before := n.loadedTimes()
	p := n.run()
	took := map[bool]time.Duration{}
	for range 3 {
		n.kill(p)
		require.Len(n.t, n.modules(), 3, "modules outlive the container")
		r := n.loads()
		require.Contains(n.t, r.Stderr, "adopted=true loaded=0")
		took[true] = r.Wall
		p = n.run()
	}
	require.Equal(n.t, before+1, n.loadedTimes())

	// Some are missing: only these are loaded.
	n.kill(p)
	require.NoError(n.t, n.UnloadModule(n.t.Context(), "nvidia_uvm"))
	require.Contains(n.t, n.loads().Stderr, "adopted=true loaded=1")
	// One differs from the image's: all are loaded again.
	require.NoError(n.t, n.UnloadModule(n.t.Context(), "nvidia_uvm"))
	require.Contains(n.t, n.loads("--config-digest", "another").Stderr, "adopted=false loaded=3")
	require.Equal(n.t, before+2, n.loadedTimes())
	n.unloads()
	n.t.Logf("adopting took %v, in an emulated machine", took[true])
}

func parameters(n *node) {
	ctx := n.t.Context()
	write := func(text string) { require.NoError(n.t, n.WriteFile(ctx, "/drivers/nvidia.conf", text, 0o644)) }
	n.MustRun(ctx, "mkdir", "-p", "/drivers")
	write("NVreg_EnableGpuFirmware=1\nNVreg_RegistryDwords=\"a=1; b=2\" # two\n")
	n.loads()
	params := n.MustRun(ctx, "cat", "/proc/driver/nvidia/params")
	require.Contains(n.t, params, "EnableGpuFirmware: 1\n")
	require.Contains(n.t, params, `RegistryDwords: "a=1; b=2"`)
	require.Contains(n.t, n.loads().Stderr, "adopted=true")
	write("NVreg_EnableGpuFirmware=0\n")
	require.Contains(n.t, n.loads().Stderr, "adopted=false")
	require.Contains(n.t, n.MustRun(ctx, "cat", "/proc/driver/nvidia/params"), "EnableGpuFirmware: 0\n")

	write("NVreg_EnableGpuFirmwares=0\n")
	n.refuses("ParameterUnknown", `/drivers/nvidia.conf:1: module nvidia `+version+` has no parameter "NVreg_EnableGpuFirmwares", did you mean "NVreg_EnableGpuFirmware"?`)
	require.Len(n.t, n.modules(), 3, "the driver that was loaded stays")
	write("NVreg_EnableGpuFirmware=on\n")
	n.refuses("ParameterUnknown", "is a number of type int")
	n.MustRun(ctx, "rm", "/drivers/nvidia.conf")
	n.unloads()
}

func upgrades(n *node) {
	p := n.run()
	n.kill(p)
	r := n.loads("--image-root", "/newer")
	require.Contains(n.t, r.Stderr, "version=590.10")
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), "590.10  SIMULATED")
	require.Equal(n.t, "590.10", n.state().Driver.Version)
	require.NotZero(n.t, n.Run(n.t.Context(), "test", "-e", driverRoot+"/lib/modules/none").Code)

	// The next container waits until the running one ends.
	p = n.run("--image-root", "/newer")
	next := n.start()
	n.until(next, "waiting for another driver container to end")
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), "590.10")
	n.ends(p)
	n.until(next, "msg=ready")
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), version)
	n.ends(next)
}

func inUse(n *node) {
	p := n.run()
	user := n.user()
	r := n.ends(p)
	require.Contains(n.t, r.Stderr, "the driver stays, for it is in use")
	s := n.state()
	require.EqualValues(n.t, "DriverUnattended", s.Reason)
	require.Contains(n.t, s.Message, "(sleep) with /dev/nvidiactl")
	require.Len(n.t, n.modules(), 3)

	// Another driver: processes keep the driver that they use.
	n.refuses("InUse", "module nvidia is in use by pid ", "--image-root", "/newer")
	require.Len(n.t, n.modules(), 3)
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), version)
	p = n.start("--image-root", "/newer")
	n.until(p, "waiting for processes that use the driver to end")
	require.EqualValues(n.t, "InUse", n.state().Reason)
	n.kill(user)
	n.until(p, "msg=ready")
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), "590.10")
	n.ends(p)

	// Held by a third-party module.
	n.loads()
	require.NoError(n.t, n.LoadModule(n.t.Context(), "/driver/lib/modules/"+n.release()+"/nvidia-fs.ko", ""))
	n.refuses("InUse", "module nvidia is in use by the module nvidia_fs of somebody else", "--image-root", "/newer")
	require.NoError(n.t, n.UnloadModule(n.t.Context(), "nvidia_fs"))
	n.unloads()
}

func (n *node) release() string {
	return strings.TrimSpace(n.MustRun(n.t.Context(), "uname", "-r"))
}

func failures(n *node) {
	ctx := n.t.Context()
	write := func(module, text string) {
		n.MustRun(ctx, "mkdir", "-p", "/drivers")
		require.NoError(n.t, n.WriteFile(ctx, "/drivers/"+module+".conf", text, 0o644))
	}
	write("nvidia", "simulated_no_device=1")
	n.refuses("NoDevice", "NVRM: No NVIDIA GPU found.")
	write("nvidia", "simulated_init_error=5")
	n.refuses("DeviceInitFailed", "its initialisation failed: input/output error")
	n.MustRun(ctx, "rm", "/drivers/nvidia.conf")
	write("nvidia-peermem", "simulated_no_ib_core=1")
	n.refuses("DeviceInitFailed", "load nvidia_peermem: its initialisation failed: invalid argument", "--gpu-direct-rdma")
	n.MustRun(ctx, "rm", "/drivers/nvidia-peermem.conf")
	require.Contains(n.t, n.loads("--gpu-direct-rdma").Stderr, "module loaded")
	require.Len(n.t, n.modules(), 4)
	n.unloads()

	n.refuses("KernelMismatch", "the driver's image has no modules for kernel "+n.release(), "--image-root", "/lib")
	n.refuses("KernelMismatch", "is built for kernel ", "--image-root", "/other")
	if n.Run(ctx, "grep", "-q", "/ecc.ko", "/lib/modules/"+n.release()+"/modules.builtin").Code == 0 {
		return // nvidia.ko needs no module of this kernel
	}
	// A kernel without the module that nvidia.ko needs, as without kernel-modules-extra.
	n.MustRun(ctx, "rmmod", "ecc")
	n.refuses("DependencyMissing", "module nvidia needs ecc, which neither the driver's image nor /none/", "--kernel-modules", "/none")
	// The kernel's module lists do not show that it is missing.
	n.MustRun(ctx, "mkdir", "-p", "/lie/"+n.release())
	require.NoError(n.t, n.WriteFile(ctx, "/lie/"+n.release()+"/modules.builtin", "kernel/crypto/ecc.ko\n", 0o644))
	n.refuses("DependencyMissing", "Unknown symbol ecc_get_curve", "--kernel-modules", "/lie")
	n.loads()
	n.unloads()
}

func withoutAGPU(n *node) {
	p := n.Start(n.t.Context(), vm.Command{Args: []string{"gpu-driver", "run", "--listen="}})
	n.until(p, "there is no NVIDIA GPU on this node's PCI bus")
	s := n.state()
	require.Equal(n.t, nodestate.Waiting, s.Phase)
	require.EqualValues(n.t, "NoDevice", s.Reason)
	require.Zero(n.t, n.driver("probe").Code, "a node without a GPU needs no driver")
	n.ends(p)
	require.Empty(n.t, n.modules())
}

// killed kills gpu-driver at random moments, while it loads one of two drivers or unloads. Whatever is
// left, the next start loads the driver that it wants.
func killed(n *node) {
	const kills = 50 // of running processes, on each of the kernels
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	n.t.Logf("seed %d", seed)
	whole := n.loads().Wall
	hit, i := 0, 0
	for ; hit < kills; i++ {
		require.Less(n.t, i, 10*kills, "only %d were killed before they were done", hit)
		args := []string{"gpu-driver", "load", "--without-gpu", "--config-digest", fmt.Sprint(i % 3)}
		if i%4 == 3 {
			args = []string{"gpu-driver", "unload"}
		}
		// The agent kills it, by the machine's own clock: a request takes longer than the process.
		r := n.RunCommand(n.t.Context(), vm.Command{Args: args, Timeout: 1 + time.Duration(random.Int64N(int64(whole)))})
		if r.TimedOut {
			hit++
		}
	}
	n.t.Logf("%d of %d were killed before they were done", hit, i)
	n.loads("--image-root", "/newer")
	require.Len(n.t, n.modules(), 3)
	require.Contains(n.t, n.MustRun(n.t.Context(), "cat", "/proc/driver/nvidia/version"), "590.10")
	require.Equal(n.t, nodestate.Ready, n.state().Phase)
	n.unloads("--image-root", "/newer")
}
