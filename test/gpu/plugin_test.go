package gpu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/faultykernel"
)

const (
	resource = "nvidia.com/gpu"
	// faultVar makes this test binary run a kernel that writes where it may not.
	faultVar = "GPUREADY_TEST_FAULT"
)

func TestMain(m *testing.M) {
	if os.Getenv(faultVar) == "" {
		os.Exit(m.Run())
	}
	if err := faultykernel.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// plugin is a running device plugin of this machine's GPUs, with a kubelet.
type plugin struct {
	t       *testing.T
	kubelet *kubelettest.Kubelet
	cmd     *exec.Cmd
	log     bytes.Buffer
	started time.Time
	state   string // folder
}

// startPlugin starts our device plugin.
func startPlugin(t *testing.T, kubelet *kubelettest.Kubelet, args ...string) *plugin {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	p := startProgram(t, kubelet, built.Path(t, "gpu-device-plugin"), append([]string{
		"--kubelet-socket", kubelet.Socket(), "--state-dir", state, "--device-list-strategy", "envvar",
	}, args...)...)
	p.state = state
	return p
}

func startProgram(t *testing.T, kubelet *kubelettest.Kubelet, program string, args ...string) *plugin {
	t.Helper()
	p := &plugin{t: t, kubelet: kubelet, cmd: exec.Command(program, args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.Env = append(os.Environ(), "DP_ENABLE_HEALTHCHECKS=31") // of a program's fault, for both
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.started = time.Now()
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the plugin's log:\n%s", &p.log)
		}
	})
	return p
}

// wait returns the resource once the condition holds for it.
func (p *plugin) wait(condition func(kubelettest.Resource) bool) kubelettest.Resource {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	r, err := p.kubelet.Wait(ctx, resource, condition)
	if err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // before its log is read
	}
	require.NoErrorf(p.t, err, "%s", &p.log)
	return r
}

// stop ends the plugin and returns how long it took.
func (p *plugin) stop() time.Duration {
	p.t.Helper()
	began := time.Now()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(p.t, p.cmd.Wait())
	return time.Since(began)
}

func startKubelet(t *testing.T) *kubelettest.Kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kubelet") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return startKubeletIn(t, dir)
}

func startKubeletIn(t *testing.T, dir string) *kubelettest.Kubelet {
	t.Helper()
	k, err := kubelettest.Start(kubelettest.Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(k.Stop)
	return k
}

// fail runs a program whose fault makes the driver report XID 31. It returns the time of the launch.
func fail(t *testing.T) time.Time {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), faultVar+"=1")
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	require.NoError(t, err)
	return time.Unix(0, at)
}

// life holds what was measured in one life of a device plugin, in ms and MB.
type life [5]float64

var lifeRows = [len(life{})]string{
	"start of the process → the kubelet's first list, ms",
	"a pod's admission, ms",
	"launch of a faulty kernel → the kubelet's list with the unhealthy GPU (XID 31), ms",
	"SIGTERM → end of the process, ms",
	"resident memory, MB",
}

// live measures one life.
func (p *plugin) live(gpus int) life {
	p.t.Helper()
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	listed := p.wait(func(r kubelettest.Resource) bool { return !r.Gone && r.Allocatable == gpus }).Listed
	pod := kubelettest.Pod{Namespace: "default", Name: "job", Container: "cuda", Requests: map[string]int{resource: 1}}
	began := time.Now()
	admitted, err := p.kubelet.Admit(p.t.Context(), pod)
	admission := time.Since(began)
	require.NoError(p.t, err)
	require.Contains(p.t, admitted.Envs["NVIDIA_VISIBLE_DEVICES"], "GPU-")
	p.kubelet.Remove(pod.Namespace, pod.Name)
	time.Sleep(500 * time.Millisecond) // NVIDIA's listens for XIDs some time after its first list
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	resident := regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`).FindSubmatch(status)
	require.NotNil(p.t, resident)
	kB, err := strconv.Atoi(string(resident[1]))
	require.NoError(p.t, err)
	launched := fail(p.t)
	broken := p.wait(func(r kubelettest.Resource) bool { return r.Allocatable == gpus-1 }).Listed
	stop := p.stop()
	p.wait(func(r kubelettest.Resource) bool { return r.Gone })
	return life{ms(listed.Sub(p.started)), ms(admission), ms(broken.Sub(launched)), ms(stop), float64(kB) / 1000}
}

// lifeTable returns a table of medians and minima.
func lifeTable(names []string, lives map[string][]life) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| median (minimum) of %d |", len(lives[names[0]]))
	for _, name := range names {
		fmt.Fprintf(&b, " %s |", name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(names)) + "\n")
	for row, text := range lifeRows {
		fmt.Fprintf(&b, "| %s |", text)
		for _, name := range names {
			var values []float64
			for _, l := range lives[name] {
				values = append(values, l[row])
			}
			slices.Sort(values)
			fmt.Fprintf(&b, " %.1f (%.1f) |", values[len(values)/2], values[0])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Each life begins without the mark of the one before. GPUREADY_REFERENCE may name NVIDIA's device
// plugin, whose lives then alternate with ours.
func TestGPUDevicePluginLives(t *testing.T) {
	snap := machine(t)
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	names, lives := []string{"gpuready"}, map[string][]life{}
	kubelet := startKubelet(t)
	var theirs *kubelettest.Kubelet
	program := os.Getenv("GPUREADY_REFERENCE")
	if program != "" {
		const dir = "/var/lib/kubelet/device-plugins" // NVIDIA's serves nowhere else
		require.NoFileExists(t, dir+"/kubelet.sock", "this machine has a kubelet")
		require.NoError(t, os.MkdirAll(dir, 0o750))
		theirs, names = startKubeletIn(t, dir), append(names, filepath.Base(program))
	}
	for range 9 {
		lives[names[0]] = append(lives[names[0]], startPlugin(t, kubelet, "--listen=").live(len(snap.Devices)))
		if theirs != nil {
			p := startProgram(t, theirs, program, "--device-list-strategy=envvar")
			lives[names[1]] = append(lives[names[1]], p.live(len(snap.Devices)))
		}
	}
	t.Logf("device plugin on %d × %s, driver %s\n%s", len(snap.Devices), snap.Devices[0].Product, snap.Driver.Version, lifeTable(names, lives))
}

// The driver reports an XID for a program's fault. The GPU is marked, its neighbours are not,
// and the mark outlives the plugin.
func TestGPUXIDOfAProgram(t *testing.T) {
	snap := machine(t)
	// All programs of this machine see the GPUs in the order of PCI addresses.
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: v1\nhealth:\n  xids:\n  - {xid: 31, action: unhealthy, recovery: quiet}\n"), 0o644))
	kubelet := startKubelet(t)
	p := startPlugin(t, kubelet, "--listen=", "--config-file", config)
	p.wait(func(r kubelettest.Resource) bool { return !r.Gone && r.Allocatable == len(snap.Devices) })

	fail(t)
	p.wait(func(r kubelettest.Resource) bool { return r.Allocatable == len(snap.Devices)-1 })
	state, err := os.ReadFile(filepath.Join(p.state, string(nodestate.DevicePlugin), nodestate.FileName))
	require.NoError(t, err)
	require.Contains(t, string(state), "XID 31")
	p.stop()
	require.Contains(t, p.log.String(), "XID 31")

	again := startPlugin(t, kubelet, "--listen=", "--config-file", config, "--state-dir", p.state)
	again.wait(func(r kubelettest.Resource) bool {
		return !r.Gone && r.Lists > 0 && r.Allocatable == len(snap.Devices)-1
	})
	again.stop()
	t.Logf("log:\n%s", &p.log)
}

// The metrics of the first GPU while a program uses its memory and its cores.
func TestGPUMetricsUnderLoad(t *testing.T) {
	snap := machine(t)
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	const listen = "127.0.0.1:19402"
	p := startPlugin(t, startKubelet(t), "--listen="+listen)
	p.wait(func(r kubelettest.Resource) bool { return !r.Gone && r.Allocatable == len(snap.Devices) })
	scrape := func() map[string]float64 {
		began := time.Now()
		status, body := built.Get(t, "http://"+listen+"/metrics")
		t.Logf("a scrape took %s", time.Since(began))
		require.Equal(t, 200, status)
		found := map[string]float64{}
		for line := range strings.Lines(body) {
			name, rest, ok := strings.Cut(line, "{")
			labels, value, _ := strings.Cut(rest, "} ")
			if ok && strings.HasPrefix(name, "gpuready_gpu_") && strings.Contains(labels, string(snap.Devices[0].UUID)) {
				t.Log(strings.TrimSpace(line))
				number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				require.NoError(t, err)
				found[name] = number
			}
		}
		return found
	}
	idle := scrape()
	load := exec.CommandContext(t.Context(), built.Path(t, "memtest"), "--share", "0.5", "--for", "30s", "--every", "1ms")
	require.NoError(t, load.Start())
	time.Sleep(3 * time.Second) // utilisation is the driver's mean over up to a second
	busy := scrape()
	require.NoError(t, load.Process.Kill())
	_ = load.Wait()
	p.stop()
	require.Greater(t, busy["gpuready_gpu_utilization_ratio"], 0.5)
	require.Greater(t, busy["gpuready_gpu_memory_used_bytes"], idle["gpuready_gpu_memory_used_bytes"]+float64(snap.Devices[0].MemoryBytes)/4)
	require.Greater(t, busy["gpuready_gpu_power_watts"], idle["gpuready_gpu_power_watts"])
	require.Greater(t, busy["gpuready_gpu_temperature_celsius"], 0.0)
}

// A node without Kubernetes: the driver's layer, and the CUDA job on each GPU.
func TestGPUValidatorRuns(t *testing.T) {
	snap := machine(t)
	out := run(t, "gpu-validator", "run", "--layers", "driver,cuda", "-o", "json")
	require.True(t, json.Valid([]byte(out)))
	require.Contains(t, out, string(snap.Devices[0].UUID))
	t.Log(out)
}
