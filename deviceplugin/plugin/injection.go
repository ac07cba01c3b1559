package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// uninjectedError means that this container was to be given the GPUs' device
// nodes and was not: whatever the driver says, that is why.
type uninjectedError struct {
	why    string
	vain   bool // the toolkit gave them already when the container was created: this one it leaves out
	ending bool // the toolkit gives them since: watchInjection is about to end the plugin
}

func (e *uninjectedError) Error() string { return string(reasonMissing) + ": " + e.why }

// watchInjection waits until this container has to be created anew, for what
// the toolkit injects by now; the error is injection.ErrOutdated then. A MIG layout
// that changes is no reason: NVML shows it to who may monitor.
func (p *Plugin) watchInjection(ctx context.Context) error {
	dir := p.stateDir(nodestate.Toolkit)
	if p.cfg.Given == injection.Expected {
		if err := injection.Newer(ctx, dir, p.boot, p.cfg.Started); err != nil {
			return err
		}
	}
	err := injection.Watch(ctx, dir, p.boot, p.cfg.Given, injection.Base)
	if errors.Is(err, injection.ErrOutdated) {
		p.cfg.Log.Info("ending, to be started again with the GPUs as they are now", "reason", string(reasonOutdated), "message", err.Error())
		p.end(ending{nodestate.Waiting, reasonOutdated, err.Error()})
	}
	return err
}

// word is what the toolkit says now, and what it injects, nil for nothing.
func (p *Plugin) word() (s nodestate.State, gives *nodestate.Injection, err error) {
	s, err = nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)
	if err != nil || s.Toolkit == nil || s.Toolkit.Injection == nil {
		return s, nil, err
	}
	if i := s.Toolkit.Injection; i.Working && i.Generation != "" {
		gives = i
	}
	return s, gives, nil
}

// injected says that this container was given GPUs by the toolkit.
func (p *Plugin) injected() bool { return p.cfg.Given != "" && p.cfg.Given != injection.Expected }

// open opens the driver.
func (p *Plugin) open() (Opened, error) {
	switch p.cfg.Given {
	case "":
		return p.cfg.Open(p.cfg.Driver)
	case injection.Expected:
		opened, err := p.cfg.Open(p.cfg.Driver)
		if err != nil && !errors.Is(err, nvml.ErrOtherLibrary) {
			err = p.uninjected(err)
		}
		return opened, err
	}
	// The files of the driver were put into this container's own root: copies
	// that outlast the driver's root.
	s, _, err := p.word()
	if err != nil {
		return p.cfg.Open(p.cfg.Driver)
	}
	place := p.cfg.Driver
	if place.Root == "" && (s.Driver == nil || s.Driver.Root == driver.Containerised) && s.Phase != nodestate.Failed {
		place.Root, place.Only = driver.Containerised, true
	}
	opened, err := p.cfg.Open(place)
	if err == nil && opened.Root == "/" && s.Driver != nil {
		opened.Root = s.Driver.Root
	}
	return opened, err
}

// uninjected explains why the driver cannot be used in a container that was to
// be given the GPUs and was not. Where there is no driver, that is all.
func (p *Plugin) uninjected(err error) error {
	s, gives, wordErr := p.word()
	if _, _, findErr := p.cfg.Driver.Find(); findErr != nil && !injection.SeesDriver(s, wordErr) && gives == nil && errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	const what = "this container was created without the GPUs' device nodes: "
	e := &uninjectedError{why: what + injection.Missing(s, wordErr)}
	switch {
	case gives != nil && s.Time.After(p.cfg.Started):
		e.ending = true
	case gives != nil:
		e.vain = true
		e.why = what + "the toolkit injects them, but was not connected to the runtime (NRI) when it was created, or its pod is not in the toolkit's namespace or lacks the annotation " +
			injection.Annotation + `: "true"; see to the pod, and to the log of nvidia-container-toolkit-daemonset on this node`
	case e.why == what:
		e.why += "the toolkit has not seen the driver yet"
	}
	return e
}

// toolkitBehind says that what a container would be given has not caught up
// with the driver that is there: to end now would be to be created as before,
// and the toolkit's next word is the better moment.
func (p *Plugin) toolkitBehind() bool {
	if !p.injected() {
		return false
	}
	s, gives, err := p.word()
	switch {
	case err != nil:
		return false
	case gives == nil || !injection.Current(p.cfg.Given, gives.Generation, injection.Base):
		return true
	}
	_, library, err := p.cfg.Driver.Find()
	_, version, _ := strings.Cut(filepath.Base(library), ".so.")
	return err == nil && s.Driver != nil && version != "1" && version != s.Driver.Version
}
