// Package root mounts a driver's user space at /run/nvidia/driver, where the ecosystem expects
// it. It is a read-only mount of a folder of the image, without the submounts of that folder.
// It outlives the container, as the kernel modules do.
package root

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
)

// flags are the flags of the driver root's mount. Programs can run and libraries load; set-user-ID
// bits and device nodes have no effect.
const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

// maxLayers bounds the driver roots that are mounted on top of each other: one for each start
// of a container since the modules were loaded.
const maxLayers = 16

// Mount mounts the image's folder dir at a path, on top of an earlier driver root: containers
// that have mounted the earlier root see a mount on top of it, but would not see one that replaces
// it. Mount reports whether the mount propagates out of this container.
//
// The flags of a mount are set after it is created, and do not propagate. So dir is first
// mounted on itself and made read-only, and that mount is then mounted at the path.
func Mount(dir, at string) (propagates bool, err error) {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return false, err
	}
	if at, err = mount.Resolve(at); err != nil {
		return false, err
	}
	if at == "/" {
		return false, errors.New("mount the driver root: it cannot cover /; use another folder")
	}
	if dir, err = mount.Resolve(dir); err != nil {
		return false, err
	}
	if n, err := mount.Count(at); err != nil {
		return false, err
	} else if n >= maxLayers { // each keeps the image of an ended container
		if err := Remove(at); err != nil {
			return false, err
		}
	}
	if err := bindMount(dir, dir, 0); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unmountAll(dir)) }()
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return false, fmt.Errorf("make the mount of %s private: %w", dir, err)
	}
	if err := bindMount("", dir, unix.MS_REMOUNT|flags); err != nil {
		return false, err
	}
	if err := bindMount(dir, at, 0); err != nil {
		return false, err
	}
	p, _, err := mount.TopAt(at)
	return p.Shared, err
}

func bindMount(from, at string, flags uintptr) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND|flags, ""); err != nil {
		return fmt.Errorf("mount the driver root on %s: %w%s", at, err, adviseOnMountError(err))
	}
	return nil
}

// adviseOnMountError returns what to do about an error of mounting, to append to the error; "": no
// advice.
func adviseOnMountError(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "; mounting needs CAP_SYS_ADMIN: run it as root, in a privileged container"
	}
	return ""
}

func unmountAll(at string) error {
	if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w%s", at, err, adviseOnMountError(err))
	}
	return nil
}

// IsMounted reports whether something is mounted at the path at.
func IsMounted(at string) (bool, error) {
	at, err := mount.Resolve(at)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, there, err := mount.TopAt(at)
	return there, err
}

// Remove unmounts all layers of the driver root. Processes keep the files that they have open.
func Remove(at string) error {
	for range 2 * maxLayers {
		there, err := IsMounted(at)
		if err != nil || !there {
			return err
		}
		if err := unmountAll(at); err != nil {
			return err
		}
	}
	return fmt.Errorf("unmount %s: more than %d file systems are mounted there", at, 2*maxLayers)
}
