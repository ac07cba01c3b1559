package controller

import "github.com/gpuready/gpuready/operator/upgrade"

// roster is which nodes a plan of driver upgrades has to look at, and what the others come
// to: in a cluster where nothing is upgraded, that is all of them.
type roster struct {
	busy    map[string]bool
	shares  map[string]upgrade.Share // of the nodes that are not
	settled upgrade.Share            // their sum
}

func newRoster() roster {
	return roster{busy: map[string]bool{}, shares: map[string]upgrade.Share{}}
}

// open returns the nodes that the next plan has to look at: those of which the last one
// could not let go, and those about which something has changed.
func (r *roster) open(m *model) map[string]bool {
	before := r.busy
	r.busy = make(map[string]bool, len(before)+len(m.dirty)) // a map does not shrink
	for name := range before {
		r.add(name, m)
	}
	for name := range m.dirty {
		r.settled = r.settled.Less(r.shares[name])
		delete(r.shares, name)
		r.add(name, m)
	}
	return r.busy
}

// add has a node looked at, if it is still there.
func (r *roster) add(name string, m *model) {
	if m.nodes[name] != nil {
		r.busy[name] = true
	}
}

// close lets those nodes be that need not be looked at, as the plan has said.
func (r *roster) close(p *upgrade.Plan) {
	for name, share := range p.Settled {
		delete(r.busy, name)
		r.shares[name] = share
		r.settled = r.settled.Add(share)
	}
}
