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

// at is the driver root as seen at dir.
func (d *driver) at(dir string) *root.Root {
	return &root.Root{Dir: dir, Command: d.Command, Say: func(format string, a ...any) { d.Log.Info(fmt.Sprintf(format, a...)) }}
}

// resume goes on with the driver that an earlier process left, if it is of the
// same machine. Its GPUs are as they were, and so is all that runs on them.
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

// mount makes the driver root where nobody sees it and shows it in one moment,
// on top of one that is there already.
//
// On top, not in its place: containers that have mounted the old root see what is
// mounted on it, but not what is mounted where it was.
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
	// It is out of sight already: that it could not be emptied is no reason to fail.
	if err := d.at(seen(old)).Retire(d.Spec.Version); err != nil {
		d.Log.Warn("the replaced driver root could not be emptied", "err", oneLine(err))
	}
	return nil
}

// explain puts an error about the file system that nobody saw in words.
func (d *driver) explain(err error, dir string) error {
	text := strings.ReplaceAll(err.Error(), dir, d.Root)
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("make the driver root: %s; it may take %s, as --size says", text, d.Size)
	}
	return fmt.Errorf("make the driver root: %s", text)
}

// predecessor opens the driver root that will be covered; nil if there is none.
// Anything else at the place is not covered.
func (d *driver) predecessor() (*os.File, error) {
	if err := d.at(d.Root).Refuse(false); err != nil {
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

// seen is a path to the folder that stays the same whatever is mounted over it.
func seen(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// inUse reports whether any process has the driver's state mapped: one that has
// libnvidia-ml or libcuda in use, in whatever container. The kernel gives a
// write lease on a file only where nobody else has it open (fcntl(2)). Where it
// cannot be told, the driver is in use.
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

// Unload takes the driver that gpusim serve mounted at r.Dir away in one moment.
// Processes that use it learn that it is no longer loaded.
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
	hidden.Dir = seen(f)
	_, err = hidden.Down()
	return err
}
