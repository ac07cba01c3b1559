package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Sources say how modules are built where the image has none for the kernel.
type Sources struct {
	Dir   string // that has kernel-open, kernel or both; "": nothing is built
	Root  string // below which the kernel's headers are installed
	Cache string // folder of the node in which modules are kept; "": nowhere
	Work  string // folder in which they are built
	// Version of the driver, which the modules have to have; "": any.
	Version string
	// Toolkit is the folder that is shared with OpenShift's Driver Toolkit, which builds in
	// place of this container; "": this container builds.
	Toolkit string
}

// sourceFolders are the folders of NVIDIA's installer by the kind of modules that they make.
var sourceFolders = map[kernel.Kind]string{kernel.OpenKind: "kernel-open", kernel.Proprietary: "kernel"}

// errNoModules is returned by Take where the image has no modules for the kernel.
var errNoModules = errors.New("no modules for this kernel")

// find surveys the node; where the image has no modules for its kernel, they are built, or
// taken from what was built before.
func (d *Driver) find(ctx context.Context) (Snapshot, error) {
	s, err := d.Take()
	if !errors.Is(err, errNoModules) || d.Sources.Dir == "" {
		return s, err
	}
	if err := d.build(ctx, s); err != nil {
		return s, err
	}
	return d.Take()
}

// build compiles the modules for the running kernel and opens the folder that holds them.
func (d *Driver) build(ctx context.Context, s Snapshot) error {
	var have []kernel.Kind
	for _, k := range []kernel.Kind{kernel.OpenKind, kernel.Proprietary} {
		if info, err := os.Stat(filepath.Join(d.Sources.Dir, sourceFolders[k])); err == nil && info.IsDir() {
			have = append(have, k)
		}
	}
	kind, _, err := kernel.Choose(d.Kind, have, s.GPUs)
	if err != nil {
		return err
	}
	if err := d.publish(nodestate.Waiting, ReasonStarting, "the driver's modules are being built for kernel "+s.Release); err != nil {
		return err
	}
	source, to := filepath.Join(d.Sources.Dir, sourceFolders[kind]), filepath.Join(d.Sources.Work, "lib/modules", s.Release)
	if d.Sources.Toolkit != "" {
		err = d.buildInToolkit(ctx, s.Release, kind, source, to)
	} else {
		err = d.buildHere(ctx, s.Release, kind, source, to)
	}
	if err != nil {
		return err
	}
	d.Built, err = host.Open(d.Sources.Work)
	return err
}

// buildHere puts the modules into a folder, compiled in this container or before.
func (d *Driver) buildHere(ctx context.Context, release string, kind kernel.Kind, source, to string) error {
	headers, err := build.FindHeaders(d.Sources.Root, release)
	if err != nil {
		return &kernel.Error{Reason: build.ReasonBuildFailed, Message: err.Error(), Err: err}
	}
	digest, cached, err := build.CompileOnce(ctx, build.Request{
		Source: source, Headers: headers, Release: release, Version: d.Sources.Version,
		Modules: fileNames(d.wanted()), Kind: string(kind), Log: d.Log,
	}, cache.Cache{Dir: d.Sources.Cache}, to)
	if err != nil {
		return err
	}
	d.Log.Info("modules are built", "kernel", release, "kind", kind, "digest", digest[:12], "cached", cached)
	return nil
}

// buildInToolkit puts the modules into a folder that the Driver Toolkit's container builds.
func (d *Driver) buildInToolkit(ctx context.Context, release string, kind kernel.Kind, source, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	m := toolkit.Main{
		Dir: d.Sources.Toolkit, Program: "/proc/self/exe", Source: source, Work: filepath.Dir(to), Log: d.Log,
		Request:      toolkit.Request{Release: release, Version: d.Sources.Version, Kind: string(kind), Modules: fileNames(d.wanted())},
		ImageMissing: os.Getenv("RHCOS_IMAGE_MISSING") == "true", OSVersion: os.Getenv("RHCOS_VERSION"),
	}
	if err := m.Prepare(ctx); err != nil {
		return err
	}
	made, err := m.Wait(ctx)
	if err != nil {
		return err
	}
	d.Log.Info("modules are built by the Driver Toolkit", "kernel", release, "kind", kind)
	return errors.Join(os.RemoveAll(to), os.Rename(made, to))
}
