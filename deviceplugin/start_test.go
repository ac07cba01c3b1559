package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// What the first list does not need comes after it. The limit of files is 1.3 times what NVIDIA's
// device plugin 0.19.3 opens in the same place: 83, for 8 GPUs and with the driver in /.
func TestStartRegistersBeforeItWatchesAnything(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("there is no strace on this machine")
	}
	m := newMachine(t).withKubelet()
	built.Gpusim(t, "up", "--root", m.host, "--profile", profile)
	t.Cleanup(func() { built.Gpusim(t, "down", "--root", m.host) })
	// On a slow machine the start does not delay the other work until the list (startLimit).
	const attempts = 5
	for n := 1; ; n++ {
		files, watches := traceStart(t, m, strace)
		if files <= 108 && len(watches) == 0 {
			return
		}
		if n == attempts {
			t.Fatalf("%d files are opened, and these folders watched: %q", files, watches)
		}
	}
}

// traceStart starts and ends the plugin, and returns how many files it opened and which folders it
// watched, besides the kubelet's, before it connected to the kubelet.
func traceStart(t *testing.T, m *machine, strace string) (files int, watches []string) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-o", trace, "-e", "trace=openat,inotify_add_watch,connect", built.Path(t, "gpu-device-plugin"),
		"--host-root", m.host, "--kubelet-socket", "/dp/kubelet.sock", "--state-dir", "/state", "--listen=", "--device-list-strategy", "envvar")
	cmd.Env = built.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	m.wait(8)
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
	_ = cmd.Wait()
	_, err := m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(t, err)

	data, err := os.ReadFile(trace)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		switch {
		case strings.Contains(line, "connect(") && strings.Contains(line, "/dp/kubelet.sock"):
			return files, watches
		case strings.Contains(line, "openat("):
			files++
		case strings.Contains(line, "inotify_add_watch(") && !strings.Contains(line, m.path("/dp")):
			watches = append(watches, line)
		}
	}
	t.Fatal("it did not connect to the kubelet")
	return 0, nil
}
