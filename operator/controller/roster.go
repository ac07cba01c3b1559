package controller

import "github.com/gpuready/gpuready/operator/upgrade"

// roster tracks which nodes a plan of driver upgrades must evaluate, and the shares of the
// others. In a cluster without an upgrade, all nodes are among the others.
type roster struct {
	busy    map[string]bool
	shares  map[string]upgrade.Share // of the nodes that are not busy
	settled upgrade.Share            // their sum
}

func newRoster() roster {
	return roster{busy: map[string]bool{}, shares: map[string]upgrade.Share{}}
}

// startPlan returns the nodes that the next plan must evaluate: those that the last plan did
// not settle, and those that have changed.
func (r *roster) startPlan(m *model) map[string]bool {
	before := r.busy
	r.busy = make(map[string]bool, len(before)+len(m.dirty)) // a map does not shrink
	for name := range before {
		r.addBusy(name, m)
	}
	for name := range m.dirty {
		r.settled = r.settled.Sub(r.shares[name])
		delete(r.shares, name)
		r.addBusy(name, m)
	}
	return r.busy
}

// addBusy adds a node that still exists.
func (r *roster) addBusy(name string, m *model) {
	if m.nodes[name] != nil {
		r.busy[name] = true
	}
}

// finishPlan removes the nodes that the plan has settled.
func (r *roster) finishPlan(p *upgrade.Plan) {
	for name, share := range p.Settled {
		delete(r.busy, name)
		r.shares[name] = share
		r.settled = r.settled.Add(share)
	}
}
