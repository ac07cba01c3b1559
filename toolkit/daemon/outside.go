package daemon

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/socket"
)

// maxSpec bounds the management specification; package cdi has the same bound.
const maxSpec = 8 << 20

// runtimeKnown is poked when the runtime has answered: which files are its
// configuration follows from that, and they are watched.
const runtimeKnown = configChanged << 1

// outside is what is known of the container runtime. None of it is waited for.
type outside struct {
	asked  bool       // the runtime was, or there is none
	answer cri.Answer // without a socket: there is none
	reason gpu.Reason // what is wrong with it, as its message says; "": nothing
	nri    nri.Status
	missed []nri.Missed // containers that should have GPUs and have none

	problem gpu.Reason // what keeps it from being configured; "": nothing, or nobody tries
	message string     // of problem
}

// askRuntime asks the container runtime what it can do, again whenever it was
// started anew.
func (d *Daemon) askRuntime(ctx context.Context) error {
	var since time.Time // it has been asked and has not answered; zero: no
	return socket.Attend(ctx, d.Root, d.RuntimeSockets(), func(ctx context.Context, at string) error {
		var answer cri.Answer
		var reason gpu.Reason
		var err error
		if since.IsZero() {
			since = time.Now()
		}
		if at != "" {
			answer, reason, err = d.AskRuntime(ctx, at)
		}
		switch {
		case ctx.Err() != nil: // another runtime is there, or it is the end
			since = time.Time{}
			return ctx.Err()
		case err == nil:
			since = time.Time{}
		case time.Since(since) < cri.Timeout: // it is being started
			return err
		}
		d.metrics.runtime(answer.Name, answer.CDI)
		d.look()
		d.publish(func() { d.outside.asked, d.outside.answer, d.outside.reason = true, answer, reason })
		if d.Config.Configure {
			d.poke(runtimeKnown)
		}
		return err
	})
}

// inject gives the GPUs to agents, and to workloads that may ask for them, as a plugin
// of the container runtime.
func (d *Daemon) inject(ctx context.Context) error {
	plugin := &nri.Plugin{
		Root: d.Root, Socket: d.Config.NRISocket, Namespace: d.Config.Namespace,
		Offer: d.offered,
		Report: func(s nri.Status) {
			d.metrics.connected.Set(number(s.Connected))
			d.publish(func() { d.outside.nri = s })
		},
		Injected: func(i nri.Injected) {
			d.metrics.injected.Inc()
			d.log.Info("container is given the GPUs", "pod", i.Pod, "container", i.Container, "generation", i.Generation)
		},
		Workloads: nri.Workloads{Namespaces: d.Config.WorkloadNamespaces, AcceptEnvvar: d.Config.Shim.AcceptEnvvar},
		Table:     d.table.Load,
		Resolved:  d.tellResolved,
		Missed: func(all []nri.Missed) {
			d.publish(func() { d.outside.missed = all })
		},
	}
	return plugin.Run(ctx)
}

// offered is what agents are given now: nothing where the runtime could not
// make a container with it.
func (d *Daemon) offered() *nri.Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.outside.unable() {
		return nil
	}
	return d.offer.Load()
}

// leave says that nobody answers the runtime any more: an agent that comes now waits
// for the next toolkit, instead of being created in vain.
func (d *Daemon) leave() {
	if !d.outside.nri.Connected && d.unwritten == "" {
		return
	}
	d.publish(func() {
		d.outside.nri = nri.Status{Message: "gpu-toolkit has ended on this node and is waited for"}
	})
}

// prepareOffer makes ready what agents are given from now on: what the management
// specification that lies there says. Without a driver that is nothing, also where
// the specification of an earlier one is still there.
func (d *Daemon) prepareOffer(phase nodestate.Phase) {
	if d.Config.Namespace == "" { // whose agents are given nothing
		return
	}
	var offer *nri.Offer
	why := ""
	if phase != nodestate.Waiting {
		data, err := d.Root.ReadFile(d.SpecPath(cdi.KindManagement), maxSpec)
		if err == nil {
			offer, err = d.newOffer(data)
		}
		if inotify.Exhausted(err) {
			return // what is given stays as it is: nothing was learned
		}
		if err != nil && (data != nil || !errors.Is(err, fs.ErrNotExist)) {
			why = err.Error()
		}
	}
	d.offer.Store(offer)
	if why != d.noOffer {
		if d.noOffer = why; why != "" {
			d.log.Warn("agents cannot be given the GPUs", "message", why)
		}
	}
}

func (d *Daemon) newOffer(data []byte) (*nri.Offer, error) {
	driverRoot, _ := d.Roots()
	caps, err := node.ReadCaps(d.Root, driverRoot)
	if err != nil {
		return nil, err
	}
	return nri.NewOffer(d.Root, data, caps)
}

// publish takes note of something and leaves the state for others, and logs it,
// if it is a new one, or the last one could not be written. Nothing is left before the
// loop has looked for the first time. A state that cannot be written ends nothing: it
// is logged, what stood there is made void, and it is tried again.
func (d *Daemon) publish(note func()) {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.Lock()
	note()
	was, asked, answer := d.last, d.outside.asked, d.outside.answer
	s := d.together()
	d.last = s
	d.mu.Unlock()
	if asked && s.Toolkit != nil { // before, half of it is not known
		d.tellOutside(*s.Toolkit, answer.Default)
	}
	same := setup.Same(was, s)
	if s.Phase == "" || same && d.unwritten == "" {
		return
	}
	if was.Phase != s.Phase || was.Reason != s.Reason || was.Message != s.Message {
		log := d.log.Info
		if s.Phase == nodestate.Failed {
			log = d.log.Error
		}
		log("toolkit "+string(s.Phase), "reason", s.Reason, "message", s.Message)
	}
	message := ""
	if err := d.Publish(s); err != nil {
		_, message = d.Config.Explain(err)
		select {
		case d.rewrite <- struct{}{}:
		default: // it is going to be
		}
	}
	switch message {
	case d.unwritten:
	case "":
		d.log.Info("the state is written again")
	default:
		d.log.Error("the state cannot be written; until it can be, others know nothing of the toolkit on this node", "message", message)
	}
	d.unwritten = message
}

// rewriteState tries again to write a state that could not be written, until ctx ends.
func (d *Daemon) rewriteState(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.rewrite:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryAfter): // no event tells of room on a disk
			d.publish(func() {})
		}
	}
}

// together is the state of all that is known.
func (d *Daemon) together() nodestate.State {
	if d.own.Phase == "" {
		return nodestate.State{}
	}
	o := d.outside
	var runtime *nodestate.Runtime
	reason := o.reason
	if o.answer.Socket != "" {
		is := o.answer.Runtime
		if runtime = &is; o.problem != "" {
			reason, is.Message = o.problem, o.message
		}
	}
	var injection *nodestate.Injection
	if d.injects() {
		injection = o.injection(d.Config.NRISocket)
		if offer := d.offer.Load(); offer != nil {
			injection.Generation = offer.Generation
			if injection.Working && o.unable() {
				injection.Working, injection.Message = false, o.answer.Message
			}
		}
		injection.Missed, injection.MissedCount = missed(o.missed, injection.Generation != "" && !o.unable())
	}
	return setup.With(d.own, runtime, reason, injection)
}

// injection says whether agents are reached, or why they are not.
func (o outside) injection(at string) *nodestate.Injection {
	switch {
	case !o.nri.Connected && o.nri.Absent && o.asked:
		return &nodestate.Injection{Message: o.nri.Message + ": " + cri.AdviseNRI(o.answer, at)}
	case !o.nri.Connected && o.nri.Message == "":
		return &nodestate.Injection{Message: "the container runtime has not let the toolkit in at " + at + " yet"}
	case !o.nri.Connected:
		return &nodestate.Injection{Message: o.nri.Message}
	}
	return &nodestate.Injection{Working: true}
}

// unable says that the runtime does not resolve our CDI names. Pods would start
// without their GPUs, or not at all, so agents are not given any either: none is to
// be offered to pods then.
func (o outside) unable() bool {
	return o.reason == cri.ReasonDisabled || o.reason == cri.ReasonDirectory
}

// tellOutside logs what is new about the container runtime.
func (d *Daemon) tellOutside(is nodestate.ToolkitInfo, handler string) {
	was := d.told
	d.told = is
	if r := is.Runtime; r != nil && (was.Runtime == nil || !same(*was.Runtime, *r)) {
		if r.Message != "" {
			d.log.Warn("containers may not get their GPUs", "socket", r.Socket, "message", r.Message)
		} else {
			d.log.Info("container runtime", "socket", r.Socket, "name", r.Name, "version", r.Version, "handler", handler)
		}
	}
	d.tellMissed(is.Injection)
	if i := is.Injection; i != nil && (was.Injection == nil || was.Injection.Working != i.Working || was.Injection.Message != i.Message) {
		if i.Working {
			d.log.Info(d.whom()+" are given the GPUs", "socket", d.Config.NRISocket)
		} else {
			d.log.Warn(d.whom()+" are not given the GPUs", "message", i.Message)
		}
	}
}

func same(a, b nodestate.Runtime) bool {
	return a.Socket == b.Socket && a.Name == b.Name && a.Version == b.Version && a.Message == b.Message
}
