package cli

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/program"
)

const buildUsage = `Compile the driver's kernel modules for a kernel, and put them into a folder that is
shaped as an image's: OUT/lib/modules/RELEASE. What was compiled once with the same
sources, headers, compiler and flags is taken from --cache.

It needs make and the compiler that built the kernel, and the kernel's headers below
--headers-root, where packages put them: usr/src/kernels/RELEASE (kernel-devel),
usr/src/linux-headers-RELEASE (linux-headers), lib/modules/RELEASE/build.

Examples:
  gpu-driver build --source kernel-open --out /driver
  gpu-driver build --source kernel-open --kernel 6.1.0-50-amd64 --headers-root /mnt --out out --cache /var/cache/gpuready
`

// builtModules describes the modules that build made, for its output.
type builtModules struct {
	Kernel  string   `json:"kernel"`
	Version string   `json:"version"`
	Digest  string   `json:"digest"` // of all that the modules depend on
	Cached  bool     `json:"cached"` // nothing was compiled
	Modules []string `json:"modules"`
}

func buildModules(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("build", buildUsage, stdout)
	var r build.Request
	var headersRoot, out, kept, key, certificate, format string
	o.StringVar(&r.Source, "source", "", "folder of the driver's sources: kernel-open of NVIDIA's driver, or any that Kbuild builds")
	o.StringVar(&r.Release, "kernel", "", "release of the kernel, as uname -r prints it (default: the one that runs)")
	o.StringVar(&headersRoot, "headers-root", "/", "folder below which the kernel's headers are installed")
	o.StringVar(&out, "out", "", "folder that gets lib/modules/RELEASE")
	o.StringSliceVar(&r.Modules, "modules", []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}, "modules that are wanted")
	o.StringVar(&r.Version, "driver-version", "", "version that the modules have to have (default: any)")
	o.StringToStringVar(&r.Variables, "variable", nil, "further variables of make, NAME=VALUE")
	o.StringVar(&kept, "cache", "", "folder in which compiled modules are kept (default: nowhere)")
	o.StringVar(&key, "sign-key", "", "file of the private key that signs the modules, RSA in PEM (default: they are not signed)")
	o.StringVar(&certificate, "sign-certificate", "", "file of its certificate, PEM or DER, which the kernel has to trust")
	o.IntVar(&r.Jobs, "jobs", 0, "compilers at a time (default: one for each core)")
	o.DurationVar(&r.Timeout, "timeout", time.Hour, "after which the build has failed")
	o.Format(&o.logFormat)
	o.addOutput(&format)
	if err := errors.Join(o.Read(args), o.Lone(), checkOutput(format)); err != nil {
		return err
	}
	if r.Source == "" || out == "" {
		return program.Wrong("build needs --source and --out; see gpu-driver build --help")
	}
	if (key == "") != (certificate == "") {
		return program.Wrong("--sign-key and --sign-certificate go together")
	}
	var err error
	if r.Log, err = program.Log(stderr, "driver", o.logFormat, ""); err != nil {
		return err
	}
	if r.Release == "" {
		if r.Release, err = kernel.Release(); err != nil {
			return err
		}
	}
	if r.Headers, err = build.FindHeaders(headersRoot, r.Release); err != nil {
		return refused(&kernel.Error{Reason: build.ReasonBuildFailed, Message: err.Error(), Err: err})
	}
	to := filepath.Join(out, "lib/modules", r.Release)
	begun := time.Now()
	digest, cached, err := build.CompileOnce(ctx, r, cache.Cache{Dir: kept}, to)
	if err != nil {
		return refused(err)
	}
	if err := signModules(to, key, certificate); err != nil {
		return refused(err)
	}
	b := builtModules{Kernel: r.Release, Digest: digest, Cached: cached}
	if b.Modules, err = filepath.Glob(filepath.Join(to, "*.ko")); err != nil || len(b.Modules) == 0 {
		return err
	}
	i, err := readModule(b.Modules[0])
	if err != nil {
		return err
	}
	b.Version = i.Version
	if format == "json" {
		return writeJSON(stdout, b)
	}
	for _, m := range b.Modules {
		fmt.Fprintln(stdout, m)
	}
	if b.Cached {
		fmt.Fprintf(stdout, "driver %s for kernel %s: nothing was compiled, %s is in %s\n", b.Version, b.Kernel, b.Digest[:12], kept)
	} else {
		fmt.Fprintf(stdout, "driver %s for kernel %s: compiled in %v\n", b.Version, b.Kernel, time.Since(begun).Round(time.Second))
	}
	return nil
}

// signModules signs the modules in a folder, if a key is named.
func signModules(dir, keyFile, certificateFile string) error {
	if keyFile == "" {
		return nil
	}
	key, err := sign.LoadKey(keyFile, certificateFile)
	if err != nil {
		return err
	}
	modules, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	for _, m := range modules {
		err = errors.Join(err, key.Sign(m, crypto.SHA256))
	}
	return err
}
