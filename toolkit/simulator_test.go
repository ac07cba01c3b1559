package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

const patience = 60 * time.Second

// simulated is a host in a directory with a simulated driver in it.
type simulated struct {
	dir, driver string // in this process's file system; the driver is the host's /driver
}

func simulate(t *testing.T, profile string, args ...string) simulated {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("device nodes need root")
	}
	built.Path(t, "gpu-cdi-hook")
	root := built.DriverRoot(t, profile, args...)
	return simulated{filepath.Dir(root), root}
}

func (s simulated) flags(command string) []string {
	return []string{command, "--host-root", s.dir, "--driver-root", "/" + filepath.Base(s.driver)}
}

func (s simulated) spec(t *testing.T, file string) *specs.Spec {
	t.Helper()
	data, err := os.ReadFile(s.dir + "/var/run/cdi/" + file)
	require.NoError(t, err)
	if s.dir != "" {
		require.NotContains(t, string(data), s.dir, "paths are the host's, without --host-root")
	}
	spec, err := cdi.Parse(data)
	require.NoError(t, err)
	return spec
}

func (s simulated) await(t *testing.T, what string, done func(nodestate.State) bool) nodestate.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	boot, err := nodestate.BootIDAt(s.dir)
	require.NoError(t, err)
	var last nodestate.State
	err = nodestate.WatchBoot(ctx, s.dir+"/run/nvidia/gpuready/toolkit", boot, func(state nodestate.State, err error) {
		if last = state; err == nil && done(state) {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled, "%s; the last state was %+v", what, last)
	return last
}

func gpus(s nodestate.State) []string {
	if s.Toolkit == nil || len(s.Toolkit.Specs) == 0 {
		return nil
	}
	return s.Toolkit.Specs[0].Devices
}

func TestApplyOnTheSimulatorsRoot(t *testing.T) {
	s := simulate(t, "h100-sxm")
	toolkit(t, s.flags("apply")...)
	root, err := host.Open(s.dir)
	require.NoError(t, err)
	defer root.Close()
	files, err := cdi.Load(root)
	require.NoError(t, err)
	spec := s.spec(t, "k8s.gpuready.io-gpu.yaml")
	require.Len(t, spec.Devices, 8)
	for _, d := range spec.Devices {
		require.NoError(t, cdi.Check(root, files, cdi.KindGPU+"="+d.Name))
	}
	require.NoError(t, cdi.Check(root, files, cdi.ManagementName()))
	var mounted []string
	for _, m := range spec.ContainerEdits.Mounts {
		mounted = append(mounted, filepath.Base(m.ContainerPath))
	}
	for _, want := range []string{"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05", "libnvidia-gpusim.so.580.95.05", "nvidia-smi", "nvidia-cuda-mps-control"} {
		require.Contains(t, mounted, want)
	}
	state := s.await(t, "the state", func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.True(t, state.Driver.Simulated)
	require.Equal(t, "/driver", state.Driver.Root)
	require.Empty(t, toolkit(t, s.flags("apply")...), "a second time there is nothing to do")
	require.Equal(t, "nothing to change\n", toolkit(t, s.flags("plan")...))
	toolkit(t, s.flags("restore")...)
	for _, gone := range []string{"/var", "/usr", "/dev"} {
		_, err := os.Stat(s.dir + gone)
		require.ErrorIs(t, err, fs.ErrNotExist, gone)
	}
}

// Others may define our kinds: they are reported, and their files are not touched.
func TestOthersSpecificationsAreReported(t *testing.T) {
	s := simulate(t, "h100-sxm")
	toolkit(t, s.flags("apply")...)
	cdiDir := s.dir + "/var/run/cdi/"
	for from, to := range map[string]string{"k8s.gpuready.io-gpu.yaml": cdiDir + "copy.yaml", "gpuready-nvidia.com-nvswitch.yaml": s.dir + "/etc/cdi/theirs.yaml"} {
		data, err := os.ReadFile(cdiDir + from)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, data, 0o644))
	}
	require.Contains(t, toolkit(t, s.flags("apply")...), "removed /var/run/cdi/gpuready-nvidia.com-nvswitch.yaml")
	state := s.await(t, "conflict", func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	require.EqualValues(t, "CDIConflict", state.Reason)
	require.Contains(t, state.Message, "/var/run/cdi/copy.yaml defines k8s.gpuready.io/gpu=GPU-")
	require.NoError(t, os.Remove(cdiDir+"copy.yaml"))
	toolkit(t, s.flags("apply")...)
	state = s.await(t, "ready", func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Contains(t, state.Message, "/etc/cdi/theirs.yaml defines nvidia.com/nvswitch; ours is not written")
}

// One process handles a late driver, a MIG layout, a driver upgrade and SIGTERM, as in a
// DaemonSet.
func TestRunFollowsTheDriver(t *testing.T) {
	built.SkipWithDriver(t)
	s := simulate(t, "a100-80gb", "--gpus", "2")
	built.Gpusim(t, "down", "--root", s.driver)
	pci := s.dir + "/sys/bus/pci/devices/0000:01:00.0"
	require.NoError(t, os.MkdirAll(pci, 0o755))
	require.NoError(t, os.WriteFile(pci+"/vendor", []byte("0x10de\n"), 0o444))
	require.NoError(t, os.WriteFile(pci+"/class", []byte("0x030200\n"), 0o444))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	p := built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen", address))
	s.await(t, "waiting for a driver", func(s nodestate.State) bool { return s.Phase == nodestate.Waiting })
	require.Equal(t, http.StatusServiceUnavailable, status(t, address))

	built.Gpusim(t, "up", "--root", s.driver, "--profile", "a100-80gb", "--gpus", "2")
	s.await(t, "two GPUs", func(s nodestate.State) bool { return len(gpus(s)) == 2 && s.Phase == nodestate.Ready })
	require.Equal(t, http.StatusOK, status(t, address))

	built.Gpusim(t, "mig", "--root", s.driver, "--gpu", "0", "--layout", "1g.10gb,2g.20gb")
	s.await(t, "two MIG devices", func(s nodestate.State) bool { return len(gpus(s)) == 4 && s.Phase == nodestate.Ready })

	built.Gpusim(t, "up", "--root", s.driver, "--profile", "a100-80gb", "--gpus", "2", "--driver-version", "590.10.01")
	state := s.await(t, "the new driver", func(s nodestate.State) bool {
		return s.Driver != nil && s.Driver.Version == "590.10.01" && s.Phase == nodestate.Ready
	})
	require.Len(t, gpus(state), 2)
	spec := s.spec(t, "k8s.gpuready.io-gpu.yaml")
	for _, m := range spec.ContainerEdits.Mounts {
		require.NotContains(t, m.HostPath, "580.95.05")
	}
	require.Contains(t, p.Output(), "the driver was replaced")
	before, err := os.ReadDir(s.dir + "/var/run/cdi")
	require.NoError(t, err)
	require.NoError(t, p.Signal(syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, exit, p.Output())
	after, err := os.ReadDir(s.dir + "/var/run/cdi")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(before), fmt.Sprint(after))
}

func TestGPUThatNeedsAResetCanBeReset(t *testing.T) {
	s := simulate(t, "h100-sxm", "--gpus", "2")
	built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen", ""))
	s.await(t, "two GPUs", func(s nodestate.State) bool { return len(gpus(s)) == 2 })
	built.Gpusim(t, "xid", "--root", s.driver, "--gpu", "1", "--xid", "95")
	built.Gpusim(t, "reset", "--root", s.driver, "--gpu", "1", "--wait", "90s") // fails the test if it is refused
	require.Len(t, s.spec(t, "k8s.gpuready.io-gpu.yaml").Devices, 2)
}

// The built programs run, with the runtime's side in this test.
func TestRunInjectsTheGPUsIntoAgents(t *testing.T) {
	s := simulate(t, "t4")
	off := false
	cri, err := runtimetest.StartCRI(s.dir+"/run/other/cri.sock", runtimetest.CRIConfig{Name: "containerd", Version: "1.7.24", CDI: &off, Dirs: []string{"/var/run/cdi"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, cri.Stop()) }()
	flags := []string{"--runtime-socket", "/run/other/cri.sock"}
	const advice = `set enable_cdi = true and cdi_spec_dirs = ["/var/run/cdi"] in the table [plugins."io.containerd.grpc.v1.cri"]`
	require.Contains(t, toolkit(t, append(s.flags("plan"), flags...)...), advice)
	require.Contains(t, toolkit(t, append(s.flags("apply"), flags...)...), advice)
	state := s.await(t, "degraded", func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	require.Nil(t, state.Toolkit.Injection, "only run is a plugin of the runtime")

	runtime, err := runtimetest.StartNRI("containerd", "v2.2.1", s.dir+"/run/plugins/nri.sock")
	require.NoError(t, err)
	defer func() { require.NoError(t, runtime.Kill()) }()
	built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen=", "--nri-socket=/run/plugins/nri.sock"), "POD_NAMESPACE=ours")
	state = s.await(t, "working", func(s nodestate.State) bool {
		return s.Phase == nodestate.Ready && s.Toolkit.Injection != nil && s.Toolkit.Injection.Working
	})
	require.Nil(t, state.Toolkit.Runtime, "none is where it is looked for")
	adjust, err := runtime.Create(
		&api.PodSandbox{Id: "p", Namespace: "ours", Annotations: map[string]string{injection.Annotation: "true"}},
		&api.Container{Id: "c", Env: []string{injection.Variable + "=" + injection.Expected}})
	require.NoError(t, err)
	require.Equal(t, injection.Device, adjust.GetCDIDevices()[0].GetName())
	require.Equal(t, state.Toolkit.Injection.Generation, adjust.GetEnv()[0].GetValue())
}

// The layout of a GPU does not matter to agents that only monitor it.
func TestAMIGLayoutChangesHalfOfTheGeneration(t *testing.T) {
	s := simulate(t, "a100-80gb")
	runtime, err := runtimetest.StartNRI("containerd", "v2.2.1", s.dir+"/run/plugins/nri.sock")
	require.NoError(t, err)
	defer func() { require.NoError(t, runtime.Kill()) }()
	built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen=", "--nri-socket=/run/plugins/nri.sock"), "POD_NAMESPACE=ours")
	generation := func(devices int) string {
		t.Helper()
		state := s.await(t, fmt.Sprint(devices, " devices"), func(s nodestate.State) bool {
			return len(gpus(s)) == devices && s.Toolkit.Injection != nil && s.Toolkit.Injection.Working && s.Toolkit.Injection.Generation != ""
		})
		return state.Toolkit.Injection.Generation
	}
	whole := generation(8)
	built.Gpusim(t, "mig", "--root", s.driver, "--gpu", "0", "--layout", "1g.10gb,2g.20gb")
	divided := generation(10)
	require.False(t, injection.Current(whole, divided, injection.Whole))
	require.True(t, injection.Current(whole, divided, injection.Base), "%s, %s", whole, divided)
	built.Gpusim(t, "mig", "--root", s.driver, "--gpu", "0", "--off")
	require.True(t, injection.Current(whole, generation(8), injection.Base))
}

func status(t *testing.T, address string) int {
	t.Helper()
	code, _ := built.Get(t, "http://"+address+"/readyz")
	return code
}

// fails runs gpu-toolkit, which must fail with one message and leave nothing behind.
func (s simulated) fails(t *testing.T, want string, args ...string) {
	t.Helper()
	p := built.Start(t, "gpu-toolkit", args)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err := p.Wait(ctx)
	require.NoError(t, err)
	out := p.Output()
	require.Equal(t, 1, exit, out)
	require.Regexp(t, "(?m)^gpu-toolkit: .*"+regexp.QuoteMeta(want), out)
	_, err = os.Stat(s.dir + "/var/run/cdi/k8s.gpuready.io-gpu.yaml")
	require.True(t, errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR), "nothing half-written: %v", err)
}

func TestAMissingDriverIsOneClearMessage(t *testing.T) {
	built.SkipWithDriver(t)
	s := simulate(t, "t4")
	s.fails(t, "say where it is with --driver-root", "apply", "--host-root", s.dir, "--driver-root", "/nothing")
}

func TestEachFailureIsOneClearMessage(t *testing.T) {
	s := simulate(t, "t4")
	libs, err := filepath.Glob(s.driver + "/usr/lib/*/libcuda.so*")
	require.NoError(t, err)
	require.NotEmpty(t, libs)
	s.fails(t, "--hook-program", append(s.flags("apply"), "--hook-program", "/nothing")...)
	require.NoError(t, os.MkdirAll(s.dir+"/var", 0o755))
	require.NoError(t, os.WriteFile(s.dir+"/var/run", nil, 0o644))
	s.fails(t, "not a directory", s.flags("apply")...)
	require.NoError(t, os.Remove(s.dir+"/var/run"))
	for _, l := range libs {
		require.NoError(t, os.Rename(l, l+".aside"))
	}
	s.fails(t, "install the driver's compute libraries", s.flags("apply")...)
	for _, l := range libs {
		require.NoError(t, os.Rename(l+".aside", l))
	}
	built.Gpusim(t, "up", "--root", s.driver, "--profile", "t4", "--module-version", "570.1")
	s.fails(t, "reboot", s.flags("apply")...)
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"--help"}, 0, "Exit codes"},
		{[]string{"--help"}, 0, "[$NVIDIA_DRIVER_ROOT]"},
		{[]string{"--version"}, 0, "gpu-toolkit "},
		{nil, 2, "no command (known here: plan, apply"},
		{[]string{"applly"}, 2, "See gpu-toolkit --help"},
		{[]string{"apply", "--cdi-output-dir", "x"}, 2, "absolute"},
		{[]string{"run", "--log-format", "xml"}, 2, "text or json"},
		{[]string{"apply", "--nonsense"}, 2, "nonsense"},
		{[]string{"run", "--nri-socket", "x"}, 2, "absolute"},
		{[]string{"run", "--runtime-socket", "x"}, 2, "absolute"},
		{[]string{"--help"}, 0, "[$POD_NAMESPACE]"},
		{[]string{"run", "--nri-workload-namespaces", "team,kube-*"}, 2, `"kube-*" is no namespace`},
	} {
		var out strings.Builder
		require.Equal(t, c.exit, runCommand(t.Context(), c.args, &out, &out), out.String())
		require.Contains(t, out.String(), c.want)
	}
	t.Setenv("CDI_OUTPUT_DIR", "/env")
	o, err := parse([]string{"run", "--dry-run"})
	require.NoError(t, err)
	require.Equal(t, "/env", o.config.CDIDir)
	require.Equal(t, "plan", o.command)
	o, err = parse([]string{"run", "--cdi-output-dir", "/flag"})
	require.NoError(t, err)
	require.Equal(t, "/flag", o.config.CDIDir, "the command line goes first")
	t.Setenv("GPUREADY_NRI_WORKLOAD_NAMESPACES", " team, batch,,team")
	o, err = parse([]string{"run"})
	require.NoError(t, err)
	require.Equal(t, []string{"team", "batch"}, o.config.WorkloadNamespaces)
	_, err = json.Marshal(o.config)
	require.NoError(t, err)
}

func TestOnlyOneInstanceChangesTheHost(t *testing.T) {
	s := simulate(t, "t4", "--gpus", "1")
	first := built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen", ""))
	s.await(t, "a GPU", func(s nodestate.State) bool { return len(gpus(s)) == 1 })
	out, err := exec.Command(built.Path(t, "gpu-toolkit"), s.flags("apply")...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "another gpu-toolkit is at work on this host")
	require.Contains(t, string(out), fmt.Sprintf("process %d", first.PID()))

	second := built.Start(t, "gpu-toolkit", append(s.flags("run"), "--listen", ""))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, second.WaitOutput(ctx, "msg=waiting"))
	require.NoError(t, first.Signal(syscall.SIGTERM))
	require.NoError(t, second.WaitOutput(ctx, "toolkit Ready"))
}
