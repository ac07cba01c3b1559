package security

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

const driverRoot = "/run/nvidia/driver"

// writable lists the writable mounts of each agent. Those of the host have a reason in
// docs/install.md; the others belong to the container.
var writable = map[string][]string{
	"gpu-device-plugin": {"/var/lib/kubelet/device-plugins", "/run/nvidia/gpuready/deviceplugin"},
	"gpu-validator":     {"/run/nvidia/validations", "/run/nvidia/gpuready/validator"},
	// The driver simulator has device nodes and libraries on one file system.
	"gpu-toolkit": {"/host/dev", "/host/run/cdi", "/host/run/nvidia/gpuready/toolkit", "/host/usr/local/nvidia/gpuready", "/host" + driverRoot},
}

// own lists the mounts that a runtime gives each container, and the mounts in /proc of a test's node. An
// unprivileged container's /proc has read-only mounts in it.
var own = []string{
	"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/termination-log", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
	"/sys/fs/cgroup", "/proc/sys/kernel/random/boot_id", "/proc/devices", "/proc/modules",
}

// privileged matches the additional mounts of a privileged container: its /sys, and its own root file
// system as seen through the host's.
var privileged = regexp.MustCompile(`^/sys(/.*)?$|^/host/run/containerd/[^/]+/k8s\.io/[0-9a-f]{64}/rootfs(/.*)?$`)

// agentsWriteNothingElse attacks from a compromised agent: root in its mount namespace, with every
// capability, tries to write everything of the host that the agent can see. The driver exists before
// the agents, has file systems mounted in its root, gets another one while they run, and is replaced
// by another driver.
func agentsWriteNothingElse(t *testing.T, n *node) {
	const library = driverRoot + "/usr/lib"
	onNode := func(name string, args ...string) {
		_, err := n.Node(n.name).Exec(t.Context(), name, args...)
		require.NoError(t, err)
	}
	var mounted []string
	mount := func(at, file string) {
		onNode("mkdir", "-p", at)
		onNode("mount", "-t", "tmpfs", "tmpfs", at)
		mounted = append(mounted, at)
		n.WriteFile(t, n.name, filepath.Join(at, file), "as the host has it")
	}
	unmount := func() {
		for _, at := range slices.Backward(mounted) {
			onNode("umount", "-l", at)
		}
		mounted = nil
	}
	defer func() { unmount() }()

	mount(driverRoot+"/proc/sys/kernel", "core_pattern")
	for _, app := range []string{"nvidia-device-plugin-daemonset", "nvidia-operator-validator"} {
		n.recreate(t, app)
	}
	n.World.WaitAllocatable(t, 8, n.name)
	n.tryWriting(t, "a driver that was there before", library)

	mount(driverRoot+"/late", "library.so")
	mount("/run/late", "file")
	n.World.Until(t, "the toolkit has made read-only what came late", func() error {
		return n.refuses("gpu-toolkit", "/host/run/late/file")
	})
	n.tryWriting(t, "a driver in which something was mounted later", library)
	require.Equal(t, "as the host has it", n.ReadFile(t, n.name, driverRoot+"/proc/sys/kernel/core_pattern"))
	unmount()

	simulate := func(gpus string, offered int64) {
		n.Kubectl(t, "-n", e2e.Namespace, "patch", "configmap", "gpuready-driver-simulator", "--type=merge", "-p", `{"data":{"GPUSIM_GPUS":`+gpus+`}}`)
		n.Kubectl(t, "-n", e2e.Namespace, "rollout", "restart", "daemonset/nvidia-driver-daemonset")
		n.World.WaitAllocatable(t, offered, n.name)
	}
	simulate(`"4"`, 4)
	defer simulate("null", 8)
	n.tryWriting(t, "a driver that came after the agents", library)
}

// recreate deletes a DaemonSet's pod and waits for the next one.
func (n *node) recreate(t *testing.T, app string) {
	t.Helper()
	pods := n.World.Client.CoreV1().Pods(e2e.Namespace)
	for _, p := range n.World.Pods(e2e.Namespace, "app="+app) {
		require.NoError(t, pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		n.World.Until(t, "pod "+p.Name+" is gone", func() error {
			if n.World.Pod(e2e.Namespace, p.Name) != nil {
				return errors.New("it is there")
			}
			return nil
		})
	}
	n.World.WaitDaemonSets(t, e2e.Namespace, app)
}

// inside returns the paths under which this process sees a path of each running container whose
// program has that name.
func (n *node) inside(program string) ([]string, error) {
	all, err := filepath.Glob(n.hostPath("/proc/[0-9]*/cmdline"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range all {
		// A program that executed itself again keeps its first argument, but not its name.
		if line, err := os.ReadFile(file); err == nil && filepath.Base(strings.SplitN(string(line), "\x00", 2)[0]) == program {
			found = append(found, filepath.Dir(file))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no %s runs", program)
	}
	return found, nil
}

// refuses returns an error unless the mount of an agent's file is what forbids writing it.
func (n *node) refuses(program, path string) error {
	processes, err := n.inside(program)
	if err != nil {
		return err
	}
	for _, p := range processes {
		f, err := os.OpenFile(filepath.Join(p, "root", path), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return errors.Join(fmt.Errorf("%s can write to %s", program, path), f.Close())
		}
		if !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

// tryWriting tries to write each file and folder of the driver that an agent sees, and compares all its
// writable mounts with the list.
func (n *node) tryWriting(t *testing.T, when, library string) {
	t.Helper()
	for program, listed := range writable {
		var tried int
		var written []string
		try := func() error {
			tried, written = 0, nil
			processes, err := n.inside(program)
			if err != nil {
				return err
			}
			for _, p := range processes {
				mounts, err := writableMounts(filepath.Join(p, "mountinfo"))
				if err != nil {
					return err
				}
				for _, at := range mounts {
					if slices.Contains(listed, at) || slices.Contains(own, at) || program == "gpu-toolkit" && privileged.MatchString(at) {
						continue
					}
					written = append(written, "the mount "+at)
				}
				if program == "gpu-toolkit" {
					continue
				}
				if _, err := os.Stat(filepath.Join(p, "root", library)); err != nil {
					return err
				}
				files, opened, err := openAll(filepath.Join(p, "root"), driverRoot)
				if err != nil {
					return err
				}
				tried, written = tried+files, append(written, opened...)
			}
			return nil
		}
		n.World.Until(t, program+" sees "+when, try)
		if program == "gpu-toolkit" && len(written) > 0 {
			// New mounts of the host arrive writable, and the toolkit makes them read-only when the kernel notifies
			// it: a pod that starts now mounts its /dev/shm.
			require.Eventually(t, func() bool { return try() == nil && len(written) == 0 }, 10*time.Second, 50*time.Millisecond,
				"%s, %s: it leaves writable %q", program, when, written)
		}
		assert.Emptyf(t, written, "%s, %s: of %d files and folders of the driver these can be written to", program, when, tried)
		if program != "gpu-toolkit" {
			require.Greaterf(t, tried, 20, "%s, %s", program, when)
		}
	}
	processes, err := n.inside("gpu-toolkit")
	require.NoError(t, err)
	for _, path := range []string{"/run/written", "/var/lib/written", "/etc/written", "/proc/sys/kernel/core_pattern"} {
		f, err := os.OpenFile(filepath.Join(processes[0], "root/host", path), os.O_WRONLY|os.O_CREATE, 0o600)
		if assert.ErrorIsf(t, err, unix.EROFS, "gpu-toolkit, %s: /host%s", when, path) {
			continue
		}
		_ = f.Close()
	}
}

// openAll opens each file below a folder for writing, and creates one in each folder. It returns the
// number of attempts, and those that did not fail with a read-only mount.
func openAll(root, folder string) (tried int, opened []string, err error) {
	err = filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if d.IsDir() {
			path, name = filepath.Join(path, "written"), name+"/"
		} else if !d.Type().IsRegular() {
			return nil
		}
		tried++
		flags := os.O_WRONLY
		if d.IsDir() {
			flags |= os.O_CREATE | os.O_EXCL
		}
		f, err := os.OpenFile(path, flags, 0o600)
		if err == nil {
			opened = append(opened, name)
			if d.IsDir() {
				_ = os.Remove(path)
			}
			return f.Close()
		}
		if !errors.Is(err, unix.EROFS) {
			opened = append(opened, fmt.Sprintf("%s (%v)", name, err))
		}
		return nil
	})
	return tried, opened, err
}

// writableMounts returns the mount points of a process where neither the mount nor its file system is
// read-only. It leaves out files that a runtime hides behind /dev/null.
func writableMounts(mountinfo string) ([]string, error) {
	data, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if len(fields) < 6 || len(super) < 3 {
			return nil, fmt.Errorf("%s: %q", mountinfo, line)
		}
		if fields[3] != "/null" && !strings.HasPrefix(fields[5]+",", "ro,") && !strings.HasPrefix(super[2]+",", "ro,") {
			all = append(all, fields[4])
		}
	}
	return all, nil
}
