package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/drivertag"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Prebuilt says where modules lie that another node, or a Job, has built.
type Prebuilt struct {
	image.Registry
	Repository string // "registry.example.com/gpu/driver"; "": nowhere
	Image      string // that this container runs, to which layers of modules are added; "": nothing is pushed
	OSTag      string // of the node's operating system: "rhcos4.12"
}

// Deadlines of the registry. A node waits for modules, and for nothing that it has built.
const (
	pullTimeout = 2 * time.Minute
	pushTimeout = 10 * time.Minute
	firstRetry  = time.Minute
	lastRetry   = time.Hour
)

// reference returns the image that has the modules of an order.
func (p Prebuilt) reference(o order) (string, error) {
	tag, err := drivertag.Tag(o.Version, o.Kernel, p.OSTag)
	return p.Repository + ":" + tag, err
}

// pull takes the modules from the registry.
func (d *Driver) pull(ctx context.Context, o order) error {
	if d.Sources.Prebuilt.Repository == "" {
		return errNothing
	}
	ref, err := d.Sources.Prebuilt.reference(o)
	if err != nil {
		return err
	}
	if err := d.publish(nodestate.Waiting, ReasonStarting, "the driver's modules for kernel "+o.Kernel+" are looked for at "+ref); err != nil {
		return err
	}
	if err := os.RemoveAll(o.to); err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, pullTimeout)
	defer stop()
	err = d.Sources.Prebuilt.Pull(waiting, ref, o.Modules, o.to)
	switch {
	case errors.Is(err, image.ErrAbsent):
		d.Log.Info("nobody has built the modules yet", "image", ref, "why", err)
		return errNothing
	case err != nil:
		return &kernel.Error{Reason: ReasonSourceUnreachable, Err: err, Message: fmt.Sprintf(
			"the driver's modules for kernel %s cannot be pulled: %v; make the registry reachable from the node, or use an image that has modules or sources", o.Kernel, err)}
	}
	d.Log.Info("modules are pulled", "image", ref, "kernel", o.Kernel, "kind", o.Kind)
	if err := d.finish(ctx, o); err != nil {
		return err
	}
	d.keep(ctx, o)
	return nil
}

// pushBeside runs push, if there is something to push, until the function that it returns is
// called.
func (d *Driver) pushBeside(ctx context.Context) (stop func()) {
	if d.made == nil || d.Sources.Prebuilt.Repository == "" || d.Sources.Prebuilt.Image == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.push(ctx, *d.made)
	}()
	return func() {
		cancel()
		<-done
	}
}

// push pushes what this node has built, for the next one with this kernel. It tries again
// until it has succeeded, or ctx ends: the driver serves meanwhile.
func (d *Driver) push(ctx context.Context, o order) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		err := d.pushOnce(ctx, o)
		if err == nil || ctx.Err() != nil {
			return
		}
		d.Log.Warn("what was built is not in the registry yet", "err", err, "again", pause)
		wait.Reset(pause)
	}
}

func (d *Driver) pushOnce(ctx context.Context, o order) error {
	p := d.Sources.Prebuilt
	ctx, stop := context.WithTimeout(ctx, pushTimeout)
	defer stop()
	ref, err := p.reference(o)
	if err != nil {
		return err
	}
	if there, err := p.Has(ctx, ref, o.Modules); there || err != nil {
		return err
	}
	layer, err := image.Layer(o.to, image.Dir(o.Kernel))
	if err != nil {
		return err
	}
	digest, err := p.Push(ctx, p.Image, ref, layer, o.Modules)
	if err == nil {
		d.Log.Info("what was built is in the registry", "image", ref, "digest", digest)
	}
	return err
}
