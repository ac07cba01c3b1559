package mps

import "context"

// controls are the running control daemons, by resource, for use by one goroutine. They
// keep running while the driver's library is closed and opened again.
type controls struct {
	daemon  *daemon
	ctx     context.Context //nolint:containedctx // ends all control daemons, whichever call started them
	modes   currentModes
	shm     shm
	running map[string]*running
}

// running is a running control daemon.
type running struct {
	spec   Spec
	site   site
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when it has ended
}

// applySpecs starts and stops daemons to match the specs. An unchanged daemon has clients
// and keeps running.
func (c *controls) applySpecs(driverRoot, mpsRoot string, specs []Spec) {
	wanted := map[string]Spec{}
	for _, s := range specs {
		wanted[s.Resource] = s
	}
	siteOf := func(resource string) site {
		return site{hostRoot: c.daemon.cfg.HostRoot, driverRoot: driverRoot, mpsRoot: mpsRoot, resource: resource}
	}
	var ending []*running
	for name, r := range c.running {
		if spec, isWanted := wanted[name]; isWanted && r.site == siteOf(name) && r.spec.compatible(spec) {
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
	c.daemon.removeResourcesExcept(wanted)
	for _, s := range specs {
		if c.running[s.Resource] == nil {
			c.startControl(siteOf(s.Resource), s)
		}
	}
}

// startControl starts the control daemon of one resource.
func (c *controls) startControl(at site, s Spec) {
	cfg := c.daemon.cfg
	ctx, end := context.WithCancelCause(c.ctx)
	r := &running{spec: s, site: at, cancel: end, ended: make(chan struct{})}
	c.running[s.Resource] = r
	c.daemon.metrics.InitResource(s.Resource)
	ctl := &control{spec: s, site: at, modes: &c.modes, claims: c.daemon.claims, shm: &c.shm, log: cfg.Log, reportStatus: c.daemon.recordStatus}
	go func() {
		defer close(r.ended)
		ctl.keepRunning(ctx)
	}()
}

// stopAll stops all daemons at once.
func (c *controls) stopAll(why error) {
	for _, r := range c.running {
		r.cancel(why)
	}
	for _, r := range c.running {
		<-r.ended
	}
	clear(c.running)
}
