package build

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/output"
)

// tree is a copy of a driver's sources, in which make works.
type tree struct {
	*Request
	top      string // holds dir and temp
	dir      string
	temp     string
	compiler compiler
	conftest string // the digest of the inputs of NVIDIA's tests; "": results are not cached
	restored int    // number of their files from an earlier build
}

// prepareTree checks the inputs of the build and copies the sources. The tree, which may be nil,
// has to be removed after an error, too.
func (r *Request) prepareTree(ctx context.Context) (*tree, error) {
	for _, path := range []*string{&r.Source, &r.Work, &r.Headers.Source, &r.Headers.Output} { // make changes its working folder
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, err
		}
	}
	if err := r.Headers.checkComplete(r.Release); err != nil {
		return nil, err
	}
	c, err := findCompiler(ctx, r.Headers)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("make"); err != nil {
		return nil, fmt.Errorf("there is no make: %w; build in an image that has it", err)
	}
	top, err := os.MkdirTemp(r.Work, "build-")
	if err != nil {
		return nil, err
	}
	t := &tree{Request: r, top: top, dir: filepath.Join(top, "source"), temp: filepath.Join(top, "temp"), compiler: c}
	if err := os.Mkdir(t.temp, 0o755); err != nil {
		return t, err
	}
	if err := folder.Copy(ctx, r.Source, t.dir, true); err != nil {
		return t, err
	}
	return t, t.restoreConftest(ctx)
}

func (t *tree) remove() error { return os.RemoveAll(t.top) }

// isNVIDIA reports whether the tree is NVIDIA's, whose Makefile tests the kernel first.
func (t *tree) isNVIDIA() bool {
	_, err := os.Stat(filepath.Join(t.dir, "conftest.sh"))
	return err == nil
}

// versionFlag is the compiler's flag by which NVIDIA's Kbuild names the driver's version:
// -DNV_VERSION_STRING=\"535.261.03\".
var versionFlag = regexp.MustCompile(`-DNV_VERSION_STRING=\\"(\d+(?:\.\d+){1,2})\\"`)

// readVersion returns the driver's version by NVIDIA's sources; "" if they do not name it.
func (t *tree) readVersion() string {
	text, err := os.ReadFile(filepath.Join(t.dir, "Kbuild"))
	if err != nil {
		return ""
	}
	if m := versionFlag.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// cflags returns additional flags for the compiler: no debug symbols, which make the modules
// twenty times as large, and no name of the working folder in the output.
func (t *tree) cflags() string { return "-g0 -ffile-prefix-map=" + t.dir + "/=" }

// arguments returns the arguments of make.
func (t *tree) arguments() []string {
	args := []string{
		fmt.Sprintf("-j%d", t.Jobs),
		"CC=" + t.compiler.program,
		"KCFLAGS=" + t.cflags(),
		"CONFIG_DEBUG_INFO_BTF_MODULES=", // requires pahole, and nothing reads it
	}
	if t.compiler.llvm {
		args = append(args, "LLVM=1", "LD=ld.lld") // NVIDIA's Makefile needs LD, too
	}
	for _, name := range slices.Sorted(maps.Keys(t.Variables)) {
		args = append(args, name+"="+t.Variables[name])
	}
	h := t.Headers
	if t.isNVIDIA() {
		args = append(args, "-C", t.dir, "SYSSRC="+h.Source, "SYSOUT="+h.Output, "KERNEL_UNAME="+t.Release)
		if len(t.Modules) > 0 {
			args = append(args, "NV_KERNEL_MODULES="+strings.Join(t.Modules, " "))
		}
		return append(args, "modules")
	}
	args = append(args, "-C", h.Source, "M="+t.dir)
	if h.Output != h.Source {
		args = append(args, "O="+h.Output)
	}
	if len(t.Modules) == 0 {
		return append(args, "modules")
	}
	for _, name := range t.Modules {
		args = append(args, name+".ko")
	}
	return args
}

// runMake runs make. It kills the whole process group when ctx ends or the time is up.
func (t *tree) runMake(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	begun := time.Now()
	t.Log.Info("compiling modules", "kernel", t.Release, "version", t.Version, "compiler", t.compiler.version, "jobs", t.Jobs)
	out := output.New(t.dir, t.Log)
	out.Driver = cmp.Or(t.Version, t.readVersion())
	err := out.Run(bounded, output.Environment(t.temp), "make", t.arguments()...)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it did not end within %v; its last line: %s", t.Timeout, out.Last)
	}
	if err == nil {
		t.Log.Info("modules compiled", "kernel", t.Release, "objects", out.Objects, "took", time.Since(begun).Round(time.Millisecond))
	}
	return err
}
