package daemon

import (
	"maps"
	"reflect"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// recall is what an earlier process of this boot left: its words, and what the Node
// chose, stand until something better is known.
func (d *Daemon) recall() nodestate.State {
	s, err := nodestate.ReadBoot(d.Node.StatePath(nodestate.Validator), d.Node.BootID)
	if err != nil {
		return nodestate.State{Component: nodestate.Validator, BootID: d.Node.BootID, Phase: nodestate.Waiting,
			Reason: "Starting", Message: errStarting.Error()}
	}
	return s
}

// say makes s what the validator says of itself; what the Node chooses is added.
// d.writing is held.
func (d *Daemon) say(s nodestate.State) error {
	s.Component, s.BootID, s.Validator = nodestate.Validator, d.Node.BootID, d.state.Validator
	s.Version, s.Time = d.state.Version, d.state.Time // which Write sets
	if reflect.DeepEqual(s, d.state) && !d.unsaid {
		return nil
	}
	d.state, d.unsaid = s, true
	if err := nodestate.Write(d.Node.StatePath(nodestate.Validator), s); err != nil {
		return err
	}
	d.unsaid = false
	return nil
}

// Choose leaves what the Node chooses by its labels for those who cannot read them.
// It waits for no proof, and may be called from any goroutine. After an error it is
// to be called again.
func (d *Daemon) Choose(labels map[string]string) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	before := d.state.Validator
	if before == nil || before.NodeLabels == nil || !maps.Equal(before.NodeLabels, labels) {
		d.state.Validator = &nodestate.ValidatorInfo{NodeLabels: maps.Clone(labels)}
		d.unsaid = true
		d.Log.Info("what the Node chooses", "label", nodestate.ConfigLabel, "value", labels[nodestate.ConfigLabel])
	}
	return d.say(d.state)
}
