package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// notInjectedError means that this container should have received the GPUs' device
// nodes and did not, which is the cause of whatever error the driver returned.
type notInjectedError struct {
	why      string
	excluded bool // the toolkit injected devices when this container was created, but not into this one
	ending   bool // the toolkit began to inject devices later, so watchInjection is about to end the plugin
}

func (e *notInjectedError) Error() string { return string(reasonMissing) + ": " + e.why }

// watchInjection waits until the toolkit injects other devices or libraries than this container has,
// so that the container must be created again. It then returns injection.ErrOutdated. A changed
// MIG layout does not count: NVML shows it to any process with the monitor capability.
func (p *Plugin) watchInjection(ctx context.Context) error {
	dir := p.stateDir(nodestate.Toolkit)
	if p.cfg.Injected == injection.Expected {
		if err := injection.WaitNewer(ctx, dir, p.boot, p.cfg.Started); err != nil {
			return err
		}
	}
	err := injection.Watch(ctx, dir, p.boot, p.cfg.Injected, func() injection.Extent { return injection.Base })
	if errors.Is(err, injection.ErrOutdated) {
		p.cfg.Log.Info("ending, so that the container is created again with the current GPUs", "reason", string(reasonOutdated), "message", err.Error())
		p.applyAndStore(pluginEnds(ending{nodestate.Waiting, reasonOutdated, err.Error()}))
	}
	return err
}

// watchFolders waits until the host has replaced a folder that is mounted in this container, so that
// the container must be created again. It then returns mount.ErrReplaced.
func (p *Plugin) watchFolders(ctx context.Context) error {
	folders := []string{p.stateDir(nodestate.DevicePlugin), p.stateDir(nodestate.Toolkit), p.stateDir(nodestate.MPS), p.stateDir(nodestate.Validator), p.stateDir(nodestate.DRADriver)}
	if p.cfg.PodResources != "" {
		folders = append(folders, filepath.Dir(p.podResources()))
	}
	err := mount.WaitReplaced(ctx, folders...)
	if errors.Is(err, mount.ErrReplaced) {
		p.cfg.Log.Info("ending, so that the container is created again with the current folders", "reason", string(reasonReplaced), "message", err.Error())
		p.applyAndStore(pluginEnds(ending{nodestate.Waiting, reasonReplaced, err.Error()}))
	}
	return err
}

// podResources returns the path of the socket of the kubelet's PodResources API.
func (p *Plugin) podResources() string { return filepath.Join("/", p.cfg.HostRoot, p.cfg.PodResources) }

// toolkitState returns the toolkit's current state. working is its injection, or nil if the
// toolkit injects nothing.
func (p *Plugin) toolkitState() (s nodestate.State, working *nodestate.Injection, err error) {
	s, err = nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)
	if err != nil || s.Toolkit == nil || s.Toolkit.Injection == nil {
		return s, nil, err
	}
	if i := s.Toolkit.Injection; i.Working && i.Generation != "" {
		working = i
	}
	return s, working, nil
}

// isInjected reports whether the toolkit injected GPUs into this container.
func (p *Plugin) isInjected() bool {
	return p.cfg.Injected != "" && p.cfg.Injected != injection.Expected
}

// openDriver opens the driver where this container has it: at the configured place, or, if the toolkit
// injected it, in the container's own root.
func (p *Plugin) openDriver() (Opened, error) {
	switch p.cfg.Injected {
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
		place.Root, place.RootOnly = driver.Containerised, true
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
	s, working, stateErr := p.toolkitState()
	if _, _, findErr := p.cfg.Driver.Find(); findErr != nil && !injection.SeesDriver(s, stateErr) && working == nil && errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	const prefix = "this container was created without the GPUs' device nodes: "
	e := &notInjectedError{why: prefix + injection.MissingReason(s, stateErr)}
	switch {
	case working != nil && s.Time.After(p.cfg.Started):
		e.ending = true
	case working != nil:
		e.excluded = true
		e.why = prefix + "the toolkit injects them, but was not connected to the runtime (NRI) when it was created, or its pod is not in the toolkit's namespace or lacks the annotation " +
			injection.Annotation + `: "true"; check the pod and the log of nvidia-container-toolkit-daemonset on this node`
	case e.why == prefix:
		e.why += "the toolkit has not seen the driver yet"
	}
	return e
}

// isInjectionOutdated reports whether this container has been given another driver than the one that
// is present now, as during an upgrade: the toolkit injects nothing or something else now, or has not
// noticed the new driver yet. A container that was created now would get the old driver again, so the
// plugin waits for the toolkit's next state.
func (p *Plugin) isInjectionOutdated() bool {
	if !p.isInjected() {
		return false
	}
	s, working, err := p.toolkitState()
	switch {
	case err != nil:
		return false
	case working == nil || !injection.Current(p.cfg.Injected, working.Generation, injection.Base):
		return true
	}
	_, library, err := p.cfg.Driver.Find()
	_, version, _ := strings.Cut(filepath.Base(library), ".so.")
	return err == nil && s.Driver != nil && version != "1" && version != s.Driver.Version
}
