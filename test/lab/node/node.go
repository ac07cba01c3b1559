// Package node gives a process its own node: mount, PID, IPC, UTS and network namespaces with a
// private /run, /dev, /etc, /opt, /usr/local and /var/lib. So the programs under test use the
// paths of production, and nothing outlives the process that created the node, however that ends.
//
// A process enters a node by running itself again: Command prepares that, and in the new process
// Setup mounts the file systems. It needs root.
//
// RunContainer runs a container in a node by runc alone. StartHost makes of a node a host with a real
// container runtime: containerd 1.6, 1.7 and 2, dockerd or podman. The runtime has its configuration,
// sockets and state at the paths of production, and a test edits them without touching the machine.
// Main fetches in advance what such hosts need from outside (the network, Go). Its process waits for
// the end of the tests, however they end, and removes the control groups of their nodes.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// marker names the environment variable of the process inside. Its value is the name of the node
// and of its cgroup.
const marker = "GPUREADY_NODE"

// DriverRoot is the path of an empty file system for a driver, like the mounted root of a driver
// container.
const DriverRoot = "/run/nvidia/driver"

// scratch is the folder for a node's own files.
const scratch = "/run/.node"

// ErrNotRoot is returned when namespaces cannot be created because the process is not root.
var ErrNotRoot = errors.New("a private node needs root; try again with sudo")

// nodes counts the nodes that this process has created, for their names.
var nodes atomic.Int64

// Inside reports whether this process was started by Command.
func Inside() bool { return os.Getenv(marker) != "" }

// Name returns the name of this process's node.
func Name() string { return os.Getenv(marker) }

// Command prepares a run of this program with args as the first process of a new node. It is killed
// with its children when this process or ctx ends. The caller must call Cleanup with the node's
// name afterwards.
func Command(ctx context.Context, args ...string) (cmd *exec.Cmd, name string, err error) {
	if os.Geteuid() != 0 {
		return nil, "", ErrNotRoot
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	name = fmt.Sprintf("gpuready-%d-%d", os.Getpid(), nodes.Add(1))
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), marker+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd, name, nil
}

// Cleanup removes the cgroups of containers that a killed node left behind. They are the only trace
// that a node can leave.
func Cleanup(name string) {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, top := range append(found, "/sys/fs/cgroup/"+name) {
		children, _ := filepath.Glob(top + "/*/")
		for _, dir := range append(children, top) {
			_ = unix.Rmdir(filepath.Clean(dir))
		}
	}
}

// Setup mounts a node's file systems. The process inside must call it first.
func Setup() error {
	if !Inside() {
		return errors.New("node: Setup outside a node would change the machine's own mounts")
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"make mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"mount /proc", func() error { return unix.Mount("proc", "/proc", "proc", 0, "") }},
		{"mount /run", mountRun},
		{"mount /dev", mountDev},
		{"give the node a boot ID", newBootID},
		{"set the host name", func() error { return unix.Sethostname([]byte(Name())) }},
		{"bring up the loopback interface", loopbackUp},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("node: %s: %w", step.what, err)
		}
	}
	for _, dir := range []string{"/etc", "/opt", "/usr/local", "/var/lib"} {
		if err := overlay(dir); err != nil {
			return fmt.Errorf("node: make %s private: %w", dir, err)
		}
	}
	// With the kubelet's permissions: for root alone.
	for _, dir := range []string{"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	return nil
}

// mountRun mounts /run as distributions do, with file systems in it that allow programs and device
// nodes.
func mountRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{scratch, DriverRoot} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if target, err := os.Readlink("/var/run"); err == nil && filepath.Join("/var", target) == "/run" || target == "/run" {
		return nil
	}
	return unix.Mount("/run", "/var/run", "", unix.MS_BIND|unix.MS_REC, "")
}

// mountDev mounts a /dev with the usual nodes, plus the real NVIDIA nodes if the machine has a GPU.
func mountDev() error {
	dev := filepath.Join(scratch, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	nodes, _ := filepath.Glob("/dev/nvidia*")
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "fuse"} {
		nodes = append(nodes, filepath.Join("/dev", name))
	}
	for _, path := range nodes {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		at := filepath.Join(dev, filepath.Base(path))
		if err := unix.Mknod(at, st.Mode, int(st.Rdev)); err != nil {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
		if err := os.Chmod(at, os.FileMode(st.Mode&0o777)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	for link, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, link)); err != nil {
			return err
		}
	}
	return unix.Mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC, "")
}

// newBootID gives the node a new boot ID.
func newBootID() error {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	file := filepath.Join(scratch, "boot_id")
	id := fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	if err := os.WriteFile(file, []byte(id), 0o444); err != nil {
		return err
	}
	return unix.Mount(file, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}

// driverMounts are folders that may be file systems of their own with the machine's driver.
var driverMounts = []string{"/usr/local/nvidia", "/opt/nvidia"}

// overlay makes a folder writable without changing the machine's. A driver that is mounted below it
// is still there, and writable as well.
func overlay(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lowers := map[string]string{}
	for _, driver := range driverMounts {
		if filepath.Dir(driver) != dir {
			continue
		}
		lower := filepath.Join(scratch, "lower", filepath.Base(driver))
		if err := os.MkdirAll(lower, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(driver, lower, "", unix.MS_BIND|unix.MS_REC, ""); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return fmt.Errorf("keep the driver in %s: %w", driver, err)
		}
		lowers[driver] = lower
	}
	if err := mountOverlay(dir, dir); err != nil {
		return err
	}
	for driver, lower := range lowers {
		if err := mountOverlay(driver, lower); err != nil {
			return err
		}
	}
	return nil
}

// mountOverlay mounts on dir what is in lower, with changes in the node's scratch folder.
func mountOverlay(dir, lower string) error {
	base := filepath.Join(scratch, "overlay", dir)
	upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("overlay", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work))
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
