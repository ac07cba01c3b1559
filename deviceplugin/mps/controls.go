package mps

import "context"

// controls are the running control daemons, by resource, for use by one goroutine. They
// keep running while the driver's library is closed and opened again.
type controls struct {
	daemon  *daemon
	ctx     context.Context //nolint:containedctx // of everything it starts, whoever the caller is
	modes   currentModes
	shm     shm
	running map[string]*running
}

// running is a running control daemon.
type running struct {
	spec   Spec
	site   site
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

// apply starts and stops daemons to match the specs. An unchanged daemon has clients
// and keeps running.
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
		if spec, there := wanted[name]; there && r.site == at(name) && r.spec.compatible(spec) {
			continue
		}
		r.cancel(errChanged)
		ending = append(ending, r)
		delete(c.running, name)
	}
	// A GPU may move from one daemon to another, so wait until the first has released it.
	for _, r := range ending {
		<-r.ended
	}
	c.daemon.removeExcept(wanted)
	for _, s := range specs {
		if c.running[s.Resource] == nil {
			c.start(at(s.Resource), s)
		}
	}
}

func (c *controls) start(at site, s Spec) {
	cfg := c.daemon.cfg
	ctx, end := context.WithCancelCause(c.ctx)
	r := &running{spec: s, site: at, cancel: end, ended: make(chan struct{})}
	c.running[s.Resource] = r
	c.daemon.meter.Start(s.Resource)
	one := &control{spec: s, site: at, modes: &c.modes, claims: c.daemon.claims, shm: &c.shm, log: cfg.Log, report: c.daemon.report}
	go func() {
		defer close(r.ended)
		one.run(ctx)
	}()
}

// stop stops all daemons at once.
func (c *controls) stop(why error) {
	for _, r := range c.running {
		r.cancel(why)
	}
	for _, r := range c.running {
		<-r.ended
	}
	clear(c.running)
}
