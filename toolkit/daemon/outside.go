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
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// maxSpec limits the size of the management specification, as package cdi does.
const maxSpec = 8 << 20

// runtimeKnown is triggered when the runtime has responded. The response determines its
// configuration files, which are watched.
const runtimeKnown = configChanged << 1

// runtimeState is the known state of the container runtime. Nothing waits for it.
type runtimeState struct {
	queried bool         // the runtime was queried, or there is none
	info    runtime.Info // without a socket if there is no runtime
	reason  gpu.Reason   // the problem that the message in info describes, "" if none
	nri     nri.Status
	missed  []nri.Missed // containers that should have GPUs and have none

	problem gpu.Reason // why it cannot be configured; "" if it can, or is not to be
	message string     // of problem
}

// queryRuntime queries the abilities of the container runtime, again whenever it
// restarts.
func (d *Daemon) queryRuntime(ctx context.Context) error {
	var since time.Time // of the first query without a response, zero if there is none
	return watch.Follow(ctx, d.Root, d.RuntimeSockets(), func(ctx context.Context, at string) error {
		var info runtime.Info
		var reason gpu.Reason
		var err error
		if since.IsZero() {
			since = time.Now()
		}
		if at != "" {
			info, reason, err = d.QueryRuntime(ctx, at)
		}
		switch {
		case ctx.Err() != nil: // the runtime was replaced, or the daemon ends
			since = time.Time{}
			return ctx.Err()
		case err == nil:
			since = time.Time{}
		case time.Since(since) < runtime.QueryTimeout: // it is being started
			return err
		}
		d.metrics.runtime(info.Name, info.CDI)
		d.checkConfig()
		d.publish(func() { d.runtime.queried, d.runtime.info, d.runtime.reason = true, info, reason })
		if d.Config.Configure {
			d.trigger(runtimeKnown)
		}
		return err
	})
}

// inject runs the plugin of the container runtime that gives GPUs to agents and to
// workloads of allowed namespaces.
func (d *Daemon) inject(ctx context.Context) error {
	plugin := &nri.Plugin{
		Root: d.Root, Socket: d.Config.NRISocket, Namespace: d.Config.Namespace,
		Offer: d.currentOffer,
		Report: func(s nri.Status) {
			d.metrics.connected.Set(number(s.Connected))
			d.publish(func() { d.runtime.nri = s })
		},
		Injected: func(i nri.Injected) {
			d.metrics.injected.Inc()
			d.log.Info("container is given the GPUs", "pod", i.Pod, "container", i.Container, "generation", i.Generation)
		},
		Workloads: nri.Workloads{Namespaces: d.Config.WorkloadNamespaces, AcceptEnvvar: d.Config.Shim.AcceptEnvvar},
		Table:     d.table.Load,
		Resolved:  d.logResolved,
		Missed: func(all []nri.Missed) {
			d.publish(func() { d.runtime.missed = all })
		},
	}
	return plugin.Run(ctx)
}

// currentOffer returns the offer for agents. It is nil if the runtime could not create a
// container with it.
func (d *Daemon) currentOffer() *nri.Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.runtime.unable() {
		return nil
	}
	return d.offer.Load()
}

// publishEnd publishes that the toolkit no longer serves the runtime, so that a new agent
// waits for the next toolkit instead of starting without GPUs.
func (d *Daemon) publishEnd() {
	if !d.runtime.nri.Connected && d.fault.Delay() == 0 {
		return
	}
	d.publish(func() {
		d.runtime.nri = nri.Status{Message: "gpu-toolkit has ended on this node and is waited for"}
	})
}

// prepareOffer prepares the offer for agents from the management specification on the
// host. Without a driver there is none, even if the specification of an earlier driver
// still exists.
func (d *Daemon) prepareOffer(phase nodestate.Phase) {
	if d.Config.Namespace == "" { // there are no agents
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
			return // keep the current offer: its specification cannot be read now
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

// publish applies an update, and writes and logs the state if it changed or the last one
// could not be written. It writes nothing before the loop's first scan. An error of
// writing does not end the daemon: it is logged, the old state is invalidated, and the
// write is retried.
func (d *Daemon) publish(update func()) {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.Lock()
	update()
	was, queried, info := d.last, d.runtime.queried, d.runtime.info
	s := d.state()
	d.last = s
	d.mu.Unlock()
	if queried && s.Toolkit != nil { // before the query the state is incomplete
		d.logRuntime(*s.Toolkit, info.Default)
	}
	same := setup.Same(was, s)
	if s.Phase == "" || same && d.fault.Delay() == 0 {
		return
	}
	if was.Phase != s.Phase || was.Reason != s.Reason || was.Message != s.Message {
		log := d.log.Info
		if s.Phase == nodestate.Failed {
			log = d.log.Error
		}
		log("toolkit "+string(s.Phase), "reason", s.Reason, "message", s.Message)
	}
	err := d.Publish(s)
	d.metrics.unwritten.Set(number(err != nil))
	switch changed := d.fault.Record(err); {
	case changed && err != nil:
		_, message := d.Config.Explain(err)
		d.log.Error("the state cannot be written; until then, others have no information about the toolkit on this node",
			"reason", nodestate.ReasonNotWritable, "message", message)
	case changed:
		d.log.Info("the state is written again")
	}
	if err != nil {
		select {
		case d.rewrite <- d.fault.Delay():
		default: // already scheduled
		}
	}
}

// rewriteState retries to write a state that could not be written, until ctx ends.
func (d *Daemon) rewriteState(ctx context.Context) error {
	for {
		var delay time.Duration
		select {
		case <-ctx.Done():
			return ctx.Err()
		case delay = <-d.rewrite:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay): // no event reports free space on a disk
			d.publish(func() {})
		}
	}
}

// state returns the state of the host and of the runtime.
func (d *Daemon) state() nodestate.State {
	if d.own.Phase == "" {
		return nodestate.State{}
	}
	o := d.runtime
	var found *nodestate.Runtime
	reason := o.reason
	if o.info.Socket != "" {
		r := o.info.Runtime
		if found = &r; o.problem != "" {
			reason, r.Message = o.problem, o.message
		}
	}
	var injection *nodestate.Injection
	if d.injects() {
		injection = o.injection(d.Config.NRISocket)
		if offer := d.offer.Load(); offer != nil {
			injection.Generation = offer.Generation
			if injection.Working && o.unable() {
				injection.Working, injection.Message = false, o.info.Message
			}
		}
		injection.Missed, injection.MissedCount = missed(o.missed, injection.Generation != "" && !o.unable())
	}
	return setup.WithRuntimeState(d.own, found, reason, injection)
}

// injection returns the state of the injection, with the reason if it does not work.
func (o runtimeState) injection(at string) *nodestate.Injection {
	switch {
	case !o.nri.Connected && o.nri.Absent && o.queried:
		return &nodestate.Injection{Message: o.nri.Message + ": " + runtime.AdviseNRI(o.info, at)}
	case !o.nri.Connected && o.nri.Message == "":
		return &nodestate.Injection{Message: "the container runtime has not registered the toolkit at " + at + " yet"}
	case !o.nri.Connected:
		return &nodestate.Injection{Message: o.nri.Message}
	}
	return &nodestate.Injection{Working: true}
}

// unable reports whether the runtime does not resolve our CDI names. Pods would start
// without their GPUs, or not at all, so agents get none either: then they offer none to
// pods.
func (o runtimeState) unable() bool {
	return o.reason == runtime.ReasonDisabled || o.reason == runtime.ReasonDirectory
}

// logRuntime logs changes of the container runtime.
func (d *Daemon) logRuntime(now nodestate.ToolkitInfo, handler string) {
	was := d.logged
	d.logged = now
	if r := now.Runtime; r != nil && (was.Runtime == nil || !sameRuntime(*was.Runtime, *r)) {
		if r.Message != "" {
			d.log.Warn("containers may not get their GPUs", "socket", r.Socket, "message", r.Message)
		} else {
			d.log.Info("container runtime", "socket", r.Socket, "name", r.Name, "version", r.Version, "handler", handler)
		}
	}
	d.logMissed(now.Injection)
	if i := now.Injection; i != nil && (was.Injection == nil || was.Injection.Working != i.Working || was.Injection.Message != i.Message) {
		if i.Working {
			d.log.Info(d.recipients()+" are given the GPUs", "socket", d.Config.NRISocket)
		} else {
			d.log.Warn(d.recipients()+" are not given the GPUs", "message", i.Message)
		}
	}
}

func sameRuntime(a, b nodestate.Runtime) bool {
	return a.Socket == b.Socket && a.Name == b.Name && a.Version == b.Version && a.Message == b.Message
}
