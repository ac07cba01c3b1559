// Package build compiles the driver's kernel modules for a kernel from their sources and the
// kernel's headers. Of its subpackages, cache stores compiled modules, link links modules from
// two halves, of which the kernel-dependent one was compiled before, and sign signs them.
//
// Compile runs make(1) and the compiler that built the kernel, without a shell of its own. Its
// output depends only on its Request: the same Request gives the same bytes in any folder, and
// Digest identifies them.
package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
)

// ReasonBuildFailed is the reason of a kernel.Error of this package.
const ReasonBuildFailed = output.ReasonBuildFailed

// defaultTimeout is the default of Request.Timeout. NVIDIA's modules take five minutes of one
// core.
const defaultTimeout = time.Hour

// Request describes a build: sources, headers, and the modules that are wanted.
type Request struct {
	// Source is a folder that Kbuild builds: NVIDIA's kernel-open, or any other with a
	// Kbuild file. It is copied and stays unchanged.
	Source  string
	Headers Headers
	Release string   // of the kernel, as uname -r prints it
	Modules []string // wanted modules: "nvidia-uvm"; empty: all
	Version string   // of the driver; "": any
	Kind    string   // "open" or "proprietary", for Digest and messages
	Halves  bool     // CompileOnce makes what CompileHalves makes
	// SourceDigest replaces the content of Source in Digest; "": all files are read.
	SourceDigest string
	Variables    map[string]string // of make, besides those that Compile sets

	Work     string        // folder for output and temporary files
	Conftest cache.Cache   // for the results of NVIDIA's tests of the kernel; the zero value: none
	Jobs     int           // parallel compilers; 0: one for each core
	Timeout  time.Duration // after which the build has failed; 0: one hour
	Log      *slog.Logger  // of progress; may be nil
}

// describeModules describes the modules to build.
func (r *Request) describeModules() string {
	s := "the driver's modules"
	if r.Version != "" {
		s = "the modules of driver " + r.Version
	}
	return s + " for kernel " + r.Release
}

// buildError returns err as an Error with ReasonBuildFailed.
func (r *Request) buildError(err error) error {
	return output.BuildError("build "+r.describeModules(), err)
}

// Compile compiles the wanted modules and returns a new folder below r.Work that holds only
// them: "nvidia.ko", "nvidia-uvm.ko". The caller removes the folder.
//
// The error is ctx's if that has ended, and otherwise a *kernel.Error with ReasonBuildFailed.
// It wraps an *output.Failure if the compiler's output has one.
func Compile(ctx context.Context, r Request) (dir string, err error) {
	return compileAndCollect(ctx, r, r.collectModules)
}

// compileAndCollect runs a build, and then collect, which moves the results out of its tree.
func compileAndCollect(ctx context.Context, r Request, collect func(t *tree, to string) error) (dir string, err error) {
	r.setDefaults()
	t, err := r.prepareTree(ctx)
	if t != nil {
		defer func() { err = errors.Join(err, t.remove()) }()
	}
	if err == nil {
		err = t.runMake(ctx)
	}
	if err == nil {
		dir, err = r.fillOutput(t, collect)
	}
	if err == nil {
		if err := t.storeConftest(ctx); err != nil { // the cache only saves time
			r.Log.Warn("storing the tests of the kernel failed", "error", err)
		}
		return dir, nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return "", r.buildError(err)
}

// setDefaults sets fields that the caller left empty.
func (r *Request) setDefaults() {
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	if r.Jobs == 0 {
		r.Jobs = runtime.NumCPU()
	}
	if r.Timeout == 0 {
		r.Timeout = defaultTimeout
	}
	if r.Headers.Output == "" {
		r.Headers.Output = r.Headers.Source
	}
}

// fillOutput creates a folder that collect fills.
func (r *Request) fillOutput(t *tree, collect func(t *tree, to string) error) (string, error) {
	dir, err := os.MkdirTemp(r.Work, "modules-")
	if err != nil {
		return "", err
	}
	if err := collect(t, dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// collectModules moves the wanted modules out of the tree.
func (r *Request) collectModules(t *tree, to string) error {
	names, err := r.listBuilt(t)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(t.dir, name+".ko"), filepath.Join(to, name+".ko")); err != nil {
			return err
		}
	}
	return kernel.CheckBuilt(to, names, r.Release, r.Version)
}

// listBuilt returns the names of the wanted modules, or an error if the tree lacks one.
func (r *Request) listBuilt(t *tree) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(t.dir, "*.ko"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range found {
		name := filepath.Base(f)
		names = append(names, name[:len(name)-len(".ko")])
	}
	for _, name := range r.Modules {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("make built no %s.ko; %s has no such module", name, r.Source)
		}
	}
	if len(r.Modules) > 0 {
		return r.Modules, nil
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("make built no module; %s is not a folder with a driver's sources", r.Source)
	}
	return names, nil
}
