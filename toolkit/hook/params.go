package main

// This file shows a container the driver's parameters with ModifyDeviceFiles off, so
// that NVIDIA's user libraries do not try to create device nodes of other GPUs.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// paramsPath is the file of the driver's parameters, on the host and in a container.
const paramsPath = "/proc/driver/nvidia/params"

const maxParams = 64 << 10 // a driver's has 1 KiB

// errKernel is returned, wrapped, by a kernel too old to mount without a path.
var errKernel = errors.New("this kernel is too old (Linux 5.2 or newer is needed)")

// wantedParams returns the text for a container: that of the host's file with ModifyDeviceFiles
// off. It returns nil if there is no driver or it is already off.
func wantedParams(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxParams+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxParams {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxParams)
	}
	return switchOff(data), nil
}

func switchOff(data []byte) []byte {
	const on, off = "ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"
	var out bytes.Buffer
	changed := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == on {
			line, changed = off, true
		}
		out.WriteString(line + "\n")
	}
	if !changed {
		return nil
	}
	return out.Bytes()
}

// mountParams mounts text at paramsPath in the container. It writes the text to a file of a tmpfs that
// nobody else sees, makes that read-only, and mounts the file on the very file that was
// checked. No step follows a link or leaves anything in the image.
func mountParams(root *rootfs.Root, text []byte) error {
	if now, err := root.ReadFile(paramsPath, maxParams); err == nil && bytes.Equal(now, text) {
		return nil // an earlier hook did it
	}
	target, err := root.HoldMountPoint(paramsPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the container has no such file
	}
	if err != nil {
		return err
	}
	defer target.Close()
	source, err := detached(text)
	if err != nil {
		return err
	}
	defer unix.Close(source) //nolint:errcheck // only a handle
	err = unix.MoveMount(source, "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("mount on %s: %w", paramsPath, err)
	}
	return nil
}

// detached returns a detached mount of a read-only file with the given text.
func detached(text []byte) (fd int, err error) {
	dir, err := tmpfs()
	if err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w", err)
	}
	defer unix.Close(dir) //nolint:errcheck // the file's own mount keeps the file system
	file, err := unix.Openat(dir, "params", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return -1, fmt.Errorf("make the file: %w", err)
	}
	n, err := unix.Write(file, text)
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = unix.Fchmod(file, 0o444) // regardless of the umask
	}
	if err = errors.Join(err, unix.Close(file)); err != nil {
		return -1, fmt.Errorf("write the file: %w", err)
	}
	if err := seal(dir); err != nil {
		return -1, fmt.Errorf("make the tmpfs read-only: %w", err)
	}
	// Kernels up to Linux 6.12 cannot copy a mount, or a file of it, that is in no mount namespace. So
	// the tmpfs has to be mounted for a moment, where nobody sees it.
	err = mount.InNamespace(func() error {
		if err := unix.MoveMount(dir, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount the tmpfs: %w", err)
		}
		fd, err = unix.OpenTree(dir, "params", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("take the file out of the tmpfs: %w", err)
	}
	return fd, nil
}

func tmpfs() (fd int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return -1, errKernel
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs) //nolint:errcheck // it is of no use afterwards
	for _, o := range [][2]string{{"source", "gpu-cdi-hook"}, {"mode", "0555"}, {"size", "128k"}, {"nr_inodes", "2"}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("%s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// seal makes the whole file system read-only, which works on every kernel that can create
// it. To make a single mount read-only needs 5.12.
func seal(dir int) error {
	fs, err := unix.Fspick(dir, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fs) //nolint:errcheck // it is of no use afterwards
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fs)
}
