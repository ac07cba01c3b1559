package plugin

import (
	"context"
	"reflect"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchToolkit applies each change of the toolkit's state until ctx ends. It does so even
// while the settings do not need the state, since they may change. When the toolkit names
// other devices, the plugin reads the GPUs again: the toolkit notices changes by their
// device nodes, such as a MIG layout, for which some drivers send no event.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	p.waitForStart(ctx) // newPlugin has read the present state
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		p.mu.Lock()
		naming := allocate.NamingFrom(s, err).MergeAfter(p.state.toolkitNaming)
		same, sameNames := reflect.DeepEqual(naming, p.state.toolkitNaming), naming.SameNames(p.state.toolkitNaming)
		p.mu.Unlock()
		if !same {
			p.applyAndPublish(toolkitNames(naming))
		}
		if !sameNames {
			select {
			case p.resync <- struct{}{}:
			default: // one is pending
			}
		}
	})
}

// readToolkit reads the toolkit's current state, so that the first list does not offer
// devices that have no CDI name.
func (p *Plugin) readToolkit() {
	p.state.toolkitNaming = allocate.NamingFrom(nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)).MergeAfter(p.state.toolkitNaming)
}

// watchMPS applies each change of the state of the MPS control daemons until ctx ends. It does
// so even while nothing is shared by MPS, since the settings may change.
func (p *Plugin) watchMPS(ctx context.Context) error {
	if !p.mayShareByMPS() {
		p.waitForStart(ctx)
	}
	return nodestate.WatchHeld(ctx, p.stateDir(nodestate.MPS), p.boot, func(s nodestate.State, err error) {
		mpsState := allocate.MPSStateFrom(s, err)
		p.mu.Lock()
		same := reflect.DeepEqual(mpsState, p.state.mps)
		p.mu.Unlock()
		if !same {
			p.applyAndPublish(mpsServes(mpsState))
		}
	})
}

// mayShareByMPS reports whether the first list may need the state of the MPS control daemons.
func (p *Plugin) mayShareByMPS() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.sharesByMPS() || !p.state.configured
}
