package root

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// daemonsRoot is the folder in which Prepare creates a root. Each container has a tmpfs there.
const daemonsRoot = "/dev/shm/gpu-driver"

// shared lists the folders of the container that programs of the image need.
var shared = []string{"/proc", "/sys", "/dev", "/run", "/drivers", "/etc/nvidia", "/etc/nvidia-imex"}

// Prepare returns a root for the driver's daemons: the content of the image's folder dir, with
// the container's /proc, /sys, /dev, /run and configuration. The root is private to this
// container. Prepare creates nothing in dir, which is mounted on the node.
func Prepare(dir string) (string, error) {
	if err := os.MkdirAll(daemonsRoot, 0o755); err != nil {
		return "", err
	}
	if mounted, err := IsMounted(daemonsRoot); err != nil {
		return "", err
	} else if mounted {
		if err := unmountAll(daemonsRoot); err != nil {
			return "", err
		}
	}
	if err := unix.Mount("tmpfs", daemonsRoot, "tmpfs", unix.MS_NOSUID, "mode=0755,size=1m"); err != nil {
		return "", fmt.Errorf("create a root for the driver's daemons: mount a tmpfs on %s: %w%s", daemonsRoot, err, adviseOnMountError(err))
	}
	// It lies in /dev, which is mounted in it below: it must not contain itself.
	if err := unix.Mount("", daemonsRoot, "", unix.MS_UNBINDABLE, ""); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		from, to := filepath.Join(dir, e.Name()), filepath.Join(daemonsRoot, e.Name())
		if e.Type()&fs.ModeSymlink != 0 {
			var target string
			if target, err = os.Readlink(from); err == nil {
				err = os.Symlink(target, to)
			}
		} else if e.IsDir() {
			err = bindInto(from, to)
		}
		if err != nil {
			return "", err
		}
	}
	for _, name := range shared {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bindInto(name, filepath.Join(daemonsRoot, name)); err != nil {
			return "", err
		}
	}
	return daemonsRoot, nil
}

// bindInto mounts a folder, with its submounts, in the root for the daemons. Changes of these
// mounts do not propagate to the node.
func bindInto(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w%s", from, to, err, adviseOnMountError(err))
	}
	if err := unix.Mount("", to, "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts of the node from being changed by those in %s: %w", to, err)
	}
	return nil
}
