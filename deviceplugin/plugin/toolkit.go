package plugin

import (
	"context"
	"reflect"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/unallocatable"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchToolkit follows the toolkit's state, even while the settings do not need it,
// since they may change. When the toolkit names other devices, the plugin reads the
// GPUs again: the toolkit notices changes by their device nodes, such as a MIG layout,
// for which some drivers send no event.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		p.mu.Lock()
		now := unallocatable.NamingOf(s, err).MergeAfter(p.toolkitNaming)
		same, named := reflect.DeepEqual(now, p.toolkitNaming), now.SameNames(p.toolkitNaming)
		p.mu.Unlock()
		if !same {
			p.update(func() { p.toolkitNaming = now })
		}
		if !named {
			select {
			case p.resync <- struct{}{}:
			default: // one is pending
			}
		}
	})
}

// readToolkit reads the toolkit's current state, so that the first list does not offer
// devices that the toolkit has denied.
func (p *Plugin) readToolkit() {
	p.toolkitNaming = unallocatable.NamingOf(nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)).MergeAfter(p.toolkitNaming)
}

// applyNaming uses the toolkit's naming if devices are handed out by CDI names: the
// NVIDIA container runtime needs none. p.mu is held.
func (p *Plugin) applyNaming() {
	before, now := p.cdi.Problem(), p.toolkitNaming
	if !p.settings.Flags.Plugin.CDI() {
		now = unallocatable.Naming{}
	}
	p.cdi = now
	switch {
	case before == now.Problem():
	case now.Problem() == "":
		p.cfg.Log.Info("the toolkit has published the devices' CDI names")
	default:
		p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(unallocatable.ReasonCDI), "message", now.Problem())
	}
}

// watchMPS follows the state of the MPS control daemons, even while nothing is shared
// by MPS, since the settings may change.
func (p *Plugin) watchMPS(ctx context.Context) error {
	return nodestate.WatchHeld(ctx, p.stateDir(nodestate.MPS), p.boot, func(s nodestate.State, err error) {
		now := unallocatable.ServedOf(s, err)
		p.mu.Lock()
		same := reflect.DeepEqual(now, p.mps)
		p.mu.Unlock()
		if !same {
			p.update(func() { p.mps = now })
		}
	})
}

// markUnallocatable marks the devices that could not be given to a container. p.mu is
// held.
func (p *Plugin) markUnallocatable(resources []plan.Resource) {
	read := p.snapshot.Driver.Version != ""
	now := p.unallocatable.MarkDevices(resources, unallocatable.Node{
		Config: p.settings, Host: p.host, Read: read, Names: p.cdi, MPS: p.mps, Beside: p.onView != nil,
	}, time.Now())
	// Before the first snapshot the list holds remembered devices, not present ones.
	if read {
		p.unallocatable = now
	}
}
