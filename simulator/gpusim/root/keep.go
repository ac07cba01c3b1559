package root

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuready/gpuready/simulator/state"
)

// A process may resume a driver root that another process made, if it is of the same
// machine. The state of the GPUs stays.

// machine identifies the requested machine, independent of later changes of its state.
// It leaves out the libraries, which can be replaced.
func (s Spec) machine() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00", s.Version, s.Arch)
	fresh := *s.State
	fresh.MajorGpu, fresh.MajorUvm, fresh.MajorCaps = 0, 0, 0 // not asked for, but found out
	_, _ = h.Write(fresh.Bytes())                             // a hash takes anything
	return hex.EncodeToString(h.Sum(nil))
}

// Holds reports whether the root holds the machine that s describes, even if a change
// of it was not finished.
func (r *Root) Holds(s Spec) (bool, error) {
	m, err := readManifest(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && m.Machine == s.machine(), err
}

// Refresh brings a root up to date for which Holds returns true. It finishes an
// interrupted change, restores removed files, and installs the libraries of s. The state
// stays in its file, and the processes that use it go on.
func (r *Root) Refresh(s Spec) error {
	libs, err := Libraries(s.Libraries, s.Arch, s.Version)
	if err != nil {
		return err
	}
	return r.withLock(func() error {
		was, err := readManifest(r.Dir)
		if err != nil {
			return err
		}
		return r.alter(was, libs, func(*state.State) error { return nil })
	})
}

// Retire empties a root that another one has replaced. Processes that still use it now
// find a module of that version or, if it always had that version, no loaded driver.
// Files that are open, or mounted into containers, stay usable.
func (r *Root) Retire(version string) error {
	m, err := readManifest(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if m.Version != version {
		if err := outdate(r.statePath(m), version); err != nil {
			return err
		}
	}
	_, err = r.Down()
	return err
}

// StatePath returns the path of the state that the processes on this driver share.
func (r *Root) StatePath() (string, error) {
	m, err := r.Manifest()
	if err != nil {
		return "", err
	}
	return r.statePath(m), nil
}
