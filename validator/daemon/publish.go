package daemon

import (
	"context"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/nodestatus"
)

// republish publishes the facts once there was a check.
func (d *Daemon) republish() {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.outcomes != nil {
		d.publish()
	}
}

// watchDriverPod publishes each new result of the driver's pod without checking a layer.
func (d *Daemon) watchDriverPod(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.DriverPod.Updates():
			d.republish()
		}
	}
}

// publish publishes the facts. The caller holds d.writing.
func (d *Daemon) publish() {
	if d.Publish == nil || d.retired {
		return
	}
	f := nodestatus.Facts{Outcomes: d.outcomes, States: map[nodestate.Component]nodestate.State{}, Names: d.gpus.names, Faults: d.gpus.faults, Note: d.Note}
	if d.unwritten != nil {
		f.Unwritten = d.unwritten.Error()
	}
	for _, c := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin} {
		if s, err := d.Node.State(c); err == nil {
			f.States[c] = s
		}
	}
	if d.DriverPod != nil {
		f.DriverPod = d.DriverPod.Result()
	}
	d.Publish(f)
}
