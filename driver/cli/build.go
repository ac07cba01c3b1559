package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/image"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/program"
)

const buildUsage = `Compile the driver's kernel modules for a kernel into a folder that is laid out like an
image: OUT/lib/modules/RELEASE. Modules that were compiled before with the same sources,
headers, compiler and flags are taken from --cache.

It needs make and the compiler that built the kernel, and the kernel's headers below
--headers-root, where packages put them: usr/src/kernels/RELEASE (kernel-devel),
usr/src/linux-headers-RELEASE (linux-headers), lib/modules/RELEASE/build.

Examples:
  gpu-driver build --source kernel-open --out /driver
  gpu-driver build --source kernel-open --kernel 6.1.0-50-amd64 --headers-root /mnt \
    --out out --cache /var/cache/gpuready
`

// builtModules describes the modules that build made, for its output.
type builtModules struct {
	Kernel  string   `json:"kernel"`
	Version string   `json:"version"`
	Digest  string   `json:"digest"` // of all inputs of the modules
	Cached  bool     `json:"cached"` // nothing was compiled
	Modules []string `json:"modules"`
}

func buildModules(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("build", buildUsage, stdout)
	var r build.Request
	var headersRoot, out, cacheDir, tools, linked, format string
	o.StringVar(&r.Source, "source", "", "folder of the driver's sources: kernel-open of NVIDIA's driver, or any that Kbuild builds")
	o.StringVar(&r.Release, "kernel", "", "release of the kernel, as uname -r prints it (default: the one that runs)")
	o.StringVar(&headersRoot, "headers-root", "/", "folder below which the kernel's headers are installed")
	o.StringVar(&out, "out", "", "folder that gets lib/modules/RELEASE")
	o.StringSliceVar(&r.Modules, "modules", []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}, "modules that are wanted")
	o.StringVar(&r.Version, "driver-version", "", "version that the modules have to have (default: any)")
	o.StringToStringVar(&r.Variables, "variable", nil, "further variables of make, NAME=VALUE")
	o.StringVar(&cacheDir, "cache", "", "folder that caches compiled modules (default: none)")
	o.BoolVar(&r.Halves, "halves", false, "compile only the kernel-dependent halves: OUT/lib/modules/RELEASE/halves/KIND, which gpu-driver run links with the driver's own objects")
	o.StringVar(&tools, "tools", "", "with --halves, a new folder for the linker and the libraries that link them where none is installed")
	o.StringVar(&linked, "linked", "", "with --tools, a new folder for the modules, linked with them")
	o.addSigning()
	o.IntVar(&r.Jobs, "jobs", 0, "compilers at a time (default: one for each core)")
	o.DurationVar(&r.Timeout, "timeout", time.Hour, "after which the build has failed")
	o.AddLogFormat(&o.logFormat)
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), o.RefuseArgs(), checkOutput(format)); err != nil {
		return err
	}
	if r.Source == "" || out == "" {
		return program.UsageErrorf("build needs --source and --out; see gpu-driver build --help")
	}
	if tools != "" && !r.Halves || linked != "" && tools == "" {
		return program.UsageErrorf("--tools goes with --halves, and --linked with --tools")
	}
	if err := o.checkSources(); err != nil {
		return err
	}
	var err error
	if r.Log, err = program.NewLog(stderr, "driver", o.logFormat, ""); err != nil {
		return err
	}
	if r.Release == "" {
		if r.Release, err = kernel.Host.Release(); err != nil {
			return err
		}
	}
	if r.Headers, err = build.FindHeaders(headersRoot, r.Release); err != nil {
		return withReasonCode(&kernel.Error{Reason: build.ReasonBuildFailed, Message: err.Error(), Err: err})
	}
	begun := time.Now()
	b, err := o.compileModules(ctx, r, out, cacheDir)
	if err == nil && tools != "" {
		err = o.linkHalves(ctx, r, filepath.Dir(b.Modules[0]), tools, linked)
	}
	if err != nil {
		return withReasonCode(err)
	}
	if format == "json" {
		return writeJSON(stdout, b)
	}
	for _, m := range b.Modules {
		fmt.Fprintln(stdout, m)
	}
	if b.Cached {
		fmt.Fprintf(stdout, "driver %s for kernel %s: nothing was compiled, %s is in %s\n", b.Version, b.Kernel, b.Digest[:12], cacheDir)
	} else {
		fmt.Fprintf(stdout, "driver %s for kernel %s: compiled in %v\n", b.Version, b.Kernel, time.Since(begun).Round(time.Second))
	}
	return nil
}

// linkHalves copies the tools that link halves, and links the modules with them if requested.
func (o *options) linkHalves(ctx context.Context, r build.Request, halves, tools, linked string) error {
	if err := link.CopyTools(ctx, halves, tools); err != nil || linked == "" {
		return err
	}
	built, err := link.Link(ctx, link.Request{
		Halves: halves, Common: r.Source, Release: r.Release, Version: r.Version, Work: filepath.Dir(linked), Tools: tools,
	})
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(built, linked), os.Chmod(linked, 0o755))
}

// compileModules builds and signs the requested modules or halves.
func (o *options) compileModules(ctx context.Context, r build.Request, out, cacheDir string) (b builtModules, err error) {
	var key *sign.Key
	if o.signKey != "" {
		k, err := sign.LoadKey(o.signKey, o.signCertificate)
		if err != nil {
			return b, err
		}
		key = &k
	}
	to := filepath.Join(out, "lib/modules", r.Release)
	b = builtModules{Kernel: r.Release}
	if r.Halves {
		to = filepath.Join(to, image.HalvesName, "new")
		if err := os.RemoveAll(to); err != nil {
			return b, err
		}
	}
	if b.Digest, b.Cached, err = build.CompileOnce(ctx, r, cache.Cache{Dir: cacheDir}, to); err != nil {
		return b, err
	}
	if r.Halves {
		if err := b.finishHalves(ctx, r, to, key); err != nil {
			return b, errors.Join(err, os.RemoveAll(to))
		}
		return b, nil
	}
	if key != nil {
		if err := key.SignAll(to); err != nil {
			return b, err
		}
	}
	if b.Modules, err = filepath.Glob(filepath.Join(to, "*.ko")); err != nil || len(b.Modules) == 0 {
		return b, err
	}
	i, err := readModule(b.Modules[0])
	b.Version = i.Version
	return b, err
}

// finishHalves signs halves and moves them to the folder of their kind.
func (b *builtModules) finishHalves(ctx context.Context, r build.Request, dir string, key *sign.Key) error {
	if key != nil {
		err := build.SignHalves(ctx, link.Request{Halves: dir, Common: r.Source, Release: r.Release, Version: r.Version, Work: filepath.Dir(dir)}, *key)
		if err != nil {
			return err
		}
	}
	all, err := link.Read(dir)
	if err != nil {
		return err
	}
	if all.Kind == "" {
		return fmt.Errorf("%s has no module nvidia: halves need a driver", r.Source)
	}
	b.Version = all.Version
	to := filepath.Join(filepath.Dir(dir), all.Kind)
	b.Modules = []string{filepath.Join(to, link.FileName)}
	return errors.Join(os.RemoveAll(to), os.Rename(dir, to))
}
