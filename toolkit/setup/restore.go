package setup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/target"
)

// RestoreRuntime gives the container runtime its own configuration back, and has it
// taken in if that is allowed; else left says what a person has to do. One that was
// killed in between is ended by the next: the runtime is not left with a handler whose
// program is then removed.
func (t *Toolkit) RestoreRuntime(ctx context.Context, dry bool, tell func(string)) (install.Restored, error) {
	r := &target.Runtime{Root: t.Root, Settings: t.Config.Runtime}
	before, askErr := r.Ask(ctx)
	if hangs(askErr) {
		if _, _, changed, err := t.restoreConfig(before, true); err != nil || changed {
			return install.Restored{}, errors.Join(err, fmt.Errorf("%s; nothing was restored, for it runs with what would be taken away: stop or start it, then try again", before.Message))
		}
	}
	restored, own, changed, err := t.restoreConfig(before, dry)
	if err != nil || dry || !changed {
		return restored, err
	}
	may, what := false, "restart it"
	if t.Config.Configure {
		may, what = r.May()
	}
	switch {
	case askErr != nil:
		restored.Left = append(restored.Left, "the container runtime does not answer, so it was not restarted; it will take its configuration in when it starts")
	case !may:
		restored.Left = append(restored.Left, fmt.Sprintf("%s still runs with what it was configured to: %s", before.Name, what))
	default:
		c := &configure.Configurer{Runtime: r, Same: t.same, Patience: patience}
		did, err := c.Return(ctx, before, own)
		if did != "" {
			tell(did)
		}
		if err != nil {
			return restored, err
		}
	}
	return restored, t.journal().EndRestoring()
}

// hangs says that a runtime is there and does not answer.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// restoreConfig puts the runtime's own configuration back; changed says that it was
// another, or was when a restore that did not come to its end began, and own which of
// the runtime's handlers were ours then.
func (t *Toolkit) restoreConfig(before cri.Answer, dry bool) (restored install.Restored, own []string, changed bool, err error) {
	known, changed, err := t.journal().Restoring()
	if err != nil {
		return restored, nil, changed, err
	}
	if restored, err = t.putBack(true); err != nil || dry {
		return restored, nil, changed || len(restored.Changes) > 0, err
	}
	if own, err = t.ownHandlers(before.Handlers, restored.Changes); err != nil {
		return restored, nil, changed, err
	}
	own = append(own, known...)
	if len(restored.Changes) > 0 && !changed {
		changed = true
		if err := t.journal().BeginRestoring(own); err != nil {
			return restored, own, changed, err
		}
	}
	planned := restored.Changes
	if restored, err = t.putBack(false); len(restored.Changes) == 0 && err == nil {
		restored.Changes = planned // it was what had been begun only, and that is undone
	}
	return restored, own, changed, err
}

// putBack puts the files of the runtime's own configuration back.
func (t *Toolkit) putBack(dry bool) (install.Restored, error) {
	t.account.Lock()
	defer t.account.Unlock()
	return install.Restore(t.Root, t.Config.InstallDir, t.bootID, install.RestoreOptions{DryRun: dry, Only: t.isConfig})
}

// ownHandlers are those that a runtime has by our changes of its configuration, also
// if nobody says any more how they were to be called: what is put back names them
// less often than what there is now.
func (t *Toolkit) ownHandlers(all []string, undo []change.Change) (own []string, err error) {
	for _, h := range all {
		if h == t.Config.Handler {
			own = append(own, h)
			continue
		}
		for _, c := range undo {
			now, _, err := change.See(t.Root, c.Path)
			if err != nil {
				return nil, err
			}
			if named(now.File, h) > named(c.File, h) {
				own = append(own, h)
				break
			}
		}
	}
	return own, nil
}

// named counts how often a configuration names a handler: as a table of TOML, or a
// string of TOML or JSON.
func named(f *change.File, handler string) int {
	if f == nil {
		return 0
	}
	return len(regexp.MustCompile(`["'.]`+regexp.QuoteMeta(handler)+`["'\]]`).FindAll(f.Data, -1))
}

// isConfig says that a path of the account is of the runtime's configuration: it is
// none of those of which the toolkit itself is made.
func (t *Toolkit) isConfig(p string) bool {
	driverRoot, devRoot := t.Roots()
	ours := append(t.cdiDirs(), t.Config.InstallDir, "/dev", path.Join(driverRoot, "dev"), path.Join(devRoot, "dev"))
	return !slices.ContainsFunc(ours, func(dir string) bool {
		real, err := t.Root.Resolve(dir)
		return strings.HasPrefix(p, dir+"/") || err == nil && strings.HasPrefix(p, real+"/")
	})
}
