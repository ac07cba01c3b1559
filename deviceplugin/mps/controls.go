package mps

import "context"

// controls are the control daemons that run, by resource. One goroutine uses it.
// They outlive the driver's library being closed and opened again.
type controls struct {
	daemon  *daemon
	ctx     context.Context //nolint:containedctx // of all that it starts, whoever asks for it
	modes   current
	running map[string]*running
}

// running is one of them.
type running struct {
	spec  Spec
	site  site
	end   context.CancelCauseFunc
	ended chan struct{}
}

// apply makes the daemons be as the specs say. One that may stay as it is has
// clients, and is left alone.
func (c *controls) apply(driverRoot, mpsRoot string, specs []Spec) {
	wanted := map[string]Spec{}
	for _, s := range specs {
		wanted[s.Resource] = s
	}
	at := func(resource string) site {
		return site{hostRoot: c.daemon.cfg.HostRoot, driverRoot: driverRoot, mpsRoot: mpsRoot, resource: resource}
	}
	var ending []*running
	for name, r := range c.running {
		if spec, there := wanted[name]; there && r.site == at(name) && r.spec.same(spec) {
			continue
		}
		r.end(errOtherwise)
		ending = append(ending, r)
		delete(c.running, name)
	}
	// A GPU goes from one daemon to another: the first has to let go of it.
	for _, r := range ending {
		<-r.ended
	}
	c.daemon.keep(wanted)
	for _, s := range specs {
		if c.running[s.Resource] == nil {
			c.start(at(s.Resource), s)
		}
	}
}

func (c *controls) start(at site, s Spec) {
	cfg := c.daemon.cfg
	ctx, end := context.WithCancelCause(c.ctx)
	r := &running{spec: s, site: at, end: end, ended: make(chan struct{})}
	c.running[s.Resource] = r
	c.daemon.meter.Start(s.Resource)
	one := &control{spec: s, site: at, modes: &c.modes, log: cfg.Log, report: c.daemon.report}
	go func() {
		defer close(r.ended)
		one.run(ctx)
	}()
}

// stop ends them all at once.
func (c *controls) stop(why error) {
	for _, r := range c.running {
		r.end(why)
	}
	for _, r := range c.running {
		<-r.ended
	}
	clear(c.running)
}
