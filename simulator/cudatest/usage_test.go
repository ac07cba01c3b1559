package cudatest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

const unavailable result = 46

// vectorAdd runs vectoradd on GPU 0 of a root as a process of its own, and returns the result (CUresult) of
// the call that failed, 0 if it passed.
func vectorAdd(t *testing.T, root string, env ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built.Path(t, "vectoradd"), "-o", "json")
	cmd.Env = append(built.Environ(), append([]string{"LD_LIBRARY_PATH=" + filepath.Dir(libraryOf(t, root)), "CUDA_VISIBLE_DEVICES=0"}, env...)...)
	out, err := cmd.Output()
	var report struct {
		Passed bool
		Code   result
		Error  string
	}
	require.NoError(t, json.Unmarshal(out, &report), "%s%v", out, err)
	require.Equal(t, report.Passed, report.Code == 0, report.Error)
	return report.Code
}

// holdContext makes this process hold a context on GPU 0 until the returned function is called.
func holdContext(t *testing.T, root string) (l *lib, release func()) {
	t.Helper()
	runtime.LockOSThread() // a context is that of its thread
	l = load(t, root)
	require.Zero(t, l.cuInit(0))
	var ctx uintptr
	require.Zero(t, l.cuCtxCreate(&ctx, 0, 0))
	return l, func() { require.Zero(t, l.cuCtxDestroy(ctx)) }
}

func TestTheComputeModeLimitsTheProcessesOfAGPU(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	sim := func(command string, args ...string) {
		t.Helper()
		built.Gpusim(t, append([]string{command, "--root", root, "--gpu", "0"}, args...)...)
	}
	sim("mode", "--mode", "prohibited")
	require.Equal(t, unavailable, vectorAdd(t, root))
	sim("mode", "--mode", "exclusive-process")
	require.Zero(t, vectorAdd(t, root), "the first process")
	l, release := holdContext(t, root)
	require.Equal(t, unavailable, vectorAdd(t, root), "another one")
	var second uintptr
	require.Zero(t, l.cuCtxCreate(&second, 0, 0), "a process may have several contexts")
	release()
	require.Equal(t, unavailable, vectorAdd(t, root))
	sim("mode", "--mode", "default")
	require.Zero(t, vectorAdd(t, root))
	sim("mode", "--mode", "exclusive-process")
	require.Equal(t, unavailable, vectorAdd(t, root), "one that was there before the mode counts")
	require.Zero(t, l.cuCtxDestroy(second))
	require.Zero(t, vectorAdd(t, root))

	sim("process", "--pid", "4711")
	require.Equal(t, unavailable, vectorAdd(t, root), "a process that NVML lists")
	sim("process", "--end")
	sim("process", "--pid", "4711", "--graphics")
	require.Zero(t, vectorAdd(t, root), "drawing needs no CUDA context")
}

func TestAnExclusiveGPUIsFreeAfterAKill(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	built.Gpusim(t, "mode", "--root", root, "--gpu", "all", "--mode", "exclusive-process")
	var cmd *exec.Cmd
	ended := make(chan struct{})
	start := func() {
		cmd = exec.CommandContext(t.Context(), built.Path(t, "memtest"), "--for", "1h")
		cmd.Env = append(built.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(libraryOf(t, root)))
		require.NoError(t, cmd.Start())
		ended = make(chan struct{})
		go func(cmd *exec.Cmd, ended chan struct{}) { defer close(ended); _ = cmd.Wait() }(cmd, ended)
	}
	start()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	for vectorAdd(t, root) != unavailable {
		select {
		case <-ended: // the GPU was that of vectorAdd when it started
			start()
		case <-time.After(50 * time.Millisecond):
		}
	}
	require.NoError(t, cmd.Process.Kill())
	<-ended
	require.Zero(t, vectorAdd(t, root))
}

func TestAContextNeedsMemory(t *testing.T) {
	root := built.DriverRoot(t, "t4", "--gpus", "1")
	load := func(mib string) {
		t.Helper()
		built.Gpusim(t, "load", "--root", root, "--gpu", "all", "--memory-used", mib)
	}
	l, release := holdContext(t, root)
	load("all")
	require.Equal(t, outOfMemory, vectorAdd(t, root))
	var free, total, p uint64
	require.Zero(t, l.cuMemGetInfo(&free, &total))
	require.Less(t, free, uint64(1<<20))
	require.Equal(t, outOfMemory, check(l.cuMemAlloc(&p, 1<<20)))
	require.Zero(t, l.cuCtxSynchronize(), "a context that is there goes on")
	release()
	load("14000")
	require.Zero(t, vectorAdd(t, root))
	load("0")
	built.Gpusim(t, "process", "--root", root, "--gpu", "0", "--pid", "1", "--memory", "14900")
	require.Equal(t, outOfMemory, vectorAdd(t, root), "a process has it")
}

// The server of MPS is the process that has the GPU, from its first client until the daemon quits.
func TestClientsOfMPSShareAnExclusiveGPU(t *testing.T) {
	root, pipe := built.DriverRoot(t, "t4", "--gpus", "1"), t.TempDir()
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + pipe}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "usr/bin/nvidia-cuda-mps-control"), "-f")
	cmd.Env = env
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	require.Eventually(t, func() bool { _, err := os.Stat(pipe + "/control"); return err == nil }, time.Minute, time.Millisecond)
	built.Gpusim(t, "mode", "--root", root, "--gpu", "0", "--mode", "exclusive-process")
	require.Zero(t, vectorAdd(t, root), "nobody has it yet")

	_, release := holdContext(t, root)
	require.Equal(t, unavailable, vectorAdd(t, root, env...), "no server starts beside another process")
	release()
	require.Zero(t, vectorAdd(t, root, env...))
	require.Equal(t, unavailable, vectorAdd(t, root), "the server has it")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", pipe)
	_, release = holdContext(t, root)
	require.Zero(t, vectorAdd(t, root, env...), "two clients")
	release()
	require.Zero(t, vectorAdd(t, root, "CUDA_MPS_PIPE_DIRECTORY="+pipe))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	require.Zero(t, vectorAdd(t, root), "its server has ended with it")
}
