package toolkit

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// The time that asynchronous changes may take, and the interval of a test's polls.
const (
	minute = time.Minute
	tick   = 10 * time.Millisecond
)

// running is a process of gpu-toolkit run.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	ended  chan struct{}
	how    error
	mu     sync.Mutex
	output bytes.Buffer
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output.Write(p)
}

func (r *running) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output.String()
}

// run starts gpu-toolkit run, which ends with the test at the latest.
func run(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan struct{})}
	r.cmd = program(context.Background(), t, append([]string{"run", "--listen="}, args...)...)
	r.cmd.Stdout, r.cmd.Stderr = r, r
	require.NoError(t, r.cmd.Start())
	go func() {
		r.how = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
		if t.Failed() {
			t.Logf("gpu-toolkit run printed:\n%s", r.log())
		}
	})
	return r
}

// terminate ends it as the kubelet does.
func (r *running) terminate() {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	<-r.ended
	require.NoError(r.t, r.how, r.log())
}

// published returns the published state, or the zero one if there is none.
func published(t *testing.T) nodestate.State {
	t.Helper()
	s, err := nodestate.Read("/run/nvidia/gpuready/toolkit")
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	return s
}

// oneAtATime is the host's systemd, which executes one job at a time. Others restart a runtime
// through it.
type oneAtATime struct {
	*runtimetest.Systemd
	mu sync.Mutex
	h  *node.Host
}

func (o *oneAtATime) act(unit, verb string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.h.ActOnUnit(unit, verb)
}

func orderly(t *testing.T, h *node.Host) *oneAtATime {
	t.Helper()
	o := &oneAtATime{h: h}
	s, err := runtimetest.StartSystemd("/", map[string]string{h.Unit(): "active"}, o.act)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	o.Systemd = s
	return o
}

// containerd 1.7 supports CDI, disabled. If restarts are allowed the daemon enables CDI, also after
// somebody has disabled it, but it gives up if that happens again and again.
func TestTheDaemonEnablesCDIAndGivesUp(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd17
	off := hand(t, kind, "enable_cdi = true", "enable_cdi = false")
	h := startWith(t, kind, map[string]string{written[kind].path: off})
	s := orderly(t, h)
	require.False(t, status(t, h).CDI)
	turnedOff := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for path := range contents(t, "/etc/containerd") {
			if path != written[kind].path {
				require.NoError(t, os.Remove(path))
			}
		}
		require.NoError(t, os.WriteFile(written[kind].path, []byte(off), 0o644))
		require.NoError(t, h.Restart(t.Context(), h.Unit()))
	}

	r := run(t, "--runtime-restart-mode", "systemd")
	for i := range 3 {
		if i > 0 {
			turnedOff()
		}
		require.Eventually(t, func() bool {
			return strings.Count(r.log(), "container runtime is configured") == i+1
		}, minute, tick, "it repairs")
		require.Len(t, s.Calls(), i+1)
		require.True(t, status(t, h).CDI)
	}
	out, err := h.Run(t.Context(), node.Spec{CDI: []string{"nvidia.com/gpu=1"}, Args: []string{node.Probe, "/dev/nvidia1"}})
	require.NoError(t, err)
	require.Equal(t, "/dev/nvidia1 there\ndone\n", out)

	turnedOff()
	require.Eventually(t, func() bool {
		return strings.Contains(published(t).Message, "somebody else writes the container runtime's configuration")
	}, minute, tick)
	require.Len(t, s.Calls(), 3)
	require.False(t, status(t, h).CDI)
	data, err := os.ReadFile(written[kind].path)
	require.NoError(t, err)
	require.Equal(t, off, string(data))
	r.terminate()
}

// settledState waits until the state has that phase.
func settledState(t *testing.T, phase nodestate.Phase) {
	t.Helper()
	require.Eventually(t, func() bool { return published(t).Phase == phase }, minute, tick)
}

// An idle daemon does nothing, and its end changes nothing.
func TestAnIdleDaemonChangesNothing(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	s := orderly(t, h)
	gpuToolkit(t, configuring(kind, "apply")...)
	require.Len(t, s.Calls(), 1)
	dirs := []string{filepath.Dir(written[kind].path), "/usr/local/nvidia", "/var/run/cdi"}
	exact := files(t, dirs...)
	for range 2 {
		require.NoError(t, os.RemoveAll("/run/nvidia/gpuready"))
		r := run(t, configuring(kind, "run")[1:]...)
		settledState(t, nodestate.Ready)
		require.Eventually(t, func() bool { return strings.Contains(r.log(), "container runtime") }, minute, tick)
		require.Contains(t, fails(t, configuring(kind, "apply")...), "another gpu-toolkit is at work on this host")
		r.terminate()
		require.Equal(t, exact, files(t, dirs...), "not a byte, not a time")
		require.Len(t, s.Calls(), 1)
		require.Contains(t, status(t, h).Handlers, "nvidia")
	}
	requireHandlerGPUs(t, h, "nvidia")
}

// Two toolkits, as when a DaemonSet's pod is replaced: one works, the other reports which one, and
// waits if it is a daemon.
func TestTheSecondDaemonWaitsForTheFirst(t *testing.T) {
	if !enter(t) {
		return
	}
	kind := node.Containerd2
	h := start(t, kind)
	s := orderly(t, h)
	first := run(t, configuring(kind, "run")[1:]...)
	configured := func(r *running) {
		require.Eventually(t, func() bool { return strings.Contains(r.log(), "container runtime is configured") }, minute, tick)
		require.Contains(t, status(t, h).Handlers, "nvidia")
	}
	configured(first)
	for _, command := range []string{"apply", "restore"} {
		out := fails(t, configuring(kind, command)...)
		require.Contains(t, out, "another gpu-toolkit is at work on this host")
		require.Regexp(t, `by process \d+ on .*gpu-toolkit run`, out)
	}
	second := run(t, configuring(kind, "run")[1:]...)
	require.Eventually(t, func() bool { return strings.Contains(second.log(), "another gpu-toolkit is at work") }, minute, tick)
	require.NoError(t, os.RemoveAll("/run/nvidia/gpuready/toolkit/state.json"))
	first.terminate() // the second writes the state at once
	settledState(t, nodestate.Ready)
	require.Len(t, s.Calls(), 1)

	// The handler's key is removed: the change is detected, with no restart to wait for.
	s.mu.Lock()
	for path := range contents(t, "/etc/containerd") {
		if path != written[kind].path {
			require.NoError(t, os.Remove(path))
		}
	}
	require.NoError(t, os.WriteFile(written[kind].path, byHand(t, kind)[written[kind].path], 0o644))
	s.mu.Unlock()
	configured(second)
	require.Len(t, s.Calls(), 2)
	second.terminate()
	requireHandlerGPUs(t, h, "nvidia")
}
