package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Path is the search path of a machine's programs.
const Path = Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// sysctls are the kernel parameters that a kubelet sets. The machine outside keeps its values;
// the node shows files with the values that the kubelet wants.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mountPlane mounts the control plane's file systems: it needs only its own /proc.
func mountPlane(hostname string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := forwardIP(); err != nil {
		return err
	}
	return unix.Sethostname([]byte(hostname))
}

func forwardIP() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// mountNode mounts a node's file system and moves into it. The node's disk (/var, /opt, /root …)
// is a directory that survives reboots. So do changes to /usr and /etc, which otherwise are the
// machine's. /run, /dev and /tmp are new with each boot.
func mountNode(n NodeSpec, hostname string) error {
	root := filepath.Join(n.Dir, "root")
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"make mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"mount its disk", func() error { return mountDisk(n.Dir, root) }},
		{"mount /proc, /sys, /run, /tmp", func() error { return mountKernel(root) }},
		{"mount /dev", func() error { return mountDev(filepath.Join(root, "dev")) }},
		{"give it the machine's GPUs", func() error { return mountGPUs(n.GPUs, root) }},
		{"bind the cluster's programs", func() error { return bindAll(n.Binds, root) }},
		{"move into its root", func() error { return pivot(root) }},
		{"mount the control groups", func() error { return MountGroups(n.Hierarchies, "/sys/fs/cgroup") }},
		{"set the boot ID", func() error { return overwrite("/proc/sys/kernel/random/boot_id", bootID, n.BootID) }},
		{"give it kernel modules of its own", func() error { return mountModules(n.GPUs) }},
		{"give it a PCI bus of its own", func() error { return bindPCI("/") }},
		{"set what the kubelet sets", setSysctls},
		{"make up NUMA nodes", func() error { return mountNUMA(n.NUMA) }},
		{"forward packets", forwardIP},
		{"set the host name", func() error { return setName(hostname) }},
		// Bidirectional mounts of pods must reach the node and other pods.
		{"share mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("node %s: %s: %w", hostname, step.what, err)
		}
	}
	return nil
}

// hidden are the folders of /etc in which this machine's files could be mistaken for the node's.
var hidden = []string{"cdi", "cni", "containerd", "crio", "docker", "kubernetes", "nvidia-container-runtime", "nvidia-container-toolkit", "rancher"}

func mountDisk(dir, root string) error {
	for _, d := range []string{
		"proc", "sys", "dev", "run", "tmp", "etc", "usr", "root", "home", "mnt", "srv", "boot", "opt/cni/bin",
		"var/cache", "var/lib/kubelet", "var/lib/containerd", "var/lib/cni", "var/log", "var/tmp",
	} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64", "lib32", "libx32"} {
		if err := sameAsOutside("/"+d, filepath.Join(root, d)); err != nil {
			return err
		}
	}
	_, err := os.Stat(filepath.Join(dir, "etc"))
	first := errors.Is(err, fs.ErrNotExist)
	for _, d := range []string{"usr", "etc"} {
		if err := overlay("/"+d, filepath.Join(dir, d), filepath.Join(root, d)); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	for _, d := range hidden {
		if err := os.RemoveAll(filepath.Join(root, "etc", d)); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(root, "etc/kubernetes/manifests"), 0o755)
}

// sameAsOutside creates a top folder as a link if it is one outside, and binds it otherwise,
// on systems where /usr was never merged.
func sameAsOutside(outside, at string) error {
	if target, err := os.Readlink(outside); err == nil {
		if err := os.Symlink(target, at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	if info, err := os.Stat(outside); err != nil || !info.IsDir() {
		return nil //nolint:nilerr // this machine has no such folder
	}
	return bind(outside, at, unix.MS_RDONLY)
}

func overlay(lower, keep, at string) error {
	upper, work := filepath.Join(keep, "upper"), filepath.Join(keep, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("overlay on %s: %w; the cluster's folder must be on a file system such as ext4, xfs or tmpfs, not on an overlay: choose another with GPUREADY_CLUSTERS", at, err)
	}
	return nil
}

// bind binds a file or a folder, and creates the target.
func bind(from, at string, flags uintptr) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(at, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
		err = touch(at)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	if flags == 0 {
		return nil
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

func touch(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func mountKernel(root string) error {
	const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, at, data string
		flags          uintptr
	}{
		{"proc", "proc", "", plain},
		{"sysfs", "sys", "", plain},
		{"tmpfs", "run", "mode=755", plain}, // as on the strictest distributions
		{"tmpfs", "tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.kind, filepath.Join(root, m.at), m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("/%s: %w", m.at, err)
		}
	}
	for _, d := range []string{"lock", filepath.Base(state)} {
		if err := os.Mkdir(filepath.Join(root, "run", d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// mountDev mounts a /dev with the usual nodes and none of hardware. The kubelet does not start
// without kmsg, where it watches for processes that ran out of memory.
func mountDev(dev string) error {
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "fuse", "kmsg"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join("/dev", name), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if err := copyDevice(filepath.Join(dev, name), st); err != nil {
			return err
		}
	}
	for _, m := range []struct{ kind, at, data string }{
		{"devpts", "pts", "newinstance,ptmxmode=0666,mode=0620,gid=5"},
		{"tmpfs", "shm", "mode=1777"},
		{"mqueue", "mqueue", ""},
	} {
		at := filepath.Join(dev, m.at)
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, at, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, m.data); err != nil {
			return fmt.Errorf("%s: %w", m.at, err)
		}
	}
	for link, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, link)); err != nil {
			return err
		}
	}
	return nil
}

func copyDevice(at string, st unix.Stat_t) error {
	if err := unix.Mknod(at, st.Mode, int(st.Rdev)); err != nil {
		return fmt.Errorf("mknod %s: %w", at, err)
	}
	return os.Chmod(at, os.FileMode(st.Mode&0o777))
}

func bindAll(binds map[string]string, root string) error {
	for at, from := range binds {
		if err := bind(from, filepath.Join(root, at), unix.MS_RDONLY); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the root and leaves the old one without a name.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	// Of two roots mounted in one place, the old one is on top; see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// overwrite replaces the content of a file of /proc by binding another file over it.
func overwrite(path, by, content string) error {
	if err := os.WriteFile(by, []byte(content+"\n"), 0o644); err != nil {
		return err
	}
	return bind(by, path, 0)
}

func setSysctls() error {
	for key, value := range sysctls {
		if err := overwrite("/proc/sys/"+key, filepath.Join(state, strings.ReplaceAll(key, "/", ".")), value); err != nil {
			return err
		}
	}
	return nil
}

// moduleFiles are the files of /proc that show a driver. A node has its own, without a real GPU
// driver; a simulated one adds its lines to the files in the folder state.
var moduleFiles = []string{"modules", "devices"}

// mountModules gives the node its module files. Those of a node with the machine's GPUs are the machine's.
func mountModules(gpus bool) error {
	for _, name := range moduleFiles {
		content, err := os.ReadFile(filepath.Join("/proc", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		own := filepath.Join(state, name)
		shown := content
		if !gpus {
			shown = withoutDriver(content)
		}
		if err := os.WriteFile(own, shown, 0o644); err != nil {
			return err
		}
		if content == nil {
			if err := os.WriteFile(catModules, []byte(catScript), 0o755); err != nil {
				return err
			}
			continue
		}
		if err := bind(own, filepath.Join("/proc", name), 0); err != nil {
			return err
		}
	}
	return nil
}

// Kernels without modules have no /proc/modules to bind over. Programs that read it on a node,
// mainly NVIDIA's runtime, then do so with cat.
const (
	catModules = "/usr/local/sbin/cat"
	catScript  = `#!/bin/sh
# The machine's kernel has no /proc/modules; the node's own file is shown in its place.
[ "$*" != /proc/modules ] || set -- ` + state + `/modules
exec /bin/cat "$@"
`
)

// withoutDriver removes the lines of NVIDIA's driver from a module file.
func withoutDriver(content []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(content) {
		if !bytes.Contains(line, []byte("nvidia")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// setName sets the node's host name. The node resolves no other names, so lookups fail at once.
func setName(hostname string) error {
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return err
	}
	for file, content := range map[string]string{
		"/etc/hostname":    hostname + "\n",
		"/etc/hosts":       "127.0.0.1 localhost " + hostname + "\n::1 localhost\n",
		"/etc/resolv.conf": "",
	} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be a link
			return err
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
