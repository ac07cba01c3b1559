package root

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A root begins and ends with one rename: its manifest exists from the first folder to
// the last. So a killed gpusim never leaves anything that no manifest lists, except the
// folder to be renamed, which the next run removes.

// begin makes gpusim's own folder in the root and missing folders above it, with a
// manifest that lists those.
func (r *Root) begin() error {
	for {
		top := r.missing()
		if top == "" {
			return nil
		}
		err := locked(filepath.Dir(top), func() error {
			if r.missing() != top {
				return nil
			}
			temp := Temporary(top)
			if err := os.RemoveAll(temp); err != nil {
				return err
			}
			below, err := filepath.Rel(top, filepath.Join(r.Dir, OwnDir))
			if err != nil {
				return err
			}
			own := filepath.Join(temp, below)
			if err := os.MkdirAll(own, 0o755); err != nil {
				return err
			}
			if err := r.initialManifest(top).writeIn(own); err != nil {
				return err
			}
			return os.Rename(temp, top)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// Another gpusim may have been faster, or removed it all: try again.
	}
}

// missing returns the highest missing folder on the way to gpusim's own; "" if there is
// none.
func (r *Root) missing() string {
	top := ""
	for d := filepath.Join(r.Dir, OwnDir); ; d = filepath.Dir(d) {
		if Exists(d) || d == filepath.Dir(d) {
			return top
		}
		top = d
	}
}

// initialManifest returns the manifest of a root that has only the folders from top on.
func (r *Root) initialManifest(top string) *Manifest {
	m := &Manifest{Layout: 1, Phase: phaseChanging}
	for _, d := range ownDirs {
		if path := filepath.Join(r.Dir, d); len(path) >= len(top) {
			m.Dirs = append(m.Dirs, d)
		}
	}
	for d := filepath.Dir(r.Dir); len(d) >= len(top); d = filepath.Dir(d) {
		m.Parents++
	}
	return m
}

// ownDirs lists the folders that contain a manifest, from the root down.
var ownDirs = []string{".", "var", "var/lib", OwnDir}

// end removes the lock, the manifest, and the folders around it that gpusim made, if
// nothing else is in them.
func (r *Root) end(m *Manifest) error {
	top, parents := filepath.Join(r.Dir, OwnDir), m.Parents
	for d := filepath.Dir(top); d != filepath.Dir(d); d = filepath.Dir(d) {
		made := false
		if below, err := filepath.Rel(r.Dir, d); err == nil && filepath.IsLocal(below) {
			made = slices.Contains(m.Dirs, below)
		} else if parents > 0 {
			made, parents = true, parents-1
		}
		if entries, err := os.ReadDir(d); !made || err != nil || len(entries) != 1 {
			break
		}
		top = d
	}
	return locked(filepath.Dir(top), func() error {
		temp := Temporary(top)
		if err := errors.Join(os.RemoveAll(temp), os.Rename(top, temp)); err != nil {
			return err
		}
		return os.RemoveAll(temp)
	})
}

// tidy removes the left-overs of a gpusim that was killed in begin or end.
func (r *Root) tidy() error {
	top := r.missing()
	if top == "" {
		return nil
	}
	err := locked(filepath.Dir(top), func() error { return os.RemoveAll(Temporary(top)) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// locked runs do while no other gpusim begins or ends a root in dir.
func locked(dir string, do func() error) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	for err = unix.Flock(int(f.Fd()), unix.LOCK_EX); errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		err = do()
	}
	return errors.Join(err, f.Close())
}
