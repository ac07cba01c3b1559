package root

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// change brings a root from one manifest to another.
type change struct {
	*Root
	was   *Manifest
	will  *Manifest
	state func(*state.State) error // how the state becomes what it is to be
	fresh *state.State             // what the state file starts with if there is none
}

// apply creates all new entries, in order, then removes the old ones.
func (c *change) apply() error {
	during := *c.will
	during.Phase = phaseChanging
	during.Entries = Union(c.was.Entries, c.will.Entries)
	during.Parents = c.was.Parents
	during.Dirs = slices.Concat(c.was.Dirs, MissingDirs(c.Dir, c.will.Entries))
	slices.Sort(during.Dirs) // parents come before what is in them
	during.Dirs = slices.Compact(during.Dirs)
	c.will.Dirs, c.will.Parents = during.Dirs, during.Parents
	if err := c.do("manifest", func() error { return during.write(c.Dir) }); err != nil {
		return err
	}
	for _, d := range MissingDirs(c.Dir, c.will.Entries) {
		if err := c.do("mkdir "+d, func() error { return Mkdir(filepath.Join(c.Dir, d)) }); err != nil {
			return err
		}
	}
	for _, e := range c.will.Entries {
		if err := c.do("put "+e.Path, func() error { return c.create(e) }); err != nil {
			return err
		}
	}
	if err := c.removeOld(); err != nil {
		return err
	}
	c.will.Phase = phaseComplete
	return c.do("manifest complete", func() error { return c.will.write(c.Dir) })
}

func (c *change) do(what string, f func() error) error {
	if err := c.interrupted(what); err != nil {
		return err
	}
	return f()
}

// create creates one entry.
func (c *change) create(e Entry) error {
	if e.Kind == State {
		return c.putState(filepath.Join(c.Dir, e.Path))
	}
	return e.Put(c.Dir)
}

// putState changes an existing state in place, so that processes that have it open see
// the change.
func (c *change) putState(path string) error {
	f, err := state.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, state.ErrInvalid) {
		if c.fresh == nil {
			return fmt.Errorf("the state of the simulated driver: %w", err)
		}
		return state.Create(path, c.fresh)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Update(c.state), f.Close())
}

// removeOld removes the entries of the old manifest that are not in the new one, newest
// first.
func (c *change) removeOld() error {
	keep := map[string]bool{}
	for _, e := range c.will.Entries {
		keep[e.Path] = true
	}
	version := state.Text(c.fresh.ModuleVersion[:])
	for _, e := range slices.Backward(c.was.Entries) {
		if keep[e.Path] {
			continue
		}
		err := c.do("remove "+e.Path, func() error {
			if e.Kind == State {
				// Processes that use the old library now get a version mismatch.
				if err := outdate(filepath.Join(c.Dir, e.Path), version); err != nil {
					return err
				}
			}
			_, err := e.Remove(c.Dir)
			return err
		})
		if err != nil {
			return err
		}
	}
	c.will.Dirs = RemoveEmpty(c.Dir, c.will.Dirs, c.will.Entries)
	return nil
}

func outdate(path, version string) error {
	f, err := state.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, state.ErrInvalid) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error { return state.SetText(s.ModuleVersion[:], version) })
	return errors.Join(err, f.Close())
}

// foreign finds planned paths occupied by something that gpusim did not make.
func foreign(root string, was *Manifest, plan []Entry) error {
	mine := map[string]bool{}
	for _, e := range was.Entries {
		mine[e.Path] = true
	}
	var found []string
	for _, e := range plan {
		info, err := os.Lstat(filepath.Join(root, e.Path))
		if err != nil || mine[e.Path] || (e.Kind == Dir && info.IsDir()) {
			continue
		}
		found = append(found, e.Path)
	}
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > 3 {
		found, more = found[:3], fmt.Sprintf(" and %d more", len(found)-3)
	}
	return fmt.Errorf("%s already has %s%s, and gpusim did not make them; use another --root", root, strings.Join(found, ", "), more)
}
