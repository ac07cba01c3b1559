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

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime/probe"
)

// RestoreRuntime restores the container runtime's own configuration, and restarts the
// runtime if that is allowed; otherwise Left names the manual steps. If it is killed, the
// next call finishes it, so that the runtime does not keep a handler whose program is
// removed.
func (t *Toolkit) RestoreRuntime(ctx context.Context, dry bool, notify func(string)) (apply.Restored, error) {
	r := &configure.HostRuntime{Root: t.Root, Settings: t.Config.Runtime}
	before, askErr := r.Query(ctx)
	if hangs(askErr) {
		if _, _, changed, err := t.restoreConfig(before, true); err != nil || changed {
			return apply.Restored{}, errors.Join(err, fmt.Errorf("%s; nothing was restored, because it uses the files that would be removed: stop or start it, then try again", before.Message))
		}
	}
	restored, own, changed, err := t.restoreConfig(before, dry)
	if err != nil || dry || !changed {
		return restored, err
	}
	may, what := false, "restart it"
	if t.Config.Configure {
		may, what = r.CanRestart()
	}
	switch {
	case askErr != nil:
		restored.Left = append(restored.Left, "the container runtime does not respond, so it was not restarted; it will load its configuration when it starts")
	case !may:
		restored.Left = append(restored.Left, fmt.Sprintf("%s still runs with our configuration: %s", before.Name, what))
	default:
		c := &configure.Configurer{Runtime: r, Same: t.SamePath, Patience: patience}
		did, err := c.RestartRestored(ctx, before, own)
		if did != "" {
			notify(did)
		}
		if err != nil {
			return restored, err
		}
	}
	return restored, t.Store.EndRestoring()
}

// hangs reports whether the error means that a runtime exists but does not respond.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// restoreConfig restores the runtime's own configuration. changed reports whether that
// differs from the current one, or did at the start of an unfinished restore. own are the
// runtime's handlers that were ours then.
func (t *Toolkit) restoreConfig(before probe.RuntimeInfo, dry bool) (restored apply.Restored, own []string, changed bool, err error) {
	known, changed, err := t.Store.Restoring()
	if err != nil {
		return restored, nil, changed, err
	}
	if restored, err = t.restoreFiles(true); err != nil || dry {
		return restored, nil, changed || len(restored.Changes) > 0, err
	}
	if own, err = t.ownHandlers(before.Handlers, restored.Changes); err != nil {
		return restored, nil, changed, err
	}
	own = append(own, known...)
	if len(restored.Changes) > 0 && !changed {
		changed = true
		if err := t.Store.BeginRestoring(own); err != nil {
			return restored, own, changed, err
		}
	}
	planned := restored.Changes
	if restored, err = t.restoreFiles(false); len(restored.Changes) == 0 && err == nil {
		restored.Changes = planned // an unfinished change, which was rolled back
	}
	return restored, own, changed, err
}

// restoreFiles restores the files of the runtime's own configuration.
func (t *Toolkit) restoreFiles(dry bool) (apply.Restored, error) {
	return t.Store.Restore(apply.RestoreOptions{DryRun: dry, Only: t.isConfig})
}

// ownHandlers returns the handlers that a runtime has by our changes of its configuration,
// even if their names are no longer configured: the restored files name them less often
// than the current ones.
func (t *Toolkit) ownHandlers(all []string, undo []apply.Change) (own []string, err error) {
	for _, h := range all {
		if h == t.Config.Handler {
			own = append(own, h)
			continue
		}
		for _, c := range undo {
			now, _, err := apply.ReadItem(t.Root, c.Path)
			if err != nil {
				return nil, err
			}
			if countNames(now.File, h) > countNames(c.File, h) {
				own = append(own, h)
				break
			}
		}
	}
	return own, nil
}

// countNames counts the occurrences of a handler's name in a configuration: as a table of
// TOML, or a string of TOML or JSON.
func countNames(f *apply.File, handler string) int {
	if f == nil {
		return 0
	}
	return len(regexp.MustCompile(`["'.]`+regexp.QuoteMeta(handler)+`["'\]]`).FindAll(f.Data, -1))
}

// isConfig reports whether a path of the manifest belongs to the runtime's configuration,
// and not to the toolkit itself.
func (t *Toolkit) isConfig(p string) bool {
	driverRoot, devRoot := t.Roots()
	ours := append(t.CDIDirs(), t.Config.InstallDir, "/dev", path.Join(driverRoot, "dev"), path.Join(devRoot, "dev"))
	return !slices.ContainsFunc(ours, func(dir string) bool {
		real, err := t.Root.Resolve(dir)
		return strings.HasPrefix(p, dir+"/") || err == nil && strings.HasPrefix(p, real+"/")
	})
}
