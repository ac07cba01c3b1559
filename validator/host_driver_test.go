package main_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheHostsOwnDriverIsReported tests the contract with the init container of a driver container
// and with the operator, which reads its termination message.
func TestTheHostsOwnDriverIsReported(t *testing.T) {
	r := newRig(t)
	words := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(words, nil, 0o600))
	write := func(path, content string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(r.path(path)), 0o755))
		require.NoError(t, os.WriteFile(r.path(path), []byte(content), 0o644))
	}
	left := func() string {
		data, err := os.ReadFile(words)
		require.NoError(t, err)
		return string(data)
	}
	look := func() (int, string, string) { return r.run(r.args("host-driver", "--termination-log", words)...) }

	write("/proc/version", "Linux version 6.1.0\n")
	write("/proc/modules", "overlay 1 0 - Live 0x0\n")
	write("/proc/sys/kernel/osrelease", "6.1.0\n")
	r.driver(1)
	exit, out, said := look()
	require.Zero(t, exit, said)
	require.Equal(t, "the host has no driver of its own: there is no libnvidia-ml on it, and no kernel module nvidia is loaded\n", out, "a simulated one is a container's")
	require.Empty(t, left())

	require.NoError(t, os.MkdirAll(r.path("/usr"), 0o755))
	require.NoError(t, os.Rename(r.path(driverRoot+"/usr/lib"), r.path("/usr/lib")))
	write("/lib/modules/6.1.0/modules.dep", "updates/dkms/nvidia.ko.xz:\n")
	exit, out, said = look()
	require.Equal(t, 3, exit)
	require.Equal(t, "it is installed for kernel 6.1.0 and not loaded yet\nHostDriver: "+version+" at /\n", out)
	require.Empty(t, said, "the line is the last one")
	require.Equal(t, "HostDriver: "+version+" at /", left())

	exit, out, _ = r.run(r.args("host-driver")...)
	require.Equal(t, 3, exit, "there need not be a place for last words")
	require.Contains(t, out, "\nHostDriver: ")

	require.NoError(t, os.Remove(r.path("/proc/sys/kernel/osrelease")))
	exit, _, said = look()
	require.Equal(t, 1, exit)
	require.Contains(t, said, "gpu-validator: cannot read the version of the running kernel: ")
	require.Contains(t, left(), "cannot read the version of the running kernel: ", "the reason is the last word")
	exit, _, _ = r.run("host-driver", "now")
	require.Equal(t, 2, exit)
}
