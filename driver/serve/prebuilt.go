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
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nvidia"
)

// Prebuilt configures the registry of modules that another node, or a Job, has built.
type Prebuilt struct {
	image.Registry
	Repository string // "registry.example.com/gpu/driver"; "": none
	Image      string // of this container, to which layers of modules are added; "": nothing is pushed
	OSTag      string // of the node's operating system: "rhcos4.12"
}

// Deadlines of the registry. A node waits for a pull, but not for a push.
const (
	pullTimeout = 2 * time.Minute
	pushTimeout = 10 * time.Minute
	firstRetry  = time.Minute
	lastRetry   = time.Hour
)

// reference returns the reference of the image for the requested modules: repository and tag.
func (p Prebuilt) reference(o buildRequest) (string, error) {
	tag, err := nvidia.DriverTag(o.Version, o.Kernel, p.OSTag)
	return p.Repository + ":" + tag, err
}

// pullModules pulls the modules from the registry.
func (d *Driver) pullModules(ctx context.Context, o buildRequest) error {
	if d.Sources.Prebuilt.Repository == "" {
		return errNoSource
	}
	ref, err := d.Sources.Prebuilt.reference(o)
	if err != nil {
		return err
	}
	if err := d.publish(nodestate.Waiting, ReasonStarting, "the driver's modules for kernel "+o.Kernel+" are looked for at "+ref); err != nil {
		return err
	}
	if err := os.RemoveAll(o.destination); err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, pullTimeout)
	defer stop()
	err = d.Sources.Prebuilt.Pull(waiting, ref, o.Modules, o.destination)
	switch {
	case errors.Is(err, image.ErrAbsent):
		d.Log.Info("nobody has built the modules yet", "image", ref, "why", err)
		return errNoSource
	case errors.Is(err, image.ErrUnreachable):
		return &kernel.Error{Reason: ReasonSourceUnreachable, Err: err, Message: fmt.Sprintf(
			"the driver's modules for kernel %s cannot be pulled: %v; make the registry reachable from the node, or use an image that has modules or sources", o.Kernel, err)}
	case err != nil:
		return fmt.Errorf("the driver's modules for kernel %s cannot be pulled: %w", o.Kernel, err)
	}
	d.Log.Info("modules are pulled", "image", ref, "kernel", o.Kernel, "kind", o.Kind)
	if err := d.acceptPulled(ctx, o); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", ref, err), os.RemoveAll(o.destination))
	}
	d.cacheModules(ctx, o, false)
	return nil
}

// acceptPulled verifies pulled files and removes all but the wanted modules. If halves of
// modules were pulled, it links them first, with the linker and flags that came with them.
// Where modules must be signed it rejects halves: their signature could only be checked
// after the link.
func (d *Driver) acceptPulled(ctx context.Context, o buildRequest) error {
	halves := filepath.Join(o.destination, image.HalvesName, o.Kind)
	if exists(filepath.Join(halves, link.FileName)) {
		if d.Sources.SignCertificate != "" {
			return &kernel.Error{Reason: kernel.ReasonSignatureRejected, Message: "it has halves of modules, which would be linked before their signature can be checked: push whole signed modules"}
		}
		if err := d.linkHalves(ctx, o, halves); err != nil {
			return err
		}
	}
	return d.acceptModules(o)
}

// acceptModules removes all but the wanted modules from the request's folder. It rejects a
// module of another kernel, driver or kind, or one that the certificate's key has not
// signed.
func (d *Driver) acceptModules(o buildRequest) error {
	if err := removeOthers(o.destination, o.Names); err != nil {
		return err
	}
	if err := kernel.CheckBuilt(o.destination, o.Names, o.Kernel, o.Version); err != nil {
		return err
	}
	root, err := host.Open(o.destination)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	if m, err := kernel.ReadModule(root, "/nvidia.ko"); err != nil || string(m.Kind()) != o.Kind {
		return errors.Join(err, fmt.Errorf("nvidia.ko is not of the %s kind", o.Kind))
	}
	return d.checkSigner(o)
}

// removeOthers removes everything from a folder except the files of these modules. It returns an
// error if one of them is missing.
func removeOthers(dir string, names []string) error {
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
		name, isModule := strings.CutSuffix(e.Name(), ".ko")
		if isModule && e.Type().IsRegular() && slices.Contains(names, name) {
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

// pushModulesInBackground starts to push the modules that this node has built to the registry, if
// there are any. stop ends the push and waits for its end.
func (d *Driver) pushModulesInBackground(ctx context.Context) (stop func()) {
	if d.builtRequest == nil || d.Sources.Prebuilt.Repository == "" || d.Sources.Prebuilt.Image == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.pushModules(ctx, *d.builtRequest)
	}()
	return func() {
		cancel()
		<-done
	}
}

// pushModules pushes the modules that this node has built, for the next node with this kernel. It
// retries until it succeeds or ctx ends, while the driver is in use.
func (d *Driver) pushModules(ctx context.Context, o buildRequest) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		err := d.tryPush(ctx, o)
		if err == nil {
			d.clearUnpushed(o)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if image.IsDenied(err) {
			d.Log.Info("built modules stay on this node: its credentials may not push", "err", err)
			return
		}
		d.Log.Warn("pushing the built modules failed", "err", err, "again", pause)
		wait.Reset(pause)
	}
}

// clearUnpushed records that the built modules are in the registry.
func (d *Driver) clearUnpushed(o buildRequest) {
	key, err := d.cacheKey(o)
	if err == nil {
		err = os.Remove(d.unpushed(key))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Warn("recording the push failed: the modules will be pushed again", "err", err)
	}
}

// tryPush pushes the modules once, unless the registry has them already.
func (d *Driver) tryPush(ctx context.Context, o buildRequest) error {
	p := d.Sources.Prebuilt
	ctx, stop := context.WithTimeout(ctx, pushTimeout)
	defer stop()
	ref, err := p.reference(o)
	if err != nil {
		return err
	}
	if exists, err := p.HasModules(ctx, ref, o.Modules); exists || err != nil {
		return err
	}
	layer, err := image.NewLayer(o.destination, image.ModulesDir(o.Kernel))
	if err != nil {
		return err
	}
	digest, err := p.Push(ctx, p.Image, ref, layer, o.Modules)
	if err == nil {
		d.Log.Info("what was built is in the registry", "image", ref, "digest", digest)
	}
	return err
}
