package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// readStatus returns the status of the host. It changes nothing.
func readStatus(ctx context.Context, t *setup.Toolkit) (hostStatus, error) {
	var s hostStatus
	if state, err := t.Published(); err == nil {
		s.Toolkit = &state
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, nodestate.ErrStale) {
		return s, err
	}
	if at := runtime.FindSocket(t.Root, t.RuntimeSockets()); at != "" {
		info, _, _ := t.QueryRuntime(ctx, at) // its message describes an error
		s.Runtime = &runtimeStatus{Runtime: info.Runtime, Default: info.Default}
		if p, err := configure.Profile(t.Root, t.Config.Runtime, info); err == nil {
			s.Runtime.Profile, s.Runtime.Why, s.Runtime.Config, s.Runtime.DropIn, s.Runtime.Writer = p.Name, p.Reason, p.Config, p.DropIn, p.Owner
		}
	}
	return s, addFiles(t, &s)
}

func addFiles(t *setup.Toolkit, s *hostStatus) error {
	found, err := t.Store.Inspect()
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
		s.Files = append(s.Files, fileStatus{Path: f.Path, What: f.What, Owner: owner, Original: f.Original})
	}
	s.Unfinished = found.Unfinished
	return nil
}

// checkHost checks whether containers on this host get their GPUs, by querying the driver and
// the runtime. It changes nothing.
func checkHost(ctx context.Context, t *setup.Toolkit) []check {
	var checks []check
	add := func(name string, err error, message string) bool {
		c := check{Name: name, OK: err == nil, Message: message}
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
		names, err := resolveNames(t, w)
		add("CDI names", err, fmt.Sprintf("%d resolve", names))
	}
	return append(checks, checkRuntime(ctx, t)...)
}

// resolveNames resolves every specified name, as a runtime would.
func resolveNames(t *setup.Toolkit, w setup.Wanted) (names int, err error) {
	files, err := cdi.Load(t.Root, t.CDIDirs()...)
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

func checkRuntime(ctx context.Context, t *setup.Toolkit) []check {
	r := &configure.HostRuntime{Root: t.Root, Settings: t.Config.Runtime}
	info, err := r.Query(ctx)
	if err != nil {
		return []check{{Name: "runtime", Message: info.Message}}
	}
	checks := []check{{Name: "runtime", OK: true, Message: fmt.Sprintf("%s %s at %s", info.Name, info.Version, info.Socket)}}
	if t.Config.CDI {
		_, message := runtime.Advise(info, t.Config.CDIDir, t.SamePath)
		c := check{Name: "CDI", OK: message == "", Message: message}
		if c.OK {
			c.Message = "on"
		}
		checks = append(checks, c)
	}
	if t.Config.Handler != "" {
		c := check{Name: "handler", OK: slices.Contains(info.Handlers, t.Config.Handler), Message: t.Config.Handler}
		if !c.OK {
			c.Message = fmt.Sprintf("there is no handler %q, only %s; run gpu-toolkit apply", t.Config.Handler, strings.Join(info.Handlers, ", "))
		} else if program, ours := info.Programs[t.Config.Handler], path.Join(t.Config.InstallDir, setup.ShimName); program != "" && program != ours && !t.SamePath(program, ours) {
			c.OK, c.Message = false, fmt.Sprintf("the handler %q runs %s and not %s; run gpu-toolkit apply", t.Config.Handler, program, ours)
		}
		checks = append(checks, c)
	}
	return checks
}
