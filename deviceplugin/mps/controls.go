package mps

import "context"

// controls are the control daemons that run, by resource. One goroutine uses it.
type controls struct {
	daemon  *daemon
	opened  Opened
	running map[string]*running
}

// running is one of them.
type running struct {
	spec  Spec
	root  string // of its folders
	end   context.CancelFunc
	ended chan struct{}
}

// apply makes the daemons be as the specs say. One that may stay as it is has
// clients, and is left alone.
func (c *controls) apply(ctx context.Context, root string, specs []Spec) {
	wanted := map[string]Spec{}
	for _, s := range specs {
		wanted[s.Resource] = s
	}
	var ending []*running
	for name, r := range c.running {
		spec, there := wanted[name]
		if there && r.root == root && r.spec.same(spec) {
			continue
		}
		r.end()
		ending = append(ending, r)
		delete(c.running, name)
		if !there {
			defer c.daemon.forget(name)
		}
	}
	// A GPU goes from one daemon to another: the first has to let go of it.
	for _, r := range ending {
		<-r.ended
	}
	for _, s := range specs {
		if c.running[s.Resource] == nil {
			c.start(ctx, root, s)
		}
	}
}

func (c *controls) start(ctx context.Context, root string, s Spec) {
	cfg := c.daemon.cfg
	ctx, end := context.WithCancel(ctx)
	r := &running{spec: s, root: root, end: end, ended: make(chan struct{})}
	c.running[s.Resource] = r
	one := &control{
		spec: s, modes: c.opened.Source, log: cfg.Log, report: c.daemon.report,
		site: site{hostRoot: cfg.HostRoot, driverRoot: c.opened.Root, mpsRoot: root, resource: s.Resource},
	}
	go func() {
		defer close(r.ended)
		one.run(ctx)
	}()
}

// stop ends them all at once.
func (c *controls) stop() {
	for _, r := range c.running {
		r.end()
	}
	for _, r := range c.running {
		<-r.ended
	}
}
