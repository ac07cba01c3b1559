package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

const driverParams = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"

// inMounts runs a script in its own mount namespace, with a driver's parameters in /proc, and
// returns its output.
func inMounts(t *testing.T, w *world, script string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	cmd := exec.Command("unshare", "-m", "sh", "-ec", `
		mount -t tmpfs none /proc/driver
		mkdir /proc/driver/nvidia
		printf '`+strings.ReplaceAll(driverParams, "\n", `\n`)+`' >/proc/driver/nvidia/params
		hook() { echo '{"bundle":"`+w.bundle+`"}' | env -i "$HOOK" disable-device-node-modification; }
		cd "$BUNDLE"
		`+script)
	cmd.Env = append(os.Environ(), "HOOK="+w.hook, "BUNDLE="+w.bundle)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func TestParamsAreShownWithoutDeviceFiles(t *testing.T) {
	w := newWorld(t, built.Path(t, "gpu-cdi-hook"))
	w.write(w.rootfs+"/proc/driver/nvidia/params", []byte(driverParams))
	before := names(t, w.rootfs)
	out := inMounts(t, w, `
		hook; hook
		cat rootfs/proc/driver/nvidia/params
		grep -c "$BUNDLE" /proc/self/mountinfo
		grep "$BUNDLE" /proc/self/mountinfo | cut -d' ' -f6
		( echo x >rootfs/proc/driver/nvidia/params ) 2>&1 | grep -o 'Read-only file system'
		grep ModifyDeviceFiles /proc/driver/nvidia/params`)
	require.Equal(t, strings.Replace(driverParams, "Files: 1", "Files: 0", 1)+
		"1\nrw,nosuid,nodev,noexec,relatime\nRead-only file system\nModifyDeviceFiles: 1\n", out, "once, and the host's is as it was")
	w.untouched("params")
	require.Equal(t, before, names(t, w.rootfs), "nothing is left in the image")
	data, err := os.ReadFile(w.rootfs + "/proc/driver/nvidia/params")
	require.NoError(t, err)
	require.Equal(t, driverParams, string(data))
}

func TestParamsAreMountedOnNothingElse(t *testing.T) {
	hook := built.Path(t, "gpu-cdi-hook")
	for name, c := range map[string]struct {
		make    func(w *world, at string) error
		message string // empty if nothing is mounted, without a message
	}{
		"not there":   {make: func(*world, string) error { return nil }},
		"a link out":  {make: func(w *world, at string) error { return os.Symlink(w.canary+"/libz.so.1", at) }},
		"by the root": {make: func(w *world, at string) error { return os.Symlink("/proc/1/root"+w.canary+"/libz.so.1", at) }},
		"a pipe":      {make: func(_ *world, at string) error { return syscall.Mkfifo(at, 0o600) }, message: "not a regular file"},
		"a folder":    {make: func(_ *world, at string) error { return os.Mkdir(at, 0o755) }, message: "not a regular file"},
		"off already": {make: func(_ *world, at string) error {
			return os.WriteFile(at, []byte(strings.Replace(driverParams, "Files: 1", "Files: 0", 1)), 0o644)
		}},
		"a folder's link": {make: func(w *world, at string) error {
			if err := os.RemoveAll(w.rootfs + "/proc/driver/nvidia"); err != nil {
				return err
			}
			if err := os.WriteFile(w.canary+"/params", nil, 0o600); err != nil {
				return err
			}
			w.before = snapshot(w.t, w.canary)
			w.events()
			return os.Symlink(w.canary, w.rootfs+"/proc/driver/nvidia")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hook)
			require.NoError(t, os.MkdirAll(w.rootfs+"/proc/driver/nvidia", 0o755))
			require.NoError(t, c.make(w, w.rootfs+"/proc/driver/nvidia/params"))
			out := inMounts(t, w, `hook 2>&1 || echo failed; grep -cE "$BUNDLE|`+w.canary+`" /proc/self/mountinfo || true`)
			if c.message != "" {
				require.Contains(t, out, c.message)
				require.Contains(t, out, "failed\n0\n")
			} else {
				require.Equal(t, "0\n", out)
			}
			w.untouched(name)
		})
	}
}
