// Package root makes and removes driver roots of the simulated driver: folders with
// the files of an installed NVIDIA driver.
//
// Package plan computes the content; this package creates it. A manifest, written
// before the first change, lists everything in the root that belongs to gpusim. So the
// next run repairs one that was killed, and nothing else is ever removed.
package root

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"

	"github.com/gpuready/gpuready/simulator/state"
)

// ErrNone means that a folder holds no driver root of gpusim.
var ErrNone = errors.New("no simulated driver")

// FileSystem describes a file system for a driver root alone: with programs and device
// nodes, and without set-user-ID.
var FileSystem = mount.Kind{Source: "gpusim", Mode: "755", Attributes: unix.MOUNT_ATTR_NOSUID}

// Root is a folder for a simulated driver, which may exist already.
type Root struct {
	Dir     string
	Command string                        // the command line, shown to those who wait for this process
	Logf    func(format string, a ...any) // what people should know, a line at a time
	Unseen  bool                          // Dir is a new file system that nobody else sees
	step    func(what string) error       // called before each step; tests interrupt there
}

// Spec describes the driver root that Up makes.
type Spec struct {
	State     *state.State
	Profile   string
	Version   string // of the libraries
	Arch      string // as Go calls it
	Libraries string // folder with what make built
	Force     bool   // also in "/"
}

// Up creates the driver root, changes it into another one, or repairs it.
func (r *Root) Up(s Spec) error {
	if !r.Unseen {
		if err := r.CheckSafe(s.Force); err != nil {
			return err
		}
	}
	libs, err := Libraries(s.Libraries, s.Arch, s.Version)
	if err != nil {
		return err
	}
	lock, err := r.lockRoot()
	if err != nil {
		return err
	}
	return errors.Join(r.up(s, libs), lock.release())
}

// lockRoot locks the root, and begins one if there is none.
func (r *Root) lockRoot() (*lock, error) {
	for {
		if err := r.begin(); err != nil {
			return nil, err
		}
		lock, err := acquire(filepath.Join(r.Dir, lockPath), r.Command, r.Logf)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a gpusim down has just ended
		}
		return lock, err
	}
}

func (r *Root) up(s Spec, libs []Entry) error {
	was, err := readManifest(r.Dir)
	if err != nil {
		return err
	}
	machine := s.machine() // before it gets its major numbers
	majors, err := r.majors(s.State)
	if err != nil {
		return err
	}
	plain, err := r.plain()
	if err != nil {
		return err
	}
	wanted := Machine{State: s.State, Version: s.Version, Arch: s.Arch, Majors: majors, Plain: plain, Libraries: libs}
	entries := wanted.Entries()
	if err := foreign(r.Dir, was, entries); err != nil {
		return err
	}
	r.warnMount()
	c := &change{
		Root: r, was: was, fresh: s.State,
		state: func(now *state.State) error { *now = *s.State; return nil },
		will: &Manifest{
			Layout: 1, Profile: s.Profile, Machine: machine, Version: s.Version, Arch: s.Arch, Majors: majors, Plain: plain,
			Entries: entries,
		},
	}
	return c.apply()
}

// CheckSafe keeps gpusim away from real drivers and, unless forced, from "/".
func (r *Root) CheckSafe(force bool) error {
	real, err := filepath.EvalSymlinks(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if real == "/" && !force {
		return errors.New("/ is where a real driver belongs; use another --root, or --force if this is a machine to throw away")
	}
	found, err := realDriver(real)
	if err != nil {
		return err
	}
	if found != "" {
		return fmt.Errorf("%s is not of the simulated driver; gpusim does not touch a root that holds a real one; use another --root", found)
	}
	return nil
}

// majors chooses major numbers that no driver of this machine has, so that opening a
// simulated node fails with "no such device" and never reaches a real device.
func (r *Root) majors(s *state.State) (Majors, error) {
	devices, err := os.ReadFile("/proc/devices")
	if err != nil {
		return Majors{}, err
	}
	taken := takenMajors(devices)
	// The kernel gives 384 to 511 and 234 to 254 to drivers that ask for any. Nodes that a real
	// driver has left have such numbers.
	free := uint32(383)
	next := func() uint32 {
		for taken[free] {
			free--
		}
		free--
		return free + 1
	}
	m := Majors{GPU: 195}
	if taken[m.GPU] {
		m.GPU = next()
		r.Logf("major number 195 belongs to a real driver here; the simulated GPUs get %d", m.GPU)
	}
	m.UVM, m.Caps, m.NVSwitch = next(), next(), next()
	s.MajorGpu, s.MajorUvm, s.MajorCaps = m.GPU, m.UVM, m.Caps
	return m, nil
}

// takenMajors reads the character devices of /proc/devices.
func takenMajors(devices []byte) map[uint32]bool {
	taken := map[uint32]bool{}
	lines := bufio.NewScanner(bytes.NewReader(devices))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Block") {
			break
		}
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 32); err == nil {
			taken[uint32(n)] = true
		}
	}
	return taken
}

// plain reports whether only plain files can stand in for device nodes here.
func (r *Root) plain() (bool, error) {
	probe := filepath.Join(r.Dir, OwnDir, ".new-probe")
	if err := os.Remove(probe); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	// 1:3 is /dev/null: harmless whoever opens it.
	err := unix.Mknod(probe, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	switch {
	case err == nil:
		return false, os.Remove(probe)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		r.Logf("device nodes cannot be made here (%v): plain files stand in for them, which are enough for programs, but not for containers", err)
		return true, nil
	}
	return false, fmt.Errorf("mknod in %s: %w", r.Dir, err)
}

// warnMount warns if the file system forbids what a driver root needs.
func (r *Root) warnMount() {
	var st unix.Statfs_t
	if err := unix.Statfs(r.Dir, &st); err != nil {
		return
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		r.Logf("%s is on a file system mounted noexec: programs cannot load the libraries from there", r.Dir)
	}
	if st.Flags&unix.ST_NODEV != 0 {
		r.Logf("%s is on a file system mounted nodev: programs cannot open the device nodes there", r.Dir)
	}
}

// Down removes everything that Up made, and nothing else. It reports whether there was
// anything.
func (r *Root) Down() (bool, error) {
	if r.missing() != "" {
		return false, r.tidy()
	}
	lock, err := acquire(filepath.Join(r.Dir, lockPath), r.Command, r.Logf)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // another gpusim down has just ended
	}
	if err != nil {
		return false, err
	}
	return true, errors.Join(r.down(), lock.release())
}

func (r *Root) down() error {
	m, err := readManifest(r.Dir)
	if err != nil {
		return err
	}
	for _, e := range slices.Backward(m.Entries) {
		if err := r.interrupted("remove " + e.Path); err != nil {
			return err
		}
		path := filepath.Join(r.Dir, e.Path)
		if e.Kind == State {
			if err := unload(path); err != nil {
				return err
			}
		}
		gone, err := e.Remove(r.Dir)
		if err != nil {
			return err
		}
		if !gone {
			r.Logf("%s is no longer what gpusim made; it stays", path)
		}
	}
	RemoveEmpty(r.Dir, slices.DeleteFunc(slices.Clone(m.Dirs), func(d string) bool { return slices.Contains(ownDirs, d) }), nil)
	if err := r.interrupted("end"); err != nil {
		return err
	}
	return r.end(m)
}

func (r *Root) interrupted(before string) error {
	if r.step == nil {
		return nil
	}
	return r.step(before)
}

// driverNotLoaded is NVML_ERROR_DRIVER_NOT_LOADED.
const driverNotLoaded = 9

// unload marks the driver as not loaded, for processes that still have the state open.
func unload(path string) error {
	f, err := state.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, state.ErrInvalid) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error {
		s.InitError, s.EventError = driverNotLoaded, driverNotLoaded
		return nil
	})
	return errors.Join(err, f.Close())
}

// Manifest returns the manifest of the root; ErrNone if it holds no simulated driver. It
// waits while another gpusim changes the root.
func (r *Root) Manifest() (*Manifest, error) {
	m, err := r.manifest()
	if !errors.Is(err, errUnfinished) {
		return m, err
	}
	lock, err := acquire(filepath.Join(r.Dir, lockPath), r.Command, r.Logf)
	if err == nil {
		err = lock.release()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return r.manifest()
}

// errUnfinished means that a root is being changed, or that the change was killed.
var errUnfinished = errors.New("a change of the simulated driver was not finished")

func (r *Root) manifest() (*Manifest, error) {
	m, err := readManifest(r.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s: %w; run gpusim up --root %s", r.Dir, ErrNone, r.Dir)
	case err != nil:
		return nil, err
	case m.Phase != phaseComplete:
		return nil, fmt.Errorf("%s: %w; run gpusim up --root %s again", r.Dir, errUnfinished, r.Dir)
	}
	return m, nil
}

// Open opens the state of the driver in the root.
func (r *Root) Open() (*state.File, error) {
	m, err := r.Manifest()
	if err != nil {
		return nil, err
	}
	return state.Open(r.statePath(m))
}

func (r *Root) statePath(m *Manifest) string {
	return filepath.Join(r.Dir, StatePath(m.Arch, m.Version))
}

// Log opens the file to which programs on the driver write the reasons of failed calls.
func (r *Root) Log() (*os.File, error) {
	if _, err := r.Manifest(); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(r.Dir, LogPath))
}

// Change changes the state, and the files and device nodes that follow from it. New ones
// exist before the state lists them.
func (r *Root) Change(by func(*state.State) error) error {
	return r.withLock(func() error {
		was, err := r.manifest() // not Manifest: this gpusim has the lock
		if err != nil {
			return err
		}
		return r.alter(was, was.libraries(), by)
	})
}

// withLock runs do while no other gpusim changes the root, if there is one.
func (r *Root) withLock(do func() error) error {
	if _, err := r.manifest(); errors.Is(err, ErrNone) {
		return err
	}
	lock, err := acquire(filepath.Join(r.Dir, lockPath), r.Command, r.Logf)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = r.manifest() // a gpusim down has just ended; it says so
	}
	if err != nil {
		return err
	}
	return errors.Join(do(), lock.release())
}

// alter changes the existing state, and everything that follows from it.
func (r *Root) alter(was *Manifest, libs []Entry, by func(*state.State) error) error {
	f, err := state.Open(r.statePath(was))
	if err != nil {
		return err
	}
	var s state.State
	f.Read(&s)
	if err := f.Close(); err != nil {
		return err
	}
	if err := by(&s); err != nil {
		return err
	}
	will := *was
	machine := Machine{State: &s, Version: was.Version, Arch: was.Arch, Majors: was.Majors, Plain: was.Plain, Libraries: libs}
	will.Entries = machine.Entries()
	if err := foreign(r.Dir, was, will.Entries); err != nil {
		return err
	}
	c := &change{Root: r, was: was, will: &will, fresh: &s, state: by}
	return c.apply()
}

// libraries returns the entries whose content came from the library folder.
func (m *Manifest) libraries() []Entry {
	return slices.DeleteFunc(slices.Clone(m.Entries), func(e Entry) bool { return !e.Library })
}

// Default is the usual driver root of a containerised driver.
const Default = "/run/nvidia/driver"
