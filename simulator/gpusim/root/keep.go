package root

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuready/gpuready/simulator/gpusim/plan"
	"github.com/gpuready/gpuready/simulator/state"
)

// Whoever finds a driver root that another process made may go on with it, if
// it is of the machine that is wanted: what happened to the GPUs meanwhile stays.

// machine identifies the machine that is asked for, whatever becomes of it. The
// libraries do not count: they can be exchanged under it.
func (s Spec) machine() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00", s.Version, s.Arch)
	fresh := *s.State
	fresh.MajorGpu, fresh.MajorUvm, fresh.MajorCaps = 0, 0, 0 // not asked for, but found out
	_, _ = h.Write(fresh.Bytes())                             // a hash takes anything
	return hex.EncodeToString(h.Sum(nil))
}

// Holds reports whether the root holds the machine that s describes, be it that
// a change of it was not finished.
func (r *Root) Holds(s Spec) (bool, error) {
	m, err := readManifest(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && m.Machine == s.machine(), err
}

// Refresh brings a root that Holds says is of the same machine up to date: it
// finishes a change that was killed, puts back what was removed, and takes the
// libraries of s. The state stays, in its file, and so do those who use it.
func (r *Root) Refresh(s Spec) error {
	libs, err := plan.Libraries(s.Libraries, s.Arch, s.Version)
	if err != nil {
		return err
	}
	return r.holding(func() error {
		was, err := readManifest(r.Dir)
		if err != nil {
			return err
		}
		return r.alter(was, libs, func(*state.State) error { return nil })
	})
}

// Retire empties a root that another one has taken the place of: processes that
// still use it learn that the module is of that version now, or, if it always
// was, that the driver is not loaded. Files that they have open, or that are
// mounted into containers, stay theirs.
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

// StatePath is where the state lies that the processes on this driver share.
func (r *Root) StatePath() (string, error) {
	m, err := r.Manifest()
	if err != nil {
		return "", err
	}
	return r.statePath(m), nil
}
