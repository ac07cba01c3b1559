package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one mount of the mount table.
type mount struct {
	kind, at string
	flags    uintptr
	options  string
	optional bool // the kernel may lack the file system
}

const restricted = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

var mounts = []mount{
	{kind: "proc", at: "/proc", flags: restricted},
	{kind: "sysfs", at: "/sys", flags: restricted},
	{kind: "devtmpfs", at: "/dev", flags: unix.MS_NOSUID},
	{kind: "devpts", at: "/dev/pts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, options: "mode=620,ptmxmode=666"},
	{kind: "tmpfs", at: "/dev/shm", flags: unix.MS_NOSUID | unix.MS_NODEV},
	{kind: "tmpfs", at: "/run", flags: restricted, options: "mode=755"},
	{kind: "tmpfs", at: "/tmp", flags: unix.MS_NOSUID | unix.MS_NODEV, options: "mode=1777"},
	{kind: "securityfs", at: "/sys/kernel/security", flags: restricted, optional: true},
	{kind: "cgroup2", at: "/sys/fs/cgroup", flags: restricted, optional: true},
	{kind: "efivarfs", at: "/sys/firmware/efi/efivars", flags: restricted, optional: true},
}

// prepare mounts what systemd mounts on a node before anything else.
func prepare() error {
	if err := loadModules("/usr/lib/machine"); err != nil {
		return err
	}
	if device := os.Getenv(rootVariable); device != "" {
		if err := switchRoot(device); err != nil {
			return fmt.Errorf("move to the root on %s: %w", device, err)
		}
	}
	for _, m := range mounts {
		if err := m.apply(); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make all mounts shared: %w", err)
	}
	return nil
}

// rootVariable is a kernel argument that the kernel passes to its first process as an environment
// variable: the device with the root.
const rootVariable = "MACHINE_ROOT"

// switchRoot makes the file system on a device the root, as switch_root(8) does. A
// container's root cannot be changed by pivot_root(2) on the root in memory.
func switchRoot(device string) error {
	const at = "/sysroot"
	if err := (mount{kind: "devtmpfs", at: "/dev"}).apply(); err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, at, "ext4", unix.MS_NOATIME, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/dev", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Chdir(at); err != nil {
		return err
	}
	if err := unix.Mount(at, "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

func (m mount) apply() error {
	if !m.optional || strings.HasPrefix(m.at, "/dev/") {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
	}
	err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options)
	missing := errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
	if m.optional && missing {
		return nil
	}
	return err
}

// loadModules loads the kernel modules that the machine itself needs.
func loadModules(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ko*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := load(path, ""); err != nil {
			return err
		}
	}
	return nil
}

// load loads a kernel module; one whose name ends in .xz is decompressed by the kernel.
func load(path, params string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if strings.HasSuffix(path, ".xz") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), params, flags); err != nil {
		return &os.PathError{Op: "load", Path: path, Err: err}
	}
	return nil
}
