package daemon

import (
	"maps"
	"reflect"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// readState reads the state that an earlier process of this boot left. It stands, with the
// Node's choice in it, until the first check.
func (d *Daemon) readState() nodestate.State {
	s, err := nodestate.ReadBoot(d.Node.StatePath(nodestate.Validator), d.Node.BootID)
	if err != nil {
		return nodestate.State{Component: nodestate.Validator, BootID: d.Node.BootID, Phase: nodestate.Waiting,
			Reason: "Starting", Message: errStarting.Error()}
	}
	return s
}

// setState writes s, with the Node's choice added, as the validator's state. The caller holds
// d.writing.
func (d *Daemon) setState(s nodestate.State) error {
	s.Component, s.BootID, s.Validator = nodestate.Validator, d.Node.BootID, d.state.Validator
	s.Version, s.Time = d.state.Version, d.state.Time // set by Write
	if reflect.DeepEqual(s, d.state) && !d.stateDirty {
		return nil
	}
	d.state, d.stateDirty = s, true
	if err := nodestate.Write(d.Node.StatePath(nodestate.Validator), s); err != nil {
		return err
	}
	d.stateDirty = false
	return nil
}

// SetNodeLabels publishes the Node's choice by labels to components that cannot read the Node.
// It waits for no proof and may be called from any goroutine. After an error it must be
// called again.
func (d *Daemon) SetNodeLabels(labels map[string]string) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	before := d.state.Validator
	if before == nil || before.NodeLabels == nil || !maps.Equal(before.NodeLabels, labels) {
		d.state.Validator = &nodestate.ValidatorInfo{NodeLabels: maps.Clone(labels)}
		d.stateDirty = true
		d.Log.Info("read the Node's choice", "label", nodestate.ConfigLabel, "value", labels[nodestate.ConfigLabel])
	}
	return d.setState(d.state)
}
