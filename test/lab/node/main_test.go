package node

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/namespace"
)

// variableE2E is the variable of test/toolkit: without it no runtime is fetched or run.
const variableE2E = "GPUREADY_E2E"

func TestMain(m *testing.M) { os.Exit(Main(m, os.Getenv(variableE2E) != "")) }

// held names the variable with a pipe, for a run of these tests that will be killed. TestHeld
// writes to the pipe when there is something to clean up.
const held = "GPUREADY_RUNTIMES_HELD"

// TestHeld holds a host with a container until it is killed.
func TestHeld(t *testing.T) {
	if os.Getenv(held) == "" {
		t.Skip(held + " is not set: TestAKilledRunLeavesNothing sets it")
	}
	if !Enter(t) {
		return
	}
	h := StartHost(t, HostOptions{Kind: Containerd16, Config: map[string][]byte{"/etc/containerd/config.toml": []byte(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "gpuready.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
`)}})
	go func() {
		_, err := h.Run(t.Context(), Spec{Args: []string{Probe, "wait"}})
		t.Errorf("the container ended: %v", err)
	}()
	require.Eventually(t, func() bool {
		logs, err := filepath.Glob(filepath.Join(work, "pods/*/log"))
		require.NoError(t, err)
		for _, log := range logs {
			if text, err := os.ReadFile(log); err == nil && strings.Contains(string(text), "waiting") {
				return true
			}
		}
		return false
	}, patience, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(os.Getenv(held), []byte("there\n"), 0))
	time.Sleep(time.Hour) // select {} would end as a deadlock
}

func TestAKilledRunLeavesNothing(t *testing.T) {
	if os.Getenv(variableE2E) == "" {
		t.Skip(variableE2E + " is not set: make e2e-toolkit does this")
	}
	fifo := filepath.Join(t.TempDir(), "held")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestHeld$", "-test.v", "-test.timeout", "2m")
	cmd.Env = append(os.Environ(), held+"="+fifo)
	printed, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	signal, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer signal.Close()

	// It reports that it holds something, or ends.
	reply := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(signal).ReadString('\n')
		reply <- line
	}()
	output := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(printed)
		output <- string(all)
	}()
	select {
	case <-reply:
	case all := <-output:
		t.Fatalf("it ended: %v\n%s", cmd.Wait(), all)
	}
	hierarchies, err := namespace.HostHierarchies()
	require.NoError(t, err)
	prefix := fmt.Sprintf("gpuready-%d-", cmd.Process.Pid)
	require.NotEmpty(t, namespace.FindGroups(hierarchies, prefix), "there is something to clean up")

	require.NoError(t, cmd.Process.Kill())
	all := <-output // all processes have closed it
	require.Error(t, cmd.Wait(), all)
	require.Empty(t, namespace.FindGroups(hierarchies, prefix), all)
}

func TestTheTextOfALogIsFoundInItsFrame(t *testing.T) {
	require.Equal(t, "one\ntwo\n", readLog("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr F two\n"))
	require.Equal(t, "one\ntwo\n", frames([]byte("\x01\x00\x00\x00\x00\x00\x00\x04one\n\x02\x00\x00\x00\x00\x00\x00\x04two\n")))
}
