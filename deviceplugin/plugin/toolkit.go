package plugin

import (
	"context"
	"reflect"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchToolkit follows the toolkit's state, even while the settings do not need it,
// since they may change. When the toolkit names other devices, the plugin reads the
// GPUs again: the toolkit notices changes by their device nodes, such as a MIG layout,
// for which some drivers send no event.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	p.afterStart(ctx) // readToolkit has read the present state
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		p.mu.Lock()
		now := allocate.NamingOf(s, err).MergeAfter(p.state.toolkitNaming)
		same, named := reflect.DeepEqual(now, p.state.toolkitNaming), now.SameNames(p.state.toolkitNaming)
		p.mu.Unlock()
		if !same {
			p.update(toolkitNames(now))
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
	p.state.toolkitNaming = allocate.NamingOf(nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)).MergeAfter(p.state.toolkitNaming)
}

// watchMPS follows the state of the MPS control daemons, even while nothing is shared
// by MPS, since the settings may change.
func (p *Plugin) watchMPS(ctx context.Context) error {
	if !p.mayShareByMPS() {
		p.afterStart(ctx)
	}
	return nodestate.WatchHeld(ctx, p.stateDir(nodestate.MPS), p.boot, func(s nodestate.State, err error) {
		now := allocate.ServedOf(s, err)
		p.mu.Lock()
		same := reflect.DeepEqual(now, p.state.mps)
		p.mu.Unlock()
		if !same {
			p.update(mpsServes(now))
		}
	})
}

// mayShareByMPS reports whether the first list may need the state of the MPS control daemons.
func (p *Plugin) mayShareByMPS() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	strategy, _ := p.state.settings.Sharing.Active()
	return strategy == config.SharingMPS || !p.state.configured
}
