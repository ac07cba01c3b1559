package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/kernel"
)

// CompileHalves compiles as Compile does, and returns a new folder below r.Work with what
// link.Link needs besides the objects that are the same for all kernels.
func CompileHalves(ctx context.Context, r Request) (dir string, err error) {
	return compile(ctx, r, r.collectHalves)
}

func (r *Request) collectHalves(t *tree, to string) error {
	names, err := r.built(t)
	if err != nil {
		return err
	}
	if err := kernel.CheckBuilt(t.dir, names, r.Release, r.Version); err != nil {
		return err
	}
	all := link.Halves{Release: r.Release, Version: r.Version}
	for _, name := range names {
		h, err := t.takeHalf(name, to)
		if err != nil {
			return fmt.Errorf("%s.ko: %w", name, err)
		}
		all.Modules = append(all.Modules, h)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, link.FileName), append(text, '\n'), 0o644)
}

// takeHalf copies what depends on the kernel of one module.
func (t *tree) takeHalf(name, to string) (link.Half, error) {
	last, err := t.readCommand(name + ".ko")
	if err != nil {
		return link.Half{}, err
	}
	h := link.Half{Name: name, Linker: filepath.Base(last.program), Flags: last.flags}
	if err := os.Mkdir(filepath.Join(to, name), 0o755); err != nil {
		return link.Half{}, err
	}
	// take copies a file, under a name that is not hidden.
	take := func(from string) (string, error) {
		at := filepath.Join(name, fmt.Sprintf("%d-%s", len(h.Objects)+len(h.Rest), strings.TrimPrefix(filepath.Base(from), ".")))
		return at, folder.CopyFile(from, filepath.Join(to, at))
	}
	if last.script != "" {
		if h.Script, err = take(t.resolve(last.script)); err != nil {
			return link.Half{}, err
		}
	}
	objects, err := t.objects(name, last.objects[0])
	if err != nil {
		return link.Half{}, err
	}
	for _, from := range objects {
		o, err := t.describe(from)
		if err == nil && o.Common == "" {
			o.Path, err = take(from)
		}
		if err != nil {
			return link.Half{}, err
		}
		h.Objects = append(h.Objects, o)
	}
	for _, from := range last.objects[1:] {
		at, err := take(from)
		if err != nil {
			return link.Half{}, err
		}
		h.Rest = append(h.Rest, at)
	}
	if len(objects) > 1 {
		h.Objtool, err = t.takeObjtool(name+".o", to)
	}
	return h, err
}

// objects returns what a module's own object was linked of, where one of that is the same
// for all kernels, and otherwise that object.
func (t *tree) objects(name, whole string) ([]string, error) {
	c, err := t.readCommand(name + ".o")
	if errors.Is(err, errCommand) { // it was compiled, not linked
		return []string{whole}, nil
	}
	if err != nil {
		return nil, err
	}
	all := c.objects
	if list, ok := strings.CutPrefix(all[0], "@"); ok { // of the linker's arguments
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		all = strings.Fields(string(text))
	}
	for _, path := range all {
		if o, err := t.describe(path); err != nil || o.Common != "" {
			return all, err
		}
	}
	return []string{whole}, nil
}

// describe returns the path of an object in the sources, and its digest, if make has only
// linked to it; otherwise it returns neither.
func (t *tree) describe(path string) (link.Object, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return link.Object{}, err
	}
	source, err := filepath.EvalSymlinks(t.Source)
	if err != nil {
		return link.Object{}, err
	}
	rel, err := filepath.Rel(source, real)
	if err != nil || !filepath.IsLocal(rel) {
		return link.Object{}, err
	}
	sum, err := folder.SumFile(real)
	return link.Object{Common: rel, SHA256: sum}, err
}
