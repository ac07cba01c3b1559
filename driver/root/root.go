// Package root shows a driver's user space at the place where the ecosystem looks for it,
// /run/nvidia/driver: a read-only mount of the folder of the image that holds it, without
// anything that is mounted below that folder. It outlives the container, as the kernel
// modules do.
package root

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
)

// flags of the mount that shows the driver root: programs in it run and libraries load; set-user-ID
// bits and device nodes count for nothing.
const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

// maxLayers is how many driver roots are shown on top of each other: one for each start of
// a container since the modules were loaded.
const maxLayers = 16

// Show mounts the folder dir of the image at at, on top of an earlier driver root:
// containers that have mounted that one see what is mounted on it, but not what is
// mounted where it was. It returns whether the mount is seen outside of this container.
//
// The flags of a mount are set after it is made, and are not passed on to where it has
// propagated. So dir is mounted on itself first, made read-only, and this mount is shown.
func Show(dir, at string) (propagates bool, err error) {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return false, err
	}
	if at, err = mount.Resolve(at); err != nil {
		return false, err
	}
	if at == "/" {
		return false, errors.New("show the driver root: / cannot be covered; use another folder")
	}
	if dir, err = mount.Resolve(dir); err != nil {
		return false, err
	}
	if n, err := mount.Count(at); err != nil {
		return false, err
	} else if n >= maxLayers { // each holds the image of a container that has ended
		if err := Remove(at); err != nil {
			return false, err
		}
	}
	if err := bind(dir, dir, 0); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unmount(dir)) }()
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return false, fmt.Errorf("make the mount of %s private: %w", dir, err)
	}
	if err := bind("", dir, unix.MS_REMOUNT|flags); err != nil {
		return false, err
	}
	if err := bind(dir, at, 0); err != nil {
		return false, err
	}
	p, _, err := mount.On(at)
	return p.Shared, err
}

func bind(from, at string, flags uintptr) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND|flags, ""); err != nil {
		return fmt.Errorf("mount the driver root on %s: %w%s", at, err, advise(err))
	}
	return nil
}

func advise(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "; mounting needs CAP_SYS_ADMIN: run it as root, in a privileged container"
	}
	return ""
}

func unmount(at string) error {
	if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w%s", at, err, advise(err))
	}
	return nil
}

// Mounted reports whether something is mounted at at.
func Mounted(at string) (bool, error) {
	at, err := mount.Resolve(at)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, there, err := mount.On(at)
	return there, err
}

// Remove unmounts the driver root, each layer of it. Who uses files in it keeps them.
func Remove(at string) error {
	for range 2 * maxLayers {
		there, err := Mounted(at)
		if err != nil || !there {
			return err
		}
		if err := unmount(at); err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: more than %d file systems are mounted there", at, 2*maxLayers)
}
