package daemon

import (
	"maps"
	"reflect"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// readState returns the state that an earlier process of this boot wrote. It stays in force
// until the first check replaces it; its NodeLabels are kept even then. Without a readable
// state it returns Waiting with reason Starting.
func (d *Daemon) readState() nodestate.State {
	s, err := nodestate.ReadBoot(d.Node.StatePath(nodestate.Validator), d.Node.BootID)
	if err != nil {
		return nodestate.State{Component: nodestate.Validator, BootID: d.Node.BootID, Phase: nodestate.Waiting,
			Reason: "Starting", Message: errStarting.Error()}
	}
	return s
}

// setState writes s as the validator's state, with the NodeLabels of the current one. It
// writes only if s differs or the last write failed. The caller holds d.writing.
func (d *Daemon) setState(s nodestate.State) error {
	s.Component, s.BootID, s.Validator, s.Unserved = nodestate.Validator, d.Node.BootID, d.state.Validator, d.Unserved
	s.Version, s.Time = d.state.Version, d.state.Time // Write sets both in the file; equal here, so that DeepEqual ignores them
	if reflect.DeepEqual(s, d.state) && !d.unsaved {
		return nil
	}
	d.state, d.unsaved = s, true
	if err := nodestate.Write(d.Node.StatePath(nodestate.Validator), s); err != nil {
		return err
	}
	d.unsaved = false
	return nil
}

// SetNodeLabels publishes, to components that cannot read the Kubernetes Node, its labels that
// select a configuration (nodestate.ConfigLabel) or who offers the GPUs (nodestate.ServeLabel). An empty map differs from nil: the Node was
// read and has no such label, while before the first call readers still wait. SetNodeLabels
// does not wait for a check in progress and may be called from any goroutine. After an error
// it must be called again.
func (d *Daemon) SetNodeLabels(labels map[string]string) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	chosen := maps.Clone(labels)
	serve := chosen[nodestate.ServeLabel]
	delete(chosen, nodestate.ServeLabel)
	before := d.state.Validator
	if before == nil || before.NodeLabels == nil || !maps.Equal(before.NodeLabels, chosen) || before.Serve != serve {
		d.state.Validator = &nodestate.ValidatorInfo{NodeLabels: chosen, Serve: serve}
		d.unsaved = true
		d.Log.Info("read the Node's labels", nodestate.ConfigLabel, chosen[nodestate.ConfigLabel], nodestate.ServeLabel, serve)
	}
	return d.setState(d.state)
}
