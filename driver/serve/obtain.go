package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// ReasonSourceUnreachable is the reason where modules can only come from a registry, and that
// does not respond.
const ReasonSourceUnreachable gpu.Reason = "SourceUnreachable"

// Sources configures where modules come from if the image has none for the kernel.
type Sources struct {
	Dir   string // folder with kernel-open, kernel or both; "": <image>/usr/src/nvidia-*
	Root  string // folder below which the kernel's headers are installed
	Cache string // folder of the node that caches modules; "": none
	Work  string // folder in which modules are built
	// Version is the driver version that the modules must have; "": any.
	Version string
	// Toolkit is the folder that is shared with OpenShift's Driver Toolkit, which builds
	// instead of this container; "": this container builds.
	Toolkit string
	// SignKey is the file of the key that signs built modules; "": none. SignCertificate is the
	// file of its certificate, which must have signed modules from elsewhere; "": none.
	SignKey, SignCertificate string
	Prebuilt                 Prebuilt
}

// sourceFolders holds the folders of NVIDIA's installer by the kind of their modules.
var sourceFolders = map[kernel.Kind]string{kernel.OpenKind: "kernel-open", kernel.Proprietary: "kernel"}

// errNoModules is returned by Snapshot where the image has no modules for the kernel.
var errNoModules = errors.New("no modules for this kernel")

// errNoSource is returned by a way to obtain modules that does not apply: there are no sources,
// halves, cached modules or registry for it.
var errNoSource = errors.New("there are no sources of modules")

// findModules surveys the node. If the image has no modules for its kernel, it links them, takes
// them from the node's cache, pulls them from the registry, or builds them, in this order.
func (d *Driver) findModules(ctx context.Context) (Snapshot, error) {
	s, err := d.Snapshot()
	if !errors.Is(err, errNoModules) {
		return s, err
	}
	o, failed := d.newBuildRequest(ctx, s)
	if failed == nil {
		failed = d.obtainModules(ctx, o)
	}
	if errors.Is(failed, errNoSource) {
		return s, err // the error of Snapshot names the kernels for which the image has modules
	}
	if failed != nil {
		return s, failed
	}
	if d.Built, err = host.Open(d.Sources.Work); err != nil {
		return s, err
	}
	return d.Snapshot()
}

// buildRequest describes the modules to obtain, and from what they can be built.
type buildRequest struct {
	image.Modules
	source      string // folder with the sources of the modules' kind, or with the objects that do not depend on the kernel; "": none
	canBuild    bool   // source has sources that can be compiled
	halves      string // folder of the image with the halves of modules; "": none
	destination string // destination folder of the modules
}

// newBuildRequest finds the sources or halves of the modules. The error is errNothing if there are
// none.
func (d *Driver) newBuildRequest(ctx context.Context, s Snapshot) (buildRequest, error) {
	var o buildRequest
	dir, err := FindSources(d.Sources.Dir, d.Image.Dir())
	if err != nil {
		return o, err
	}
	filter := func(is func(k kernel.Kind) bool) []kernel.Kind {
		return slices.DeleteFunc([]kernel.Kind{kernel.OpenKind, kernel.Proprietary}, func(k kernel.Kind) bool { return !is(k) })
	}
	halves := func(k kernel.Kind) string { return filepath.Join(d.Image.Dir(), image.HalvesDir(s.Release, string(k))) }
	linked := func(k kernel.Kind) bool { return exists(filepath.Join(halves(k), link.FileName)) }
	builds := func(k kernel.Kind) bool { return IsSource(SourceFolder(dir, k)) }
	kinds := filter(func(k kernel.Kind) bool { return linked(k) || builds(k) })
	if len(kinds) == 0 && d.Sources.Prebuilt.Repository != "" {
		kinds = filter(func(kernel.Kind) bool { return true })
	}
	if len(kinds) == 0 {
		return o, errNoSource
	}
	kind, _, err := kernel.ChooseKind(d.Kind, kinds, s.GPUs, d.Sources.Version)
	if err != nil {
		return o, err
	}
	if o.canBuild = builds(kind); linked(kind) {
		o.halves = halves(kind)
	}
	o.Modules = image.Modules{Kernel: s.Release, Kind: string(kind), Version: d.Sources.Version, Names: fileNames(d.wantedModules())}
	o.destination = filepath.Join(d.Sources.Work, "lib/modules", s.Release)
	o.source = SourceFolder(dir, kind)
	if d.Sources.SignCertificate != "" {
		if o.Signer, err = sign.Fingerprint(d.Sources.SignCertificate); err != nil {
			return o, err
		}
	}
	if o.canBuild {
		o.Sources, err = folder.DigestFolder(ctx, o.source)
	}
	return o, err
}

// FindSources returns the folder with the driver's sources: dir, or the one in an image's
// folder where NVIDIA's installer puts them; "" if there is none.
func FindSources(dir, image string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	found, err := filepath.Glob(filepath.Join(image, "usr/src/nvidia-*"))
	switch {
	case err != nil || len(found) == 0:
		return "", err
	case len(found) > 1:
		return "", fmt.Errorf("%s and %s: name the one with the driver's sources (--sources)", found[0], found[1])
	}
	return found[0], nil
}

// SourceFolder returns the subfolder of dir, from FindSources, for a kind of modules; "" if
// there is none.
func SourceFolder(dir string, kind kernel.Kind) string {
	if at := filepath.Join(dir, sourceFolders[kind]); dir != "" && exists(at) {
		return at
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// IsSource reports whether Kbuild can build a folder. Precompiled images have only some of its
// objects.
func IsSource(dir string) bool {
	return dir != "" && (exists(filepath.Join(dir, "Kbuild")) || exists(filepath.Join(dir, "Makefile")))
}

// obtainModules writes the modules to o.destination by the first way that succeeds.
// Otherwise it returns the last error, or errNothing if no way applies.
func (d *Driver) obtainModules(ctx context.Context, o buildRequest) error {
	if err := os.MkdirAll(filepath.Dir(o.destination), 0o755); err != nil {
		return err
	}
	failed := errNoSource
	for _, step := range []func(context.Context, buildRequest) error{d.linkModules, d.restoreCached, d.pullModules, d.buildModules} {
		err := step(ctx, o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNoSource) {
			d.Log.Warn("obtaining the driver's modules failed", "err", err)
			failed = err
		}
	}
	return failed
}

// linkModules links the modules from the image's halves for this kernel.
func (d *Driver) linkModules(ctx context.Context, o buildRequest) error {
	if o.halves == "" {
		return errNoSource
	}
	if err := d.linkHalves(ctx, o, o.halves); err != nil {
		return err
	}
	return d.signModules(o.destination)
}

// linkHalves links modules from a folder of halves into the request's destination.
func (d *Driver) linkHalves(ctx context.Context, o buildRequest, halves string) error {
	linked, err := link.Link(ctx, link.Request{Halves: halves, Common: o.source, Release: o.Kernel, Version: o.Version, Work: filepath.Dir(o.destination)})
	if err != nil {
		return err
	}
	d.Log.Info("modules are linked", "kernel", o.Kernel, "kind", o.Kind)
	return errors.Join(os.RemoveAll(o.destination), os.Rename(linked, o.destination))
}

// moduleCache returns the node's cache of obtained modules.
func (d *Driver) moduleCache() cache.Cache {
	c := cache.Cache{Dir: d.Sources.Cache}
	if c.Dir != "" {
		c.Dir = filepath.Join(c.Dir, "kernels")
	}
	return c
}

// cacheKey returns the key of the requested modules in the node's cache. It includes the
// kernel's version, which has the time of its build, since a release may be built twice.
func (d *Driver) cacheKey(o buildRequest) (string, error) {
	version, err := d.System.Version()
	if err != nil {
		return "", err
	}
	h := folder.NewDigest("kernels", o.Kernel, version, o.Kind, o.Version, o.Sources, o.Signer)
	h.Add(o.Names...)
	return h.String(), nil
}

// restoreCached takes the modules from the node's cache.
func (d *Driver) restoreCached(ctx context.Context, o buildRequest) error {
	key, err := d.cacheKey(o)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(o.destination); err != nil {
		return err
	}
	if err := d.moduleCache().Get(ctx, key, o.destination); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.Log.Warn("cached modules cannot be read", "err", err)
		}
		return errNoSource
	}
	if err := d.acceptModules(o); err != nil {
		return errors.Join(fmt.Errorf("cached modules: %w", err), os.RemoveAll(o.destination))
	}
	d.Log.Info("modules are taken from those that this node keeps", "kernel", o.Kernel, "kind", o.Kind, "key", key[:12])
	if exists(d.unpushed(key)) { // built by this node, which stopped before the push
		d.builtRequest = &o
	}
	return nil
}

// unpushed returns the file that marks cached modules as built by this node and not pushed to
// the registry yet.
func (d *Driver) unpushed(key string) string { return filepath.Join(d.Sources.Cache, "unpushed-"+key) }

// cacheModules caches built or pulled modules.
func (d *Driver) cacheModules(ctx context.Context, o buildRequest, built bool) {
	key, err := d.cacheKey(o)
	if err == nil {
		err = d.moduleCache().Put(ctx, key, o.destination)
	}
	if err == nil && built && d.Sources.Cache != "" && d.Sources.Prebuilt.Repository != "" {
		err = os.WriteFile(d.unpushed(key), nil, 0o644)
	}
	if err != nil { // the cache only saves time
		d.Log.Warn("modules were not cached on this node", "err", err)
	}
}

// checkSigner rejects modules that are not signed by the configured certificate's key, if any.
func (d *Driver) checkSigner(o buildRequest) error {
	if d.Sources.SignCertificate == "" {
		return nil
	}
	by, err := sign.LoadCertificate(d.Sources.SignCertificate)
	if err != nil {
		return err
	}
	for _, name := range o.Names {
		if err := sign.Verify(filepath.Join(o.destination, name+".ko"), by); err != nil {
			return &kernel.Error{Reason: kernel.ReasonSignatureRejected, Message: err.Error(), Err: err}
		}
	}
	return nil
}

// buildModules compiles the modules, here or in the Driver Toolkit's container, and signs them.
func (d *Driver) buildModules(ctx context.Context, o buildRequest) error {
	if !o.canBuild {
		return errNoSource
	}
	if err := d.publish(nodestate.Waiting, ReasonStarting, "the driver's modules are being built for kernel "+o.Kernel); err != nil {
		return err
	}
	compile := d.buildHere
	if d.Sources.Toolkit != "" {
		compile = d.buildInToolkit
	}
	built, err := compile(ctx, o)
	if err != nil {
		return err
	}
	if err := d.signModules(built); err != nil {
		return errors.Join(err, os.RemoveAll(built))
	}
	if err := errors.Join(os.RemoveAll(o.destination), os.Rename(built, o.destination), os.Chmod(o.destination, 0o755)); err != nil {
		return err
	}
	d.Log.Info("modules are built", "kernel", o.Kernel, "kind", o.Kind, "by", builderName(d.Sources.Toolkit))
	d.cacheModules(ctx, o, true)
	d.builtRequest = &o
	return nil
}

// builderName names the container that compiles, for the log.
func builderName(toolkit string) string {
	if toolkit != "" {
		return "the Driver Toolkit"
	}
	return "this container"
}

// signModules signs the modules in a folder, if there is a key.
func (d *Driver) signModules(dir string) error {
	if d.Sources.SignKey == "" {
		return nil
	}
	key, err := sign.LoadKey(d.Sources.SignKey, d.Sources.SignCertificate)
	if err != nil {
		return err
	}
	return key.SignAll(dir)
}

// buildHere compiles the modules in this container and returns a folder with them.
func (d *Driver) buildHere(ctx context.Context, o buildRequest) (string, error) {
	headers, err := build.FindHeaders(d.Sources.Root, o.Kernel)
	if err != nil {
		return "", &kernel.Error{Reason: build.ReasonBuildFailed, Message: err.Error(), Err: err}
	}
	r := build.Request{
		Source: o.source, SourceDigest: o.Sources, Headers: headers, Release: o.Kernel, Version: o.Version,
		Modules: o.Names, Kind: o.Kind, Work: filepath.Dir(o.destination), Log: d.Log,
	}
	if d.Sources.Cache != "" {
		r.Conftest.Dir = filepath.Join(d.Sources.Cache, "conftest")
	}
	return build.Compile(ctx, r)
}

// buildInToolkit compiles the modules in the Driver Toolkit's container and returns a folder
// with them.
func (d *Driver) buildInToolkit(ctx context.Context, o buildRequest) (string, error) {
	m := toolkit.Client{
		Dir: d.Sources.Toolkit, Program: "/proc/self/exe", Source: o.source, Work: filepath.Dir(o.destination), Log: d.Log,
		Request:      toolkit.Request{Release: o.Kernel, Version: o.Version, Kind: o.Kind, Modules: o.Names, Sources: o.Sources},
		ImageMissing: os.Getenv("RHCOS_IMAGE_MISSING") == "true", OSVersion: os.Getenv("RHCOS_VERSION"),
	}
	if err := m.Prepare(ctx); err != nil {
		return "", err
	}
	return m.Wait(ctx)
}
