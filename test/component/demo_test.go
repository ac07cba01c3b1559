package component_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// demo runs the built demo, checks that it leaves nothing behind, and returns both streams and the exit
// code.
func demo(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	needDemo(t)
	var out, errs strings.Builder
	cmd := exec.Command(built.Path(t, "demo"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(built.Environ(), mark(t))
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	requireNoProcess(t)
	requireNoTrace(t, cmd.Process.Pid)
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// needDemo builds everything that the demo runs.
func needDemo(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the demo needs root")
	}
	built.Gpusim(t, "--version")
	for _, name := range []string{"gpu-toolkit", "gpu-cdi-hook", "gpu-device-plugin", "gpu-validator", "vectoradd"} {
		built.Path(t, name)
	}
}

// mark is an environment variable that distinguishes the processes of this test's demo from others.
func mark(t *testing.T) string { return fmt.Sprintf("DEMO_TEST=%d/%s", os.Getpid(), t.Name()) }

func TestDemoEndsWithAPassedJob(t *testing.T) {
	out, errs, exit := demo(t, "--profile", "h100-sxm")
	require.Zero(t, exit, out+errs)
	require.True(t, strings.HasSuffix(out, "\ngpuready: CUDA job PASSED (SIMULATED)\n"), out)
	require.Contains(t, out, "  Test PASSED (SIMULATED)\n  Done\n")
	require.NotContains(t, out, "\033", "no colours where there is no terminal")
}

func TestDemoSpeaksJSON(t *testing.T) {
	out, errs, exit := demo(t, "-o", "json", "--profile", "dgx-2")
	require.Zero(t, exit, out+errs)
	var r struct {
		Passed, Simulated bool
		GPUs              int
		Steps             []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.True(t, r.Passed)
	require.True(t, r.Simulated)
	require.Equal(t, 16, r.GPUs)
	require.Len(t, r.Steps, 6)
}

func TestDemoFailsWithStepReasonAndNextAction(t *testing.T) {
	for _, c := range []struct{ name, step, reason, next string }{
		{"driver", "driver", "version", "kernel modules"},
		{"cdi", "toolkit", "read-only", "writable"},
		{"memory", "validator", "layer cuda", "CUDA_VISIBLE_DEVICES=GPU-"},
		{"permission", "pod", "permi", "let the container runtime inject the GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, errs, exit := demo(t, "--break", c.name)
			require.Equal(t, 1, exit, out+errs)
			require.True(t, strings.HasPrefix(errs, "gpuready: CUDA job FAILED\n"), "the reason comes first: %s", errs)
			tail := errs
			require.Contains(t, tail, "  step    "+c.step+"\n")
			require.Contains(t, strings.ToLower(tail), c.reason)
			_, next, _ := strings.Cut(tail, "\n  next    ")
			next, rest, _ := strings.Cut(next, "\n")
			require.Contains(t, next, c.next)
			require.True(t, rest == "" || strings.HasPrefix(rest, "  log     ") && strings.Count(rest, "\n") == 1, rest)
			require.LessOrEqual(t, strings.Count(tail, "out of service"), 1, tail)
		})
	}
}

func TestDemoRefusesUnknownOptions(t *testing.T) {
	for _, args := range [][]string{{"--break", "everything"}, {"-o", "xml"}, {"extra"}, {"--no-such-flag"}, {"--profile", "nope"}, {"--gpus", "99"}, {"--gpus", "-1"}, {"--timeout", "0s"}} {
		out, errs, exit := demo(t, args...)
		require.Equal(t, 2, exit)
		require.Contains(t, errs, "demo: ")
		require.Empty(t, out)
	}
}

func TestAFailedDemoSpeaksJSON(t *testing.T) {
	for _, c := range []struct{ args, step, err, next string }{
		{"--break cdi --gpus 2", "toolkit", "read-only", "writable"},
		{"--profile h100-sxm --timeout 1ms", "", "not done within 1ms (--timeout)", "give it more time: --timeout"},
	} {
		out, errs, exit := demo(t, append(strings.Fields(c.args), "-o", "json")...)
		require.Equal(t, 1, exit, out+errs)
		var r struct {
			Passed, Simulated bool
			GPUs              int
			Step, Error, Next string
		}
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		require.False(t, r.Passed)
		require.Contains(t, r.Error, c.err)
		require.Contains(t, r.Next, c.next)
		require.True(t, r.Simulated)
		if c.step != "" {
			require.Equal(t, c.step, r.Step)
			require.Equal(t, 2, r.GPUs, "there were so many all the same")
		}
	}
}

func TestTheDemoFitsANarrowTerminalAndAClosedPipe(t *testing.T) {
	needDemo(t)
	cmd := exec.Command(built.Path(t, "demo"), "--gpus", "2")
	cmd.Env = append(built.Environ(), "COLUMNS=60")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	steps, _, _ := strings.Cut(string(out), "the CUDA job's own output")
	for line := range strings.Lines(steps) {
		require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 60, line)
	}

	unread, in, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, unread.Close())
	for _, args := range [][]string{{"--help"}, {"-o", "json", "--gpus", "1"}} {
		var errs strings.Builder
		cmd := exec.Command(built.Path(t, "demo"), args...)
		cmd.Stdout, cmd.Stderr = in, &errs
		_ = cmd.Run()
		require.True(t, cmd.ProcessState.Exited(), "it is not ended by a signal")
		require.Empty(t, errs.String())
	}
	require.NoError(t, in.Close())
}

func TestInterruptedDemoLeavesNothing(t *testing.T) {
	needDemo(t)
	p := built.Start(t, "demo", []string{"--verbose"}, mark(t))
	require.NoError(t, p.WaitOutput(within(t), "node agents"))
	require.NoError(t, p.Signal(os.Interrupt))
	exit, err := p.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, 130, exit, p.Output())
	requireNoProcess(t)
	requireNoTrace(t, p.PID())
}

func TestKilledDemoLeavesNoProcess(t *testing.T) {
	needDemo(t)
	p := built.Start(t, "demo", []string{"--verbose"}, mark(t))
	require.NoError(t, p.WaitOutput(within(t), "node agents"))
	require.NoError(t, p.Signal(os.Kill))
	_, err := p.Wait(within(t))
	require.NoError(t, err)
	requireNoProcess(t)
	node.Cleanup(fmt.Sprintf("gpuready-%d-1", p.PID()))
	requireNoTrace(t, p.PID())
}

// requireNoTrace checks for everything that a demo could have left on the machine.
func requireNoTrace(t *testing.T, pid int) {
	t.Helper()
	left, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/gpuready-%d-*", pid))
	require.NoError(t, err)
	require.Empty(t, left)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), "/run/.node")
}

// requireNoProcess waits until no process of the demo is left: the kernel ends them when the first
// process of the node ends, which takes a moment.
func requireNoProcess(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range found {
			env, err := os.ReadFile(path)
			if err == nil && strings.Contains("\x00"+string(env)+"\x00", "\x00"+mark(t)+"\x00") {
				return false
			}
		}
		return true
	}, time.Minute, 50*time.Millisecond)
}
