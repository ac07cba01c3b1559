package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const spec = `{"cdiVersion":"0.5.0","kind":"example.com/thing","devices":[{"name":"a","containerEdits":{
"deviceNodes":[{"path":"/dev/thing","hostPath":"/run/.node/thing","type":"c","major":195,"minor":255}],"env":["THING=a"]}}]}`

func TestNodeIsPrivate(t *testing.T) {
	outside, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	if !Inside() {
		t.Setenv("OUTSIDE_BOOT_ID", string(outside))
	}
	if !Enter(t) {
		for _, path := range []string{"/etc/made-inside", "/usr/local/made-inside", "/run/made-inside", "/var/lib/made-inside"} {
			require.NoFileExists(t, path)
		}
		left, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/gpuready-%d-*/", os.Getpid()))
		require.NoError(t, err)
		require.Empty(t, left)
		return
	}
	inside, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	require.NotEqual(t, os.Getenv("OUTSIDE_BOOT_ID"), string(inside))
	for _, path := range []string{"/etc/made-inside", "/usr/local/made-inside", "/run/made-inside", "/var/lib/made-inside"} {
		require.NoError(t, os.WriteFile(path, nil, 0o644))
	}
	require.Error(t, unix.Access("/dev/sda", unix.F_OK))
	require.NoError(t, unix.Mknod(DriverRoot+"/zero", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	_, err = os.Open(DriverRoot + "/zero")
	require.NoError(t, err, "device nodes work in a driver root")
	require.NoError(t, os.WriteFile("/run/program", []byte("#!/bin/sh\n"), 0o755))
	require.Error(t, unix.Access("/run/program", unix.X_OK), "/run is noexec")
}

func TestContainerHasItsDevicesAndFiles(t *testing.T) {
	if !Enter(t) {
		return
	}
	require.NoError(t, os.MkdirAll("/var/run/cdi", 0o755))
	require.NoError(t, os.WriteFile("/var/run/cdi/thing.json", []byte(spec), 0o644))
	shell := map[string]string{"/bin/sh": "/bin/sh", "/bin/head": "/usr/bin/head"}
	run := func(c Container) (string, int) {
		c.Files = shell
		out, exit, err := RunContainer(t.Context(), c)
		require.NoError(t, err)
		return out, exit
	}
	// No driver answers on 195:255 here, which shows only to processes that may open it.
	require.NoError(t, unix.Mknod("/run/.node/thing", unix.S_IFCHR|0o666, int(unix.Mkdev(195, 255))))
	read := []string{"/bin/sh", "-c", "echo thing=$THING; head -c1 /dev/thing"}

	out, _ := run(Container{Args: read, CDIDevices: []string{"example.com/thing=a"}})
	require.Contains(t, out, "thing=a\n")
	require.NotContains(t, out, "Operation not permitted")
	require.NotContains(t, out, "No such file")

	out, exit := run(Container{Args: read})
	require.NotZero(t, exit, out)
	require.Contains(t, out, "No such file")

	out, exit = run(Container{Args: read, CDIDevices: []string{"example.com/thing=a"}, DenyDevices: true})
	require.NotZero(t, exit, out)
	require.Contains(t, out, "Operation not permitted")

	_, exit = run(Container{Args: []string{"/bin/sh", "-c", "exit 7"}})
	require.Equal(t, 7, exit)
}
