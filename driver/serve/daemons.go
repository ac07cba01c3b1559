package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/daemons"
	"github.com/gpuready/gpuready/driver/daemons/supervisor"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/root"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// syslogSocket is where syslog(3) sends what a program logs. The daemons' root has the
// container's /dev.
const syslogSocket = "/dev/log"

// runningDaemons are the driver's daemons while they are kept running.
type runningDaemons struct {
	*supervisor.Supervisor
	end     context.CancelFunc
	ended   chan error
	changed chan struct{} // a daemon's state has changed
	lacking []string      // names of daemons whose failure the state tells of
}

// stop ends the daemons, in reverse order.
func (k *runningDaemons) stop() error {
	if k == nil {
		return nil
	}
	k.end()
	return <-k.ended
}

// stopDaemons ends the driver's daemons.
func (d *Driver) stopDaemons() error {
	k := d.daemons
	d.daemons = nil
	return k.stop()
}

// changes returns a channel that receives when a daemon's state has changed; nil where
// none run.
func (k *runningDaemons) changes() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.changed
}

// PlanDaemons decides which daemons of the image run on this node.
func (v Survey) PlanDaemons() (daemons.Plan, error) {
	m, err := daemons.Survey(v.Image, v.Host, os.Environ())
	if err != nil {
		return daemons.Plan{}, err
	}
	p, err := daemons.NewPlan(m)
	if errors.Is(err, daemons.ErrMissing) || errors.Is(err, daemons.ErrNoPort) {
		err = &kernel.Error{Reason: kernel.ReasonDependencyMissing, Message: err.Error(), Err: err}
	}
	return p, err
}

// startDaemons starts the driver's daemons and waits until those that GPUs cannot be used
// without are ready.
func (d *Driver) startDaemons(ctx context.Context) (*runningDaemons, error) {
	furnished, err := root.Furnish(d.Image.Dir())
	if err != nil {
		return nil, err
	}
	p, err := d.PlanDaemons()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(p.Daemons, func(s supervisor.Daemon) bool { return s.Required }) {
		// A container that was killed has left behind that it is ready.
		err := errors.Join(d.withdraw(), d.publish(nodestate.Waiting, ReasonStarting, "the driver's daemons are being started"))
		if err != nil {
			return nil, err
		}
	}
	for _, s := range p.Skipped {
		d.Log.Debug("driver daemon does not run", "name", s.Name, "why", s.Why)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	k := &runningDaemons{end: end, ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	k.Supervisor = supervisor.New(supervisor.Config{
		Daemons: p.Daemons, Root: furnished, Env: os.Environ(), Log: d.Log, Syslog: syslogSocket,
		StatusFile: filepath.Join(d.OutputDir, daemons.StatusFile),
		Report: func([]supervisor.Status) {
			select {
			case k.changed <- struct{}{}:
			default:
			}
		},
	})
	go func() { k.ended <- k.Run(life) }()
	for {
		if err := k.Ready(); err == nil {
			return k, nil
		} else if failed := k.failed(); failed != nil {
			return nil, errors.Join(failed, k.stop())
		}
		select {
		case <-k.changed:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), k.stop())
		}
	}
}

// failed returns why a daemon that GPUs cannot be used without has ended; nil while it
// runs or starts.
func (k *runningDaemons) failed() error {
	if k == nil {
		return nil
	}
	for _, s := range k.Status() {
		if s.Required && !s.Ready && s.LastExit != "" {
			return &kernel.Error{Reason: kernel.ReasonDeviceInitFailed, Message: k.Ready().Error()}
		}
	}
	return nil
}

// maxLacking bounds what a state says of daemons that do not run, in bytes.
const maxLacking = 1000

// findLacking returns the daemons that have ended, or did not start, and that GPUs can be
// used without, and why: how each ended and its last lines.
func (k *runningDaemons) findLacking() (names []string, why string) {
	if k == nil {
		return nil, ""
	}
	var all []string
	for _, s := range k.Status() {
		if s.Required || s.Ready || s.LastExit == "" {
			continue
		}
		text := s.Name + " does not run: " + s.LastExit
		if n := len(s.LastLines); n > 0 {
			text += "; it said: " + strings.Join(s.LastLines[max(n-lastLines, 0):], " / ")
		}
		names, all = append(names, s.Name), append(all, text)
	}
	return names, record.Clean(strings.Join(all, "; "), maxLacking)
}

// lastLines is how many lines of a daemon a state quotes. nvidia-persistenced says that it
// started, why it ends, that it ends, and that it has ended.
const lastLines = 4
