package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/install"
	"github.com/gpuready/gpuready/toolkit/report"
	"github.com/gpuready/gpuready/toolkit/runtime/probe"
)

// Status returns the status of the host. It changes nothing.
func (t *Toolkit) Status(ctx context.Context) (report.Status, error) {
	var s report.Status
	if state, err := t.Published(); err == nil {
		s.Toolkit = &state
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, nodestate.ErrStale) {
		return s, err
	}
	if at := probe.Find(t.Root, t.RuntimeSockets()); at != "" {
		info, _, _ := t.QueryRuntime(ctx, at) // its message describes an error
		s.Runtime = &report.Runtime{Runtime: info.Runtime, Default: info.Default}
		if p, err := configure.Profile(t.Root, t.Config.Runtime, info); err == nil {
			s.Runtime.Profile, s.Runtime.Why, s.Runtime.Config, s.Runtime.DropIn, s.Runtime.Writer = p.Name, p.Reason, p.Config, p.DropIn, p.Owner
		}
	}
	return s, t.addFiles(&s)
}

func (t *Toolkit) addFiles(s *report.Status) error {
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

// Verify checks whether containers on this host get their GPUs, by querying the driver and
// the runtime. It changes nothing.
func (t *Toolkit) Verify(ctx context.Context) []report.Check {
	var checks []report.Check
	add := func(name string, err error, message string) bool {
		c := report.Check{Name: name, OK: err == nil, Message: message}
		if err != nil {
			_, c.Message = t.Config.ProblemOf(err)
		}
		checks = append(checks, c)
		return c.OK
	}
	changes, w, err := t.Once(ctx, true)
	if add("driver", err, fmt.Sprintf("%s below %s", w.Driver.Version, w.Driver.Root)) {
		var wrong []string
		for _, c := range changes {
			wrong = append(wrong, c.Path+" ("+c.Verb+")")
		}
		err = nil
		if len(wrong) > 0 {
			err = fmt.Errorf("not as it should be: %s; run gpu-toolkit apply", strings.Join(wrong, ", "))
		}
		add("files", err, fmt.Sprintf("%d as they should be", len(w.Items)))
		names, err := t.resolve(w)
		add("CDI names", err, fmt.Sprintf("%d resolve", names))
	}
	return append(checks, t.verifyRuntime(ctx)...)
}

// resolve resolves every specified name, as a runtime would.
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
	r := &configure.HostRuntime{Root: t.Root, Settings: t.Config.Runtime}
	info, err := r.Query(ctx)
	if err != nil {
		return []report.Check{{Name: "runtime", Message: info.Message}}
	}
	checks := []report.Check{{Name: "runtime", OK: true, Message: fmt.Sprintf("%s %s at %s", info.Name, info.Version, info.Socket)}}
	if t.Config.CDI {
		_, message := probe.Advise(info, t.Config.CDIDir, t.same)
		c := report.Check{Name: "CDI", OK: message == "", Message: message}
		if c.OK {
			c.Message = "on"
		}
		checks = append(checks, c)
	}
	if t.Config.Handler != "" {
		c := report.Check{Name: "handler", OK: slices.Contains(info.Handlers, t.Config.Handler), Message: t.Config.Handler}
		if !c.OK {
			c.Message = fmt.Sprintf("there is no handler %q, only %s; run gpu-toolkit apply", t.Config.Handler, strings.Join(info.Handlers, ", "))
		}
		checks = append(checks, c)
	}
	return checks
}
