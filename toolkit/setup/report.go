package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/report"
	"github.com/gpuready/gpuready/toolkit/target"
)

// Status says what there is on the host, and changes nothing.
func (t *Toolkit) Status(ctx context.Context) (report.Status, error) {
	var s report.Status
	if state, err := t.Published(); err == nil {
		s.Toolkit = &state
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, nodestate.ErrStale) {
		return s, err
	}
	if at := cri.Find(t.Root, t.RuntimeSockets()); at != "" {
		answer, _, _ := t.AskRuntime(ctx, at) // its message says why there is none
		s.Runtime = &report.Runtime{Runtime: answer.Runtime, Default: answer.Default}
		if p, err := target.Profile(t.Root, t.Config.Runtime, answer); err == nil {
			s.Runtime.Profile, s.Runtime.Why, s.Runtime.Config, s.Runtime.DropIn, s.Runtime.Writer = p.Name, p.Why, p.Config, p.DropIn, p.Owner
		}
	}
	return s, t.files(&s)
}

func (t *Toolkit) files(s *report.Status) error {
	found, err := install.Inspect(t.Root, t.Config.InstallDir, t.bootID)
	if err != nil {
		return err
	}
	for _, f := range found.Files {
		owner := "gpuready"
		switch {
		case f.Removed:
			owner = "removed by others since"
		case f.Changed:
			owner = "changed by others since"
		}
		s.Files = append(s.Files, report.File{Path: f.Path, What: f.What, Owner: owner, Original: f.Original})
	}
	s.Unfinished = found.Unfinished
	return nil
}

// Verify says whether containers on this host get their GPUs, by asking who has to
// give them. It changes nothing.
func (t *Toolkit) Verify(ctx context.Context) []report.Check {
	var checks []report.Check
	say := func(name string, err error, seen string) bool {
		c := report.Check{Name: name, OK: err == nil, Message: seen}
		if err != nil {
			_, c.Message = t.Config.ProblemOf(err)
		}
		checks = append(checks, c)
		return c.OK
	}
	changes, w, err := t.Once(ctx, true)
	if say("driver", err, fmt.Sprintf("%s below %s", w.Driver.Version, w.Driver.Root)) {
		var wrong []string
		for _, c := range changes {
			wrong = append(wrong, c.Path+" ("+c.Verb+")")
		}
		err = nil
		if len(wrong) > 0 {
			err = fmt.Errorf("not as it should be: %s; run gpu-toolkit apply", strings.Join(wrong, ", "))
		}
		say("files", err, fmt.Sprintf("%d as they should be", len(w.Items)))
		names, err := t.resolve(w)
		say("CDI names", err, fmt.Sprintf("%d resolve", names))
	}
	return append(checks, t.verifyRuntime(ctx)...)
}

// resolve resolves every name that is specified, as a runtime would.
func (t *Toolkit) resolve(w Wanted) (names int, err error) {
	files, err := cdi.Load(t.Root, t.cdiDirs()...)
	if err != nil {
		return 0, err
	}
	for _, s := range w.Specs {
		for _, d := range s.Devices {
			if one := cdi.Check(t.Root, files, s.Kind+"="+d); one != nil {
				err = errors.Join(err, one)
			}
			names++
		}
	}
	return names, err
}

func (t *Toolkit) verifyRuntime(ctx context.Context) []report.Check {
	r := &target.Runtime{Root: t.Root, Settings: t.Config.Runtime}
	answer, err := r.Ask(ctx)
	if err != nil {
		return []report.Check{{Name: "runtime", Message: answer.Message}}
	}
	checks := []report.Check{{Name: "runtime", OK: true, Message: fmt.Sprintf("%s %s at %s", answer.Name, answer.Version, answer.Socket)}}
	if t.Config.CDI {
		_, message := cri.Advise(answer, t.Config.CDIDir, t.same)
		c := report.Check{Name: "CDI", OK: message == "", Message: message}
		if c.OK {
			c.Message = "on"
		}
		checks = append(checks, c)
	}
	if t.Config.Handler != "" {
		c := report.Check{Name: "handler", OK: slices.Contains(answer.Handlers, t.Config.Handler), Message: t.Config.Handler}
		if !c.OK {
			c.Message = fmt.Sprintf("there is no handler %q, only %s; run gpu-toolkit apply", t.Config.Handler, strings.Join(answer.Handlers, ", "))
		}
		checks = append(checks, c)
	}
	return checks
}

// RestoreRuntime gives the container runtime its own configuration back, and has it
// taken in if that is allowed; else left says what a person has to do.
func (t *Toolkit) RestoreRuntime(ctx context.Context, dry bool, tell func(string)) (install.Restored, error) {
	r := &target.Runtime{Root: t.Root, Settings: t.Config.Runtime}
	before, err := r.Ask(ctx)
	answers := err == nil
	own, err := t.ownHandlers(before.Handlers)
	if err != nil {
		return install.Restored{}, err
	}
	t.account.Lock()
	restored, err := install.Restore(t.Root, t.Config.InstallDir, t.bootID, install.RestoreOptions{DryRun: dry, Only: t.isConfig})
	t.account.Unlock()
	if err != nil || dry || len(restored.Changes) == 0 {
		return restored, err
	}
	may, what := false, "restart it"
	if t.Config.Configure {
		may, what = r.May()
	}
	switch {
	case !answers:
		restored.Left = append(restored.Left, "the container runtime does not answer, so it was not restarted; it will take its configuration in when it starts")
		return restored, nil
	case !may:
		restored.Left = append(restored.Left, fmt.Sprintf("%s still runs with what it was configured to: %s", before.Name, what))
		return restored, nil
	}
	c := &configure.Configurer{Runtime: r, Same: t.same, Patience: patience}
	did, err := c.Return(ctx, before, own)
	if did != "" {
		tell(did)
	}
	return restored, err
}

// ownHandlers are those that a runtime has by our changes of its configuration, also
// if nobody says any more how they were to be called: what is put back names them
// less often than what there is now.
func (t *Toolkit) ownHandlers(all []string) (own []string, err error) {
	t.account.Lock()
	defer t.account.Unlock()
	restored, err := install.Restore(t.Root, t.Config.InstallDir, t.bootID, install.RestoreOptions{DryRun: true, Only: t.isConfig})
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		if h == t.Config.Handler {
			own = append(own, h)
			continue
		}
		for _, c := range restored.Changes {
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
