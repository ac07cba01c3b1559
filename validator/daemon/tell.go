package daemon

import (
	"context"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/voice"
)

// tellAgain hands over what is known.
func (d *Daemon) tellAgain() {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.known != nil {
		d.tellAll()
	}
}

// listen hands over what the witness finds: no layer is checked for it.
func (d *Daemon) listen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.Witness.News():
			d.tellAgain()
		}
	}
}

// tellAll hands over what is known. d.writing is held.
func (d *Daemon) tellAll() {
	if d.Tell == nil || d.retired {
		return
	}
	f := voice.Facts{Outcomes: d.known, States: map[nodestate.Component]nodestate.State{}, Names: d.seen.names, Faults: d.seen.faults}
	for _, c := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin} {
		if s, err := d.Node.State(c); err == nil {
			f.States[c] = s
		}
	}
	if d.Witness != nil {
		f.Witness = d.Witness.Result()
	}
	d.Tell(f)
}
