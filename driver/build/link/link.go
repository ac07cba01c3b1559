// Package link links modules from two halves on a node without headers and compiler.
//
// NVIDIA ships nvidia.ko and nvidia-modeset.ko as two halves: a large object that is the same
// for all kernels (nv-kernel.o_binary), and sources that need a kernel's headers.
// build.CompileHalves compiles the kernel-dependent half, a few hundred kilobytes, where there
// are headers and a compiler. Link does the rest, in a second.
package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// FileName is the file in which build.CompileHalves lists its output.
const FileName = "halves.json"

// ObjtoolDir is the folder with the kernel's objtool, if it was run.
const ObjtoolDir = "objtool"

const maxHalves = 1 << 20

// Halves lists the objects that build.CompileHalves made. Paths are relative to its folder.
type Halves struct {
	Release string `json:"release"`
	Version string `json:"version"`
	Kind    string `json:"kind,omitempty"` // "open" or "proprietary"; "" where there is no nvidia.ko
	Modules []Half `json:"modules"`
}

// Half is the half of one module, with the commands by which Kbuild linked it.
type Half struct {
	Name   string   `json:"name"`
	Linker string   `json:"linker"`
	Flags  []string `json:"flags"`
	Script string   `json:"script,omitempty"`
	// Objects are linked to one object, if they are several. Objtool is run on it if there are
	// arguments for objtool. That object and Rest make the module.
	Objects []Object `json:"objects"`
	Objtool []string `json:"objtool,omitempty"`
	Rest    []string `json:"rest"`
	// Signature is a file that is appended to the module. It was signed where the key was.
	Signature string `json:"signature,omitempty"`
}

// Object is a compiled file: one for this kernel, or one that all kernels share.
type Object struct {
	Path string `json:"path,omitempty"`
	// Common is a path relative to the driver's sources, and SHA256 its digest.
	Common string `json:"common,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Request describes the modules to link, and their inputs.
type Request struct {
	Halves  string // the folder that build.CompileHalves returned
	Common  string // the driver's sources, with the objects that are the same for all kernels
	Release string // of the kernel, as uname -r prints it
	Version string // of the driver; "": any
	Work    string // folder for the output
	Tools   string // folder that CopyTools made; "": ToolsDir if it exists, else the machine's own programs
}

// Link links modules and returns a new folder below r.Work that holds only them. The same
// halves give the same bytes, which are those that Kbuild produces. The caller removes the
// folder.
//
// The error is ctx's if that has ended, and otherwise a *kernel.Error with
// output.ReasonBuildFailed.
func Link(ctx context.Context, r Request) (dir string, err error) {
	defer func() {
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			return
		}
		err = output.BuildError(fmt.Sprintf("link the modules of driver %s for kernel %s", r.Version, r.Release), err)
	}()
	work, err := os.MkdirTemp(r.Work, "link-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	to, err := os.MkdirTemp(r.Work, "modules-")
	if err != nil {
		return "", err
	}
	if err := r.linkModules(ctx, work, to); err != nil {
		return "", errors.Join(err, os.RemoveAll(to))
	}
	return to, nil
}

func (r *Request) linkModules(ctx context.Context, work, to string) error {
	all, err := Read(r.Halves)
	if err != nil {
		return err
	}
	if all.Release != r.Release {
		return fmt.Errorf("%s is of kernel %s, not of %s", r.Halves, record.Clean(all.Release, 100), r.Release)
	}
	var names []string
	for _, h := range all.Modules {
		if err := r.linkModule(ctx, h, work, to); err != nil {
			return fmt.Errorf("%s.ko: %w", h.Name, err)
		}
		names = append(names, h.Name)
	}
	return kernel.CheckBuilt(to, names, r.Release, r.Version)
}

// Read reads the list in a folder of build.CompileHalves. It rejects paths that lead out of the
// folders, and programs and flags with which Kbuild does not link.
func Read(dir string) (all Halves, err error) {
	root, err := host.Open(dir)
	if err != nil {
		return all, err
	}
	defer root.Close() //nolint:errcheck // it is only read
	text, err := root.ReadFile("/"+FileName, maxHalves)
	if err != nil {
		return all, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return all, fmt.Errorf("%s: %w", root.Path(FileName), err)
	}
	for _, h := range all.Modules {
		if err := h.checkPaths(); err != nil {
			return all, fmt.Errorf("%s: %w", root.Path(FileName), err)
		}
	}
	return all, nil
}

// Names returns the names of the modules.
func (all Halves) Names() (names []string) {
	for _, h := range all.Modules {
		names = append(names, h.Name)
	}
	return names
}

// Write writes the list to such a folder.
func (all Halves) Write(dir string) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, FileName), append(text, '\n'), 0o644)
}

// linkerPattern matches the linkers of kernels, and flagPattern their flags: the format of the
// output, "-z" and its keywords, and flags of architectures. It matches no flag that makes the
// linker load a file.
var (
	linkerPattern = regexp.MustCompile(`^([a-z0-9_]+-)*ld(\.bfd|\.lld)?$`)
	flagPattern   = regexp.MustCompile(`^(-[mzXS]|-E[LB]|-m[a-z0-9_]+|[a-z][a-z0-9_-]*(=[a-z0-9]+)?|--build-id(=[a-z0-9]+)?|--no-[a-z-]+|--fix-[a-z0-9-]+|--strip-debug|--emit-relocs|--orphan-handling=[a-z]+|--compress-debug-sections=[a-z]+|-import-instr-limit=[0-9]+)$`)
)

// checkPaths rejects paths that lead out of the folders, and programs and flags that could do more
// than link.
func (h Half) checkPaths() error {
	if !linkerPattern.MatchString(h.Linker) {
		return fmt.Errorf("module %q: %q is not a linker", record.Clean(h.Name, 100), record.Clean(h.Linker, 100))
	}
	for _, f := range h.Flags {
		if !flagPattern.MatchString(f) {
			return fmt.Errorf("module %q: %q is not a flag for linking modules", record.Clean(h.Name, 100), record.Clean(f, 100))
		}
	}
	paths := append([]string{h.Name}, h.Rest...)
	for _, p := range []string{h.Script, h.Signature} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	for _, o := range h.Objects {
		if o.Path != "" && o.Common != "" {
			return fmt.Errorf("module %q: an object has a path or is one of the driver's, not both: %q, %q",
				record.Clean(h.Name, 100), record.Clean(o.Path, 100), record.Clean(o.Common, 100))
		}
		paths = append(paths, o.Path+o.Common)
	}
	for _, p := range paths {
		if !filepath.IsLocal(p) {
			return fmt.Errorf("module %q: %q is not a local path", record.Clean(h.Name, 100), record.Clean(p, 100))
		}
	}
	if filepath.Base(h.Name) != h.Name || h.Name == "." || len(h.Objects) == 0 {
		return fmt.Errorf("%q is not a module", record.Clean(h.Name, 100))
	}
	return nil
}

// linkModule runs the linker as Kbuild does: once for the module's objects, and once, with the
// kernel's script, to add the objects of modpost.
func (r *Request) linkModule(ctx context.Context, h Half, work, to string) error {
	t := newTools(r.Tools)
	linker, err := t.findLinker(h.Linker)
	if err != nil {
		return err
	}
	objects, err := r.findObjects(h.Objects, filepath.Join(work, h.Name))
	if err != nil {
		return err
	}
	if len(objects) > 1 {
		joined := filepath.Join(work, h.Name+".o")
		args := append([]string{"-r"}, withoutBuildID(h.Flags)...)
		args = append(append(args, "-o", joined), objects...)
		if err := t.runProgram(ctx, work, linker, args...); err != nil {
			return err
		}
		if len(h.Objtool) > 0 {
			if err := t.runProgram(ctx, work, findObjtool(r.Halves), append(h.Objtool, joined)...); err != nil {
				return err
			}
		}
		objects = []string{joined}
	}
	for _, name := range h.Rest {
		objects = append(objects, filepath.Join(r.Halves, name))
	}
	args := append([]string{"-r"}, h.Flags...)
	if h.Script != "" {
		args = append(args, "-T", filepath.Join(r.Halves, h.Script))
	}
	module := filepath.Join(to, h.Name+".ko")
	args = append(args, "-o", module)
	if err := t.runProgram(ctx, work, linker, append(args, objects...)...); err != nil || h.Signature == "" {
		return err
	}
	return appendFile(module, filepath.Join(r.Halves, h.Signature))
}

func appendFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Name returns the name by which Kbuild links an object of the driver's sources:
// nv-kernel.o of nvidia/nv-kernel.o_binary.
func Name(common string) string { return strings.TrimSuffix(filepath.Base(common), "_binary") }

// findObjects returns the paths of objects. It verifies that objects for all kernels belong to the
// driver with which the others were compiled. It links to these in a new folder by their names
// in Kbuild, since the linker writes the name of an object without debug symbols into the
// module.
func (r *Request) findObjects(objects []Object, links string) ([]string, error) {
	if err := os.Mkdir(links, 0o755); err != nil {
		return nil, err
	}
	var paths []string
	for i, o := range objects {
		if o.Common == "" {
			paths = append(paths, filepath.Join(r.Halves, o.Path))
			continue
		}
		path := filepath.Join(r.Common, o.Common)
		sum, err := folder.SumFile(path)
		if err != nil {
			return nil, err
		}
		if sum != o.SHA256 {
			return nil, fmt.Errorf("%s is of another driver than %s", path, r.Halves)
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		at := filepath.Join(links, fmt.Sprint(i))
		if err := errors.Join(os.Mkdir(at, 0o755), os.Symlink(path, filepath.Join(at, Name(path)))); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(at, Name(path)))
	}
	return paths, nil
}

// withoutBuildID returns a linker's flags without the one for a build ID, which only the
// module's own link has.
func withoutBuildID(flags []string) []string {
	var kept []string
	for _, f := range flags {
		if !strings.HasPrefix(f, "--build-id") {
			kept = append(kept, f)
		}
	}
	return kept
}

// runProgram runs a program.
func (t tools) runProgram(ctx context.Context, temp, program string, args ...string) error {
	env := append(output.Environment(temp), "SRCARCH="+KernelArch()) // for Debian's objtool
	program, args = t.command(program, args)
	return output.New(temp, slog.New(slog.DiscardHandler)).Run(ctx, env, program, args...)
}
