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

// notInjectedError means that this container should have received the GPUs' device
// nodes and did not, which is the cause of whatever error the driver returned.
type notInjectedError struct {
	why      string
	excluded bool // the toolkit injected devices before the container was created, but not into this one
	ending   bool // the toolkit injects devices now: watchInjection is about to end the plugin
}

func (e *notInjectedError) Error() string { return string(reasonMissing) + ": " + e.why }

// watchInjection waits until this container must be created again because the toolkit
// injects something else by now; it then returns injection.ErrOutdated. A changed MIG
// layout does not count: NVML shows it to a process that may monitor.
func (p *Plugin) watchInjection(ctx context.Context) error {
	dir := p.stateDir(nodestate.Toolkit)
	if p.cfg.Given == injection.Expected {
		if err := injection.WaitNewer(ctx, dir, p.boot, p.cfg.Started); err != nil {
			return err
		}
	}
	err := injection.Watch(ctx, dir, p.boot, p.cfg.Given, injection.Base)
	if errors.Is(err, injection.ErrOutdated) {
		p.cfg.Log.Info("ending, so that the container is created again with the current GPUs", "reason", string(reasonOutdated), "message", err.Error())
		p.record(pluginEnds(ending{nodestate.Waiting, reasonOutdated, err.Error()}))
	}
	return err
}

// toolkitState returns the toolkit's current state and its injection, or nil if it
// injects nothing.
func (p *Plugin) toolkitState() (s nodestate.State, gives *nodestate.Injection, err error) {
	s, err = nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)
	if err != nil || s.Toolkit == nil || s.Toolkit.Injection == nil {
		return s, nil, err
	}
	if i := s.Toolkit.Injection; i.Working && i.Generation != "" {
		gives = i
	}
	return s, gives, nil
}

// injected reports whether the toolkit injected GPUs into this container.
func (p *Plugin) injected() bool { return p.cfg.Given != "" && p.cfg.Given != injection.Expected }

// open opens the driver.
func (p *Plugin) open() (Opened, error) {
	switch p.cfg.Given {
	case "":
		return p.cfg.Open(p.cfg.Driver)
	case injection.Expected:
		opened, err := p.cfg.Open(p.cfg.Driver)
		if err != nil && !errors.Is(err, nvml.ErrOtherLibrary) {
			err = p.explainNotInjected(err)
		}
		return opened, err
	}
	// The driver's files were injected into this container's own root: copies
	// that outlast the driver's root.
	s, _, err := p.toolkitState()
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

// explainNotInjected explains why the driver cannot be used in a container into which
// the GPUs should have been injected. If there is no driver, it returns err.
func (p *Plugin) explainNotInjected(err error) error {
	s, gives, wordErr := p.toolkitState()
	if _, _, findErr := p.cfg.Driver.Find(); findErr != nil && !injection.SeesDriver(s, wordErr) && gives == nil && errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	const what = "this container was created without the GPUs' device nodes: "
	e := &notInjectedError{why: what + injection.MissingReason(s, wordErr)}
	switch {
	case gives != nil && s.Time.After(p.cfg.Started):
		e.ending = true
	case gives != nil:
		e.excluded = true
		e.why = what + "the toolkit injects them, but was not connected to the runtime (NRI) when it was created, or its pod is not in the toolkit's namespace or lacks the annotation " +
			injection.Annotation + `: "true"; check the pod and the log of nvidia-container-toolkit-daemonset on this node`
	case e.why == what:
		e.why += "the toolkit has not seen the driver yet"
	}
	return e
}

// toolkitOutdated reports whether the injection lags behind the present driver. A
// container created now would get the same as before, so the plugin waits for the
// toolkit's next state.
func (p *Plugin) toolkitOutdated() bool {
	if !p.injected() {
		return false
	}
	s, gives, err := p.toolkitState()
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
