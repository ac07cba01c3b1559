package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	built = "/driver"            // where the driver root is made, in this container
	shown = "/run/nvidia/driver" // where the node sees it

	// The files that the node shows in /proc, by way of its first process.
	nodeModules = "/proc/1/root/run/cluster/modules"
	nodeDevices = "/proc/1/root/run/cluster/devices"
)

// modules lists the driver's modules, named as in /proc/modules.
const modules = `nvidia_modeset 1302528 0 - Live 0x0000000000000000 (OE)
nvidia_uvm 1540096 0 - Live 0x0000000000000000 (OE)
nvidia 54018048 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (OE)
`

// load makes the driver root and then shows it, as a driver container shows its own root
// once the modules are loaded.
func load(ctx context.Context) error {
	if err := os.MkdirAll(built, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("driver", built, "tmpfs", unix.MS_NOSUID, "mode=755,size=256m"); err != nil {
		return fmt.Errorf("mount the driver root: %w", err)
	}
	for _, dir := range []string{"/lib", "/lib64"} { // libc and loader, for programs that run in the root
		if err := os.CopyFS(filepath.Join(built, dir), os.DirFS(dir)); err != nil {
			return fmt.Errorf("fill the driver root: %w", err)
		}
	}
	if err := os.MkdirAll(built+"/sbin", 0o755); err != nil {
		return err
	}
	if err := copyProgram("/proc/self/exe", built+"/sbin/modprobe"); err != nil {
		return err
	}
	up := []string{"up", "--root", built}
	if v := os.Getenv("DRIVER_VERSION"); v != "" {
		up = append(up, "--driver-version", v)
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/gpusim", up...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("gpusim: %w", err)
	}
	if err := insert(); err != nil {
		return fmt.Errorf("show the modules: %w", err)
	}
	if err := os.MkdirAll(shown, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(built, shown, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("show the driver root: %w", err)
	}
	return nil
}

// insert makes the modules appear: to the node and all containers in /proc, to this one in /sys, too.
func insert() error {
	devices, err := os.ReadFile(built + "/proc/devices")
	if err != nil {
		return err
	}
	var majors []byte
	for line := range bytes.Lines(devices) {
		if bytes.Contains(line, []byte("nvidia")) {
			majors = append(majors, line...)
		}
	}
	if err := edit(nodeDevices, func(text string) string {
		return strings.Replace(text, "Character devices:\n", "Character devices:\n"+string(majors), 1)
	}); err != nil {
		return err
	}
	if err := edit(nodeModules, func(text string) string { return modules + text }); err != nil {
		return err
	}
	if err := unix.Mount("modules", "/sys/module", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
		dir := filepath.Join("/sys/module", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "refcnt"), []byte("2\n"), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// unload hides the driver and its modules; it is no error if there are none.
func unload() error {
	for _, at := range []string{shown, built, "/sys/module"} {
		for tmpfs(at) {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", at, err)
			}
		}
	}
	for _, name := range []string{nodeModules, nodeDevices} {
		if err := edit(name, withoutDriver); err != nil {
			return err
		}
	}
	return nil
}

// tmpfs reports whether a folder is the root of a mounted tmpfs.
func tmpfs(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return false
	}
	var here, above unix.Stat_t
	return unix.Stat(dir, &here) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

func withoutDriver(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "nvidia") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// edit changes a file of the node in place. Readers find the old text, the new
// one, or the beginning of the new one.
func edit(name string, change func(string) string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%w; this container needs hostPID, and a node of test/lab/cluster", err)
	}
	will := change(string(text))
	if will == string(text) {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(will)
	return errors.Join(err, f.Truncate(int64(len(will))), f.Close())
}

func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, fs.FileMode(0o755))
}
