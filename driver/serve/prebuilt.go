package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/drivertag"
	"github.com/gpuready/gpuready/internal/host"
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
	case errors.Is(err, image.ErrUnreachable):
		return &kernel.Error{Reason: ReasonSourceUnreachable, Err: err, Message: fmt.Sprintf(
			"the driver's modules for kernel %s cannot be pulled: %v; make the registry reachable from the node, or use an image that has modules or sources", o.Kernel, err)}
	case err != nil:
		return fmt.Errorf("the driver's modules for kernel %s cannot be pulled: %w", o.Kernel, err)
	}
	d.Log.Info("modules are pulled", "image", ref, "kernel", o.Kernel, "kind", o.Kind)
	if err := d.acceptPulled(ctx, o); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", ref, err), os.RemoveAll(o.to))
	}
	d.keep(ctx, o, false)
	return nil
}

// acceptPulled checks what was pulled, and leaves the wanted modules of it. Halves are linked
// first, by programs and flags that came with them: where a key has to have signed modules,
// its signature comes too late for that.
func (d *Driver) acceptPulled(ctx context.Context, o order) error {
	halves := filepath.Join(o.to, image.HalvesName, o.Kind)
	if exists(filepath.Join(halves, link.FileName)) {
		if d.Sources.SignCertificate != "" {
			return &kernel.Error{Reason: kernel.ReasonSignatureRejected, Message: "it has halves of modules, which are linked before their signature can be checked: push whole modules that are signed"}
		}
		if err := d.linkInto(ctx, o, halves); err != nil {
			return err
		}
	}
	return d.accept(o)
}

// accept leaves the wanted modules in the order's folder, and nothing else. It refuses any
// that is of another kernel, driver or kind, or that the certificate's key has not signed.
func (d *Driver) accept(o order) error {
	if err := keepOnly(o.to, o.Names); err != nil {
		return err
	}
	if err := kernel.CheckBuilt(o.to, o.Names, o.Kernel, o.Version); err != nil {
		return err
	}
	root, err := host.Open(o.to)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	if m, err := kernel.ReadModule(root, "/nvidia.ko"); err != nil || string(m.Kind()) != o.Kind {
		return errors.Join(err, fmt.Errorf("nvidia.ko is not of the %s kind", o.Kind))
	}
	return d.checkSigner(o)
}

// keepOnly removes what is in a folder but the files of these modules, each of which has to
// be there.
func keepOnly(dir string, names []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), ".ko")
		if is && e.Type().IsRegular() && slices.Contains(names, name) {
			found[name] = true
		} else if err := root.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	for _, name := range names {
		if !found[name] {
			return fmt.Errorf("it has no %s.ko", name)
		}
	}
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
		if err == nil {
			d.forgetUnpushed(o)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if image.IsDenied(err) {
			d.Log.Info("what was built stays on this node: its credentials may not push", "err", err)
			return
		}
		d.Log.Warn("what was built is not in the registry yet", "err", err, "again", pause)
		wait.Reset(pause)
	}
}

// forgetUnpushed notes that what was built is in the registry.
func (d *Driver) forgetUnpushed(o order) {
	key, err := d.key(o)
	if err == nil {
		err = os.Remove(d.unpushed(key))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Warn("what was built will be looked for in the registry again", "err", err)
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
