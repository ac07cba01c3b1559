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

// syslogSocket is the socket to which syslog(3) sends messages. The daemons find it: their root file system
// has the container's /dev.
const syslogSocket = "/dev/log"

// runningDaemons supervises the driver's daemons.
type runningDaemons struct {
	*supervisor.Supervisor
	end            context.CancelFunc
	ended          chan error
	changed        chan struct{} // a daemon's state has changed
	failedOptional []string      // names of the optional daemons that the published state reports as failed
}

// stop stops the daemons, in reverse order.
func (k *runningDaemons) stop() error {
	if k == nil {
		return nil
	}
	k.end()
	return <-k.ended
}

// stopUnusedDaemons stops the driver's daemons if nobody else uses the driver. Otherwise it leaves them to the
// end of the container and returns why: jobs may end with a daemon, such as the fabric manager.
func (d *Driver) stopUnusedDaemons() (busy, err error) {
	if d.daemons == nil {
		return nil, nil
	}
	var own []int
	for _, s := range d.daemons.Status() {
		if s.PID != 0 {
			own = append(own, s.PID)
		}
	}
	if busy := d.System.CheckUsedOnlyBy(own); busy != nil {
		d.Log.Info("the driver's daemons are left running, for the driver is in use", "by", busy)
		return busy, nil
	}
	k := d.daemons
	d.daemons = nil
	return nil, k.stop()
}

// changes returns a channel that receives when a daemon's state has changed; nil where
// no daemon runs.
func (k *runningDaemons) changes() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.changed
}

// PlanDaemons decides which daemons of the image run on this node.
func (v Survey) PlanDaemons() (daemons.Plan, error) {
	m, err := daemons.ReadMachine(v.Image, v.Host, os.Environ())
	if err != nil {
		return daemons.Plan{}, err
	}
	p, err := daemons.NewPlan(m)
	if errors.Is(err, daemons.ErrMissing) || errors.Is(err, daemons.ErrNoPort) {
		err = &kernel.Error{Reason: kernel.ReasonDependencyMissing, Message: err.Error(), Err: err}
	}
	return p, err
}

// startDaemons starts the driver's daemons and waits until the required ones are ready.
func (d *Driver) startDaemons(ctx context.Context) (*runningDaemons, error) {
	rootDir, err := root.Prepare(d.Image.Dir())
	if err != nil {
		return nil, err
	}
	p, err := d.PlanDaemons()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(p.Daemons, func(s supervisor.Daemon) bool { return s.Required }) {
		// A container that was killed may have left files that say that the driver is ready.
		err := errors.Join(d.removeReadyFiles(), d.publish(nodestate.Waiting, ReasonStarting, "the driver's daemons are being started"))
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
		Daemons: p.Daemons, Root: rootDir, Env: os.Environ(), Log: d.Log, Syslog: syslogSocket,
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
		} else if failed := k.requiredFailure(); failed != nil {
			return nil, errors.Join(failed, k.stop())
		}
		select {
		case <-k.changed:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), k.stop())
		}
	}
}

// requiredFailure returns an error if a required daemon has ended; nil while all of them run or
// start.
func (k *runningDaemons) requiredFailure() error {
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

// maxFailureText bounds the text about failed optional daemons in the state, in bytes.
const maxFailureText = 1000

// findFailedOptional returns the names of the optional daemons that have ended or did not
// start. why says how each ended, with its last lines of output.
func (k *runningDaemons) findFailedOptional() (names []string, why string) {
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
	return names, record.Clean(strings.Join(all, "; "), maxFailureText)
}

// lastLines bounds the lines of a daemon that a state quotes. nvidia-persistenced logs four:
// that it started, why it ends, that it ends, and that it has ended.
const lastLines = 4
