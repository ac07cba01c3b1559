package configure

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// RestoreOptions limit what Restore does.
type RestoreOptions struct {
	DryRun     bool                   // only report
	MayRestart bool                   // the runtime may be restarted
	IsConfig   func(path string) bool // selects the store's paths of the runtime's configuration
	Notify     func(did string)       // is called after a restart
}

// restoringNote is the name of the store's note that exists from the start of a restore until
// the runtime has loaded the restored configuration. It lists the runtime's handlers that
// were ours.
const restoringNote = "restoring"

// Restore restores the runtime's own configuration, and restarts the runtime if that is
// allowed; otherwise Left names the manual steps. If it is killed, the next call finishes
// it, so that the runtime does not keep a handler whose program is removed.
func (c *Configurer) Restore(ctx context.Context, o RestoreOptions) (apply.Restored, error) {
	before, queryErr := c.Runtime.Query(ctx)
	if hangs(queryErr) {
		// It cannot be restarted now, and its present configuration names programs that the rest of
		// the uninstallation removes.
		dry := o
		dry.DryRun = true
		if _, _, changed, err := c.restoreConfig(before, dry); err != nil || changed {
			return apply.Restored{}, errors.Join(err, fmt.Errorf("%s; nothing was restored, because it uses the files that would be removed: stop or start it, then try again", before.Message))
		}
	}
	restored, ours, changed, err := c.restoreConfig(before, o)
	if err != nil || o.DryRun || !changed {
		return restored, err
	}
	may, what := false, "restart it"
	if o.MayRestart {
		may, what = c.Runtime.CanRestart()
	}
	switch {
	case queryErr != nil:
		restored.Left = append(restored.Left, "the container runtime does not respond, so it was not restarted; it will load its configuration when it starts")
	case !may:
		restored.Left = append(restored.Left, fmt.Sprintf("%s still runs with our configuration: %s", before.Name, what))
	default:
		did, err := c.restartRestored(ctx, before, ours)
		if did != "" {
			o.Notify(did)
		}
		if err != nil {
			return restored, err
		}
	}
	return restored, c.Store.SetNote(restoringNote, nil)
}

// hangs reports whether an error of Query means that a runtime exists but does not respond.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// restoreConfig restores the files of the runtime's own configuration. changed reports
// whether the runtime has to load them again: they were changed now, or by an earlier call that did
// not finish. own lists the runtime's handlers that were ours before.
func (c *Configurer) restoreConfig(before runtime.Info, o RestoreOptions) (restored apply.Restored, own []string, changed bool, err error) {
	known, err := c.Store.Note(restoringNote)
	changed = known != nil
	if err != nil {
		return restored, nil, changed, err
	}
	if restored, err = c.Store.Restore(apply.RestoreOptions{DryRun: true, Only: o.IsConfig}); err != nil || o.DryRun {
		return restored, nil, changed || len(restored.Changes) > 0, err
	}
	if own, err = c.ownHandlers(before.Handlers, restored.Changes); err != nil {
		return restored, nil, changed, err
	}
	own = append(own, strings.Fields(string(known))...)
	if len(restored.Changes) > 0 && !changed {
		changed = true
		if err := c.Store.SetNote(restoringNote, []byte(strings.Join(own, "\n")+"\n")); err != nil {
			return restored, own, changed, err
		}
	}
	planned := restored.Changes
	if restored, err = c.Store.Restore(apply.RestoreOptions{Only: o.IsConfig}); len(restored.Changes) == 0 && err == nil {
		restored.Changes = planned // an unfinished change, which was rolled back
	}
	return restored, own, changed, err
}

// ownHandlers returns those of all handlers that the runtime has because of our changes. A handler is
// ours if it has the configured name, or if the current files name it more often than the restored
// ones: the name may have been configured differently when it was added.
func (c *Configurer) ownHandlers(all []string, undo []apply.Change) (own []string, err error) {
	for _, h := range all {
		if h == c.Wishes.Handler.Name {
			own = append(own, h)
			continue
		}
		for _, change := range undo {
			now, _, err := apply.ReadItem(c.Store.Root, change.Path)
			if err != nil {
				return nil, err
			}
			if countNames(now.File, h) > countNames(change.File, h) {
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

// restartRestored restarts a runtime whose configuration was restored, and verifies that it then has
// all handlers of before except own. did is a sentence about the restart; "" if it did not begin.
func (c *Configurer) restartRestored(ctx context.Context, before runtime.Info, own []string) (did string, err error) {
	before.Handlers = slices.DeleteFunc(slices.Clone(before.Handlers), func(h string) bool { return slices.Contains(own, h) })
	if slices.Contains(own, before.Default) {
		before.Default = ""
	}
	var o Outcome
	_, lacks, err := c.restart(ctx, &o, nil, before, runtime.Want{})
	if isNotBegun(err) {
		return "", fmt.Errorf("%s has its own configuration back, and could not be restarted with it: %w", before.Name, err)
	}
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("%s has its own configuration back, but with that %s; see its log", before.Name, strings.Join(lacks, ", "))
	}
	return before.Name + " was restarted with its own configuration", err
}
