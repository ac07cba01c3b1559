package driver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// buildStandin builds the program that stands in for the driver's daemons and for a registry.
func buildStandin(t testing.TB) vm.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "standin")
	build := exec.Command("go", "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", path, "./test/lab/standin")
	build.Dir, build.Env = built.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return vm.Program(path)
}

// setPCI replaces the devices on the machine's PCI bus, by class and device ID.
func (n *node) setPCI(devices ...[2]string) {
	n.t.Helper()
	const dir = "/sys/bus/pci/devices"
	n.MustRun(n.t.Context(), "mount", "-t", "tmpfs", "tmpfs", dir)
	for i, d := range devices {
		at := filepath.Join(dir, "0000:3b:00."+string(rune('0'+i)))
		n.MustRun(n.t.Context(), "mkdir", at)
		for name, text := range map[string]string{"vendor": "0x10de", "class": d[0], "device": d[1]} {
			require.NoError(n.t, n.WriteFile(n.t.Context(), filepath.Join(at, name), text+"\n", 0o644))
		}
	}
}

func TestDaemons(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	fake := buildStandin(t)
	n := boot(t, vm.Config{Kernel: k, Files: vm.Merge(
		k.ModuleTree(t, []string{"ecc"}, nil),
		image("/driver", k.Release, vm.BuildStubs(t, k, version)),
		vm.Files{
			"/driver/usr/bin/nvidia-persistenced":                 fake,
			"/driver/usr/bin/nv-fabricmanager":                    fake,
			"/driver/usr/share/nvidia/nvswitch/fabricmanager.cfg": {Data: []byte("LOG_LEVEL=4\nDAEMONIZE=1\nFABRIC_MODE=0\nLOG_USE_SYSLOG=1\nABORT_CUDA_JOBS_ON_FM_EXIT=1\n")},
			"/driver/var/run":                                     {Link: "/run"},
		},
	)})
	n.setPCI([2]string{"0x030200", "0x2330"}, [2]string{"0x068000", "0x22a3"})
	check := n.MustRun(t.Context(), "gpu-driver", "check")
	require.Contains(t, check, "driver   "+version+", open modules: the image has no other")
	require.Contains(t, check, "nv-fabricmanager (required): configures 1 NVSwitch; CUDA does not start before")
	p := n.Start(t.Context(), vm.Command{Args: []string{"gpu-driver", "run", "--listen="}, Env: []string{"NVFM_CONFIG_LOG_LEVEL=5"}})
	n.until(p, "msg=ready")
	require.Len(t, n.modules(), 3)
	for _, name := range []string{"nvidia-persistenced", "nv-fabricmanager"} {
		require.NotEmpty(t, n.pid(name), name)
	}
	status := func() string { return n.MustRun(t.Context(), "cat", "/run/nvidia/validations/.driver-daemons-status") }
	require.Equal(t, "Ready\n", status())
	require.Contains(t, n.MustRun(t.Context(), "cat", "/run/nvidia-fabricmanager/fabricmanager.cfg"), "LOG_LEVEL=5")
	require.NotZero(t, n.Run(t.Context(), "ls", driverRoot+"/proc/1").Code, "what the daemons need is not shown on the node")

	before := n.pid("nv-fabricmanager")
	n.MustRun(t.Context(), "kill", "-9", before)
	n.waitState(nodestate.Degraded)
	s := n.state()
	require.EqualValues(t, "DeviceInitFailed", s.Reason)
	require.Contains(t, s.Message, "nv-fabricmanager is not ready")
	require.Equal(t, version, s.Driver.Version)
	n.waitState(nodestate.Ready)
	require.NotEqual(t, before, n.pid("nv-fabricmanager"))
	require.Equal(t, "Ready\n", status())

	// Without the other one GPUs can be used: the state is Ready and mentions it.
	before = n.pid("nvidia-persistenced")
	n.MustRun(t.Context(), "kill", "-9", before)
	n.waitFor("the state tells of nvidia-persistenced", func(s nodestate.State) bool {
		return s.Phase == nodestate.Ready && strings.Contains(s.Message, "nvidia-persistenced does not run: ")
	})
	require.Equal(t, "Ready\n", status())
	n.waitFor("nvidia-persistenced runs again", func(s nodestate.State) bool { return s.Phase == nodestate.Ready && s.Message == "" })
	require.NotEqual(t, before, n.pid("nvidia-persistenced"))

	p = n.restartsUnderJob(p)
	n.ends(p)
	require.Equal(t, "no CUDA job is aborted\n", n.MustRun(t.Context(), "cat", fabricEnded))
	require.Empty(t, n.modules())
	require.Empty(t, strings.TrimSpace(n.Run(t.Context(), "pidof", "nv-fabricmanager", "nvidia-persistenced").Stdout))

	require.NoError(t, n.WriteFile(t.Context(), "/driver/usr/share/fail", "", 0o644))
	p = n.Start(t.Context(), vm.Command{Args: []string{"gpu-driver", "run", "--listen="}})
	r := p.Wait(t.Context(), gone)
	require.Equal(t, 3, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "DeviceInitFailed: nv-fabricmanager is not ready: exit status 1, started again 0 times; it said: stand-in: fabric manager: NVSwitch 0 does not answer (a stand-in)")
	t.Log(lastLine(r.Stderr))
}

// fabricEnded is the file in which the stand-in for the fabric manager records that it was told to end.
const fabricEnded = "/run/nvidia-fabricmanager/ended"

// restartsUnderJob ends the driver's container while a job has the driver open, as a changed DaemonSet does, and
// starts it again. The fabric manager is not told to end: it would abort the job.
func (n *node) restartsUnderJob(p *vm.Process) *vm.Process {
	n.t.Helper()
	ctx := n.t.Context()
	job, fabric, loaded := n.user(), n.pid("nv-fabricmanager"), n.loadedTimes()
	r := n.ends(p)
	require.Contains(n.t, r.Stderr, "the driver's daemons are left running, for the driver is in use")
	require.EqualValues(n.t, "DriverUnattended", n.state().Reason)
	require.Contains(n.t, n.state().Message, "(sleep) with /dev/nvidiactl")
	require.NotZero(n.t, n.Run(ctx, "test", "-e", readyFile).Code)
	require.NotZero(n.t, n.Run(ctx, "test", "-e", fabricEnded).Code, "the fabric manager was told to end")
	// The container's end kills what is left of it.
	n.MustRun(ctx, "kill", "-9", fabric, n.pid("nvidia-persistenced"))

	p = n.Start(ctx, vm.Command{Args: []string{"gpu-driver", "run", "--listen="}})
	n.until(p, "adopted=true loaded=0")
	require.NotEqual(n.t, fabric, n.pid("nv-fabricmanager"))
	_, ended := job.Output(ctx)
	require.False(n.t, ended, "the job ended")
	require.Equal(n.t, loaded, n.loadedTimes())
	require.NotZero(n.t, n.Run(ctx, "test", "-e", fabricEnded).Code)
	n.kill(job)
	return p
}

// pid returns the process number in the PID file of a daemon.
func (n *node) pid(name string) string {
	n.t.Helper()
	dir := map[string]string{"nvidia-persistenced": "/run/nvidia-persistenced", "nv-fabricmanager": "/run/nvidia-fabricmanager"}[name]
	return strings.TrimSpace(n.MustRun(n.t.Context(), "cat", filepath.Join(dir, name+".pid")))
}

// waitState waits until the driver reports a phase.
func (n *node) waitState(phase nodestate.Phase) {
	n.t.Helper()
	n.waitFor("the driver becomes "+string(phase), func(s nodestate.State) bool { return s.Phase == phase })
}

// waitFor waits until the driver's state satisfies is.
func (n *node) waitFor(what string, is func(nodestate.State) bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), gone)
	defer cancel()
	for s := n.state(); !is(s); s = n.state() {
		require.NoError(n.t, ctx.Err(), "not so: %s; it is %+v", what, s)
		time.Sleep(10 * time.Millisecond) // a request to the machine each
	}
}
