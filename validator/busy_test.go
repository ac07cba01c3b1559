package main_test

import (
	"bufio"
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

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
)

// countedSample returns a vectoradd that counts its runs.
func (r *rig) countedSample() (path string, count func() int) {
	r.t.Helper()
	log := r.path("runs")
	path = r.path("vectoradd-counted")
	built.Script(r.t, path, fmt.Sprintf("echo >> %s; exec %s \"$@\"", log, built.Path(r.t, "vectoradd")))
	return path, func() int {
		text, err := os.ReadFile(log)
		if os.IsNotExist(err) {
			return 0
		}
		require.NoError(r.t, err)
		return strings.Count(string(text), "\n")
	}
}

func (r *rig) sim(command string, args ...string) {
	r.t.Helper()
	built.Gpusim(r.t, append([]string{command, "--root", r.path(driverRoot)}, args...)...)
}

// endDaemon ends a daemon and waits for it.
func (r *rig) endDaemon(p *built.Process) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	require.NoError(r.t, p.Signal(syscall.SIGTERM))
	exit, err := p.Wait(ctx)
	require.NoError(r.t, err)
	require.Zero(r.t, exit, p.Output())
}

// The validator is upgraded while jobs hold all GPUs and their memory.
func TestARestartComputesOnNoGPUOfJobs(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	r.driver(2)
	r.toolkit(r.gpus()...)
	k := r.kubelet(2)
	sample, runs := r.countedSample()
	start := func() *built.Process {
		p := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen=", "--vectoradd", sample), r.env()...)
		require.NoError(t, p.WaitOutput(ctx, "layer=plugin"))
		return p
	}
	cuda := func() readiness.Status {
		s, err := readiness.Read(r.path(readiness.DefaultDir), readiness.CUDA, "")
		require.NoError(t, err)
		return s
	}
	d := start()
	r.until(readiness.Plugin, proven)
	require.Equal(t, 2, runs())
	proof := *cuda().Proof
	r.endDaemon(d)

	for i := range 2 {
		_, err := k.Admit(ctx, kubelettest.Pod{Namespace: "default", Name: fmt.Sprint("job-", i), Container: "main", Requests: map[string]int{"nvidia.com/gpu": 1}})
		require.NoError(t, err)
	}
	r.sim("load", "--gpu", "all", "--memory-used", "all")
	d = start()
	r.until(readiness.Plugin, proven)
	require.Equal(t, 2, runs(), "nothing was computed")
	again := *cuda().Proof
	require.Equal(t, 2, again.GPUs)
	require.WithinDuration(t, proof.Time, again.Time, 5*time.Second, "the proof has the time at which it was made")
	require.Contains(t, again.Summary, ", proven ")
	r.endDaemon(d)

	require.NoError(t, os.WriteFile(r.proof("cuda-proof.json"), []byte(`{"version":1,"bootID":`), 0o644))
	d = start()
	r.until(readiness.Plugin, proven)
	require.Equal(t, 2, runs(), "a damaged proof is no reason to compute on GPUs of jobs")
	unproven := *cuda().Proof
	require.Zero(t, unproven.GPUs)
	require.Len(t, unproven.Unproven, 2)
	require.Contains(t, d.Output(), "GPUInUse: not proven now: GPU 0 (")
	require.Contains(t, d.Output(), "held by pod default/job-")

	r.sim("load", "--gpu", "all", "--memory-used", "0")
	for i := range 2 {
		k.Remove("default", fmt.Sprint("job-", i))
	}
	r.until(readiness.CUDA, func(s readiness.Status) bool { return s.Proof != nil && s.Proof.GPUs == 2 })
	require.Equal(t, 4, runs(), "they are proven once they are free")
	require.Empty(t, cuda().Proof.Unproven)
}

func TestAGPUInUseIsNoFailedOne(t *testing.T) {
	r := newRig(t)
	r.driver(2)
	id := r.gpus()[1].UUID
	type unproven struct {
		GPU       gpu.UUID
		Reason    string
		Code      int
		Message   string
		Processes []uint32
	}
	run := func() (exit int, busy []unproven, text string) {
		t.Helper()
		exit, out, said := r.run(r.args("run", "--allow-simulated", "--layers", "cuda", "-o", "json")...)
		var report struct {
			Layers []struct {
				Outcome, Summary string
				Unproven         []unproven
			}
		}
		require.NoError(t, json.Unmarshal([]byte(out), &report), out)
		return exit, report.Layers[1].Unproven, report.Layers[1].Summary + said
	}
	fails := func(code int, says string) {
		t.Helper()
		exit, busy, text := run()
		require.Equal(t, 12, exit, text)
		require.Empty(t, busy)
		require.Contains(t, text, fmt.Sprintf("CUDASampleFailed: vectorAdd failed on 1 of 2 GPUs: GPU 1 (%s", id))
		require.Contains(t, text, fmt.Sprintf("error %d", code))
		require.Contains(t, text, says)
	}
	busy := func(reason string, code int, says string) {
		t.Helper()
		exit, busy, text := run()
		require.Zero(t, exit, text)
		require.Len(t, busy, 1, text)
		require.Equal(t, id, busy[0].GPU)
		require.Equal(t, reason, busy[0].Reason)
		require.Equal(t, code, busy[0].Code)
		require.Contains(t, busy[0].Message, says)
		require.Contains(t, text, "vectorAdd on 1 of 2 GPUs")
	}
	passes := func() {
		t.Helper()
		exit, busy, text := run()
		require.Zero(t, exit, text)
		require.Empty(t, busy)
	}

	r.sim("load", "--gpu", "1", "--memory-used", "all")
	fails(2, "if nothing has, reset the GPU") // nobody has it
	r.sim("process", "--gpu", "1", "--pid", "4711", "--memory", "0", "--graphics")
	busy("GPUInUse", 2, "used by process 4711") // one that draws does not keep the sample away
	r.sim("process", "--gpu", "1", "--end")
	r.sim("process", "--gpu", "1", "--pid", "4712", "--memory", "0")
	busy("GPUInUse", 0, "used by process 4712")
	r.sim("process", "--gpu", "1", "--end")
	r.sim("load", "--gpu", "1", "--memory-used", "0")
	passes()
	r.sim("mode", "--gpu", "1", "--mode", "prohibited")
	busy("ComputeProhibited", 0, "PROHIBITED")
	r.sim("mode", "--gpu", "1", "--mode", "exclusive-process")
	passes()
	job := exec.CommandContext(t.Context(), built.Path(t, "memtest"), "--for", "1h", "--device", "1")
	job.Env = append(built.Environ(), "LD_LIBRARY_PATH="+r.libraries())
	var said strings.Builder
	job.Stderr = &said
	out, err := job.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, job.Start())
	defer func() { _ = job.Process.Kill(); _ = job.Wait() }()
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = job.Wait()
	}
	require.NoError(t, err, "%s", &said)
	require.Contains(t, first, "Test of ", "it has the GPU")
	busy("GPUInUse", 46, "EXCLUSIVE_PROCESS")
}

// libraries returns the folder of the driver's libraries.
func (r *rig) libraries() string {
	r.t.Helper()
	found, err := filepath.Glob(r.path(driverRoot + "/usr/lib/*/libcuda.so.1"))
	require.NoError(r.t, err)
	require.Len(r.t, found, 1)
	return filepath.Dir(found[0])
}

func TestAGPUOfAnMPSDaemonIsProven(t *testing.T) {
	r := newRig(t)
	r.driver(1)
	id := r.gpus()[0].UUID
	const resource = "nvidia.com/gpu"
	pipe := r.path("/run/nvidia/mps/" + resource + "/pipe")
	require.NoError(t, os.MkdirAll(pipe, 0o755))
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + pipe}
	control := exec.CommandContext(t.Context(), r.path(driverRoot+"/usr/bin/nvidia-cuda-mps-control"), "-f")
	control.Env = env
	require.NoError(t, control.Start())
	defer func() { _ = control.Process.Kill(); _ = control.Wait() }()
	require.Eventually(t, func() bool { _, err := os.Stat(pipe + "/control"); return err == nil }, deadline, time.Millisecond)
	r.sim("mode", "--gpu", "0", "--mode", "exclusive-process")
	client := exec.CommandContext(t.Context(), built.Path(t, "vectoradd"))
	client.Env = append(append(built.Environ(), env...), "LD_LIBRARY_PATH="+r.libraries())
	out, err := client.CombinedOutput()
	require.NoError(t, err, "%s", out)

	args := r.args("run", "--allow-simulated", "--layers", "cuda")
	exit, text, said := r.run(args...)
	require.Zero(t, exit, said)
	require.Contains(t, text, "GPUInUse: not proven now: GPU 0", "its server has the GPU, and nobody knows of the daemon")
	r.writeState(nodestate.State{Component: nodestate.MPS, Phase: nodestate.Ready, MPS: &nodestate.MPSInfo{
		Claimed: []gpu.UUID{id}, Resources: []nodestate.MPSResource{{Name: resource, Root: "/run/nvidia/mps", GPUs: []gpu.UUID{id}, Ready: true}},
	}})
	exit, text, said = r.run(args...)
	require.Zero(t, exit, said)
	require.Contains(t, text, "vectorAdd on 1 of 1 GPUs, slowest")
	require.NotContains(t, text, "not proven")
}
