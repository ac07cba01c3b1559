package plugin

import (
	"context"
	"reflect"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/hindrance"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchToolkit follows the toolkit's state, also while the settings need none of
// it: they may change. Where it names other devices it has seen what no event tells
// of with every driver, as a MIG layout, by the device nodes that came or went.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		p.mu.Lock()
		now := hindrance.NamingOf(s, err).After(p.said)
		same, named := reflect.DeepEqual(now, p.said), now.SameNames(p.said)
		p.mu.Unlock()
		if !same {
			p.update(func() { p.said = now })
		}
		if !named {
			select {
			case p.others <- struct{}{}:
			default: // it is about to be done
			}
		}
	})
}

// askToolkit hears what the toolkit has said already: no list is to promise what it
// has denied.
func (p *Plugin) askToolkit() {
	p.said = hindrance.NamingOf(nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)).After(p.said)
}

// believe heeds what the toolkit says where devices are handed out by CDI names:
// the NVIDIA container runtime needs none. p.mu is held.
func (p *Plugin) believe() {
	before, now := p.cdi.Trouble(), p.said
	if !p.settings.Flags.Plugin.CDI() {
		now = hindrance.Naming{}
	}
	p.cdi = now
	switch {
	case before == now.Trouble():
	case now.Trouble() == "":
		p.cfg.Log.Info("the toolkit has made the devices' CDI names known")
	default:
		p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(hindrance.ReasonCDI), "message", now.Trouble())
	}
}

// watchMPS follows the state of the MPS control daemons, also while nothing is
// shared by MPS: the settings may change.
func (p *Plugin) watchMPS(ctx context.Context) error {
	return nodestate.WatchHeld(ctx, p.stateDir(nodestate.MPS), p.boot, func(s nodestate.State, err error) {
		now := hindrance.ServedOf(s, err)
		p.mu.Lock()
		same := reflect.DeepEqual(now, p.mps)
		p.mu.Unlock()
		if !same {
			p.update(func() { p.mps = now })
		}
	})
}

// hinder marks what could not be given to a container. p.mu is held.
func (p *Plugin) hinder(resources []plan.Resource) {
	read := p.snapshot.Driver.Version != ""
	now := p.hindered.Mark(resources, hindrance.Node{
		Config: p.settings, Host: p.host, Read: read, Names: p.cdi, MPS: p.mps, Beside: p.seenBy != nil,
	}, time.Now())
	// Before the first snapshot only what is remembered is listed, not what there is.
	if read {
		p.hindered = now
	}
}
