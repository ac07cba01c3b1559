package serve

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
)

// at returns the driver root mounted at dir.
func (d *driver) at(dir string) *root.Root {
	return &root.Root{Dir: dir, Command: d.Command, Logf: func(format string, a ...any) { d.Log.Info(fmt.Sprintf(format, a...)) }}
}

// resume resumes the driver that an earlier process left, if it is of the same machine.
// The state of its GPUs, and the programs on them, stay.
func (d *driver) resume() (bool, error) {
	ours, err := root.FileSystem.Is(d.Root)
	if err != nil || !ours {
		return false, err
	}
	r := d.at(d.Root)
	same, err := r.Holds(d.Spec)
	if err == nil && same {
		err = r.Refresh(d.Spec)
	}
	switch {
	case err != nil:
		d.Log.Warn("the driver that is there cannot be gone on with: it will be replaced", "root", d.Root, "err", oneLine(err))
		return false, nil
	case !same:
		d.Log.Warn("the driver that is there is of another machine, or of another version: it will be replaced", "root", d.Root)
		return false, nil
	}
	d.Log.Info("going on with the driver that is there", "root", d.Root)
	return true, nil
}

// mount creates the driver root in a hidden place and then mounts it atomically, on top
// of an existing one.
//
// It does not replace the old mount: containers that have mounted the old root see a
// mount on top of it, but not a new one in its place.
func (d *driver) mount() error {
	old, err := d.predecessor()
	if err != nil {
		return err
	}
	if old != nil {
		defer old.Close() //nolint:errcheck // it was only read from
	}
	fs, err := root.FileSystem.New(d.Size)
	if err != nil {
		return err
	}
	defer fs.Close() //nolint:errcheck // it holds no data that could be lost
	r := d.at(fs.Dir())
	r.Unseen = true
	if err := r.Up(d.Spec); err != nil {
		return d.explain(err, fs.Dir())
	}
	if err := fs.MountOn(d.Root); err != nil {
		return err
	}
	p, err := mount.Top(d.Root)
	if err != nil {
		return err
	}
	if !p.Shared {
		d.Log.Warn("the driver root is seen in this mount namespace alone: in a container, mount the folder above it with mountPropagation: Bidirectional", "root", d.Root)
	}
	if old == nil {
		return nil
	}
	// It is already covered: failing to empty it is no reason to fail.
	if err := d.at(fdPath(old)).Retire(d.Spec.Version); err != nil {
		d.Log.Warn("the replaced driver root could not be emptied", "err", oneLine(err))
	}
	return nil
}

// explain describes an error about the hidden file system.
func (d *driver) explain(err error, dir string) error {
	text := strings.ReplaceAll(err.Error(), dir, d.Root)
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("make the driver root: %s; it may take %s, as --size says", text, d.Size)
	}
	return fmt.Errorf("make the driver root: %s", text)
}

// predecessor opens the driver root that will be covered; nil if there is none. It
// refuses to cover anything else.
func (d *driver) predecessor() (*os.File, error) {
	if err := d.at(d.Root).CheckSafe(false); err != nil {
		return nil, err
	}
	ours, err := root.FileSystem.Is(d.Root)
	if err != nil {
		return nil, err
	}
	if ours {
		return os.Open(d.Root)
	}
	entries, err := os.ReadDir(d.Root)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s already has %s, which gpusim serve did not put there, and it covers nothing; empty it (gpusim down removes what gpusim up made) or use another --root", d.Root, entries[0].Name())
	}
	return nil, nil
}

// fdPath returns a path to the folder that stays valid whatever is mounted over it.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// inUse reports whether any process has the driver's state mapped: one that has
// libnvidia-ml or libcuda in use, in whatever container. The kernel gives a
// write lease on a file only if nobody else has it open (fcntl(2)). On any error the
// driver counts as in use.
func (d *driver) inUse() bool {
	path, err := d.at(d.Root).StatePath()
	if err != nil {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close() //nolint:errcheck // it was not written
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return true
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err != nil
}

// Unload atomically removes the driver that gpusim serve mounted at r.Dir. Processes
// that use it then find no loaded driver.
func Unload(r *root.Root) error {
	f, err := os.Open(r.Dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read from
	if err := root.FileSystem.Remove(r.Dir); err != nil {
		return err
	}
	hidden := *r
	hidden.Dir = fdPath(f)
	_, err = hidden.Down()
	return err
}
