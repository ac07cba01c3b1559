package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Bounds of a kit.
const (
	maxBytes = 55_000_000
	maxTime  = 4 * time.Minute
)

// TestKitProvesEverything runs the packed kit with a simulated driver, without a network. make gpu-kit-test does it.
func TestKitProvesEverything(t *testing.T) {
	program := os.Getenv("GPUREADY_KIT")
	if program == "" {
		t.Skip("make gpu-kit-test runs it")
	}
	info, err := os.Stat(program)
	require.NoError(t, err)
	t.Logf("%s has %.1f MB", program, float64(info.Size())/1e6)
	folder, simulator := t.TempDir(), t.TempDir()
	prepareSimulator(t, simulator)
	before := listMachine(t)
	began := time.Now()
	cmd := exec.CommandContext(t.Context(), program, "--simulate", simulator, "--out", folder)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR="+folder, "HTTP_PROXY=", "HTTPS_PROXY=")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	leaveNetwork(t)
	require.NoError(t, cmd.Run())
	took := time.Since(began)
	require.Empty(t, added(before, listMachine(t)), "left behind")
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the page and its data only: %v", entries)

	var r report
	data, err := os.ReadFile(filepath.Join(folder, pageName+".json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	for _, s := range r.Steps {
		require.Equal(t, passed, s.Outcome, "%s: %s", s.Step, s.Seen)
	}
	require.Len(t, r.Steps, len(new(kit).steps())+1)
	require.True(t, r.Simulated)
	page, err := os.ReadFile(filepath.Join(folder, pageName+".md"))
	require.NoError(t, err)
	t.Logf("%s", page)
	for _, f := range r.Figures {
		require.Contains(t, string(page), "| "+f.Name+" | ")
	}
	for _, name := range []string{"nvmlInit, longest", "nvmlShutdown, longest", "kubectl apply → GPUReady"} {
		require.Contains(t, string(page), "| "+name+" | ")
	}
	require.Less(t, took, maxTime)
	require.LessOrEqual(t, info.Size(), int64(maxBytes))
}

// leaveNetwork moves the test's thread, and the programs that it starts, into a network with nothing but itself.
func leaveNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // it ends with the test
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	loopback, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(loopback))
}

// prepareSimulator fills a folder for --simulate: one simulated GPU.
func prepareSimulator(t *testing.T, folder string) {
	t.Helper()
	image := filepath.Join(os.Getenv("GPUREADY_IMAGES"), "driver-simulator.tar")
	require.NoError(t, os.Symlink(image, filepath.Join(folder, filepath.Base(image))))
	text, err := os.ReadFile(filepath.Join(built.Root(), "deployments/static", simulatedDriver))
	require.NoError(t, err)
	const line = "GPUSIM_PROFILE: h100-sxm\n"
	require.Contains(t, string(text), line)
	one := strings.Replace(string(text), line, line+"  GPUSIM_GPUS: \"1\"\n", 1)
	require.NoError(t, os.WriteFile(filepath.Join(folder, simulatedDriver), []byte(one), 0o644))
}

// listMachine lists what a kit could leave on this machine: control groups, mounts, folders and processes.
func listMachine(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/gpuready-" + clusterName + "-*", "/sys/fs/cgroup/*/gpuready-" + clusterName + "-*",
		"/run/gpu*", "/run/nvidia*", "/etc/cni/*", "/var/lib/gpuready*"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			found[path] = true
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/gpu-kit-") {
			found[line] = true
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, link := range processes {
		if target, err := os.Readlink(link); err == nil && strings.Contains(target, "/gpu-kit-") {
			found[link+" "+target] = true
		}
	}
	return found
}

// added returns what is in now but not in before.
func added(before, now map[string]bool) (more []string) {
	for what := range now {
		if !before[what] {
			more = append(more, what)
		}
	}
	return more
}
