package build

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/sign"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

// CompileHalves compiles as Compile does. It returns a new folder below r.Work with the inputs
// of link.Link, except the objects that are the same for all kernels.
func CompileHalves(ctx context.Context, r Request) (dir string, err error) {
	return compileAndCollect(ctx, r, r.collectHalves)
}

func (r *Request) collectHalves(t *tree, to string) error {
	names, err := r.listBuilt(t)
	if err != nil {
		return err
	}
	if err := kernel.CheckBuilt(t.dir, names, r.Release, r.Version); err != nil {
		return err
	}
	all := link.Halves{Release: r.Release, Version: r.Version}
	for _, name := range names {
		if name == "nvidia" {
			m, err := readModule(t.dir, "/nvidia.ko")
			if err != nil {
				return err
			}
			all.Kind, all.Version = string(m.Kind()), m.Version
		}
		h, err := t.copyHalf(name, to)
		if err != nil {
			return fmt.Errorf("%s.ko: %w", name, err)
		}
		all.Modules = append(all.Modules, h)
	}
	return all.Write(to)
}

func readModule(dir, name string) (kernel.Module, error) {
	root, err := host.Open(dir)
	if err != nil {
		return kernel.Module{}, err
	}
	defer root.Close() //nolint:errcheck // it is only read
	return kernel.ReadModule(root, name)
}

// SignHalves signs the modules that link.Link links from l.Halves. It stores the signatures
// there: a node without the key appends them to the modules that it links.
func SignHalves(ctx context.Context, l link.Request, key sign.Key) (err error) {
	linked, err := link.Link(ctx, l)
	if err != nil {
		return err
	}
	return errors.Join(StoreSignatures(l.Halves, linked, key), os.RemoveAll(linked))
}

// StoreSignatures signs the modules in a folder and stores the signatures with the halves from
// which they were linked. It runs no program.
func StoreSignatures(halves, linked string, key sign.Key) error {
	all, err := link.Read(halves)
	if err != nil {
		return err
	}
	for i := range all.Modules {
		m := &all.Modules[i]
		signature, err := key.Signature(filepath.Join(linked, m.Name+".ko"), crypto.SHA256)
		if err != nil {
			return err
		}
		m.Signature = filepath.Join(m.Name, "signature")
		if err := os.WriteFile(filepath.Join(halves, m.Signature), signature, 0o644); err != nil {
			return err
		}
	}
	return all.Write(halves)
}

// copyHalf copies the kernel-dependent part of one module.
func (t *tree) copyHalf(name, to string) (link.Half, error) {
	last, err := t.readCommand(name + ".ko")
	if err != nil {
		return link.Half{}, err
	}
	h := link.Half{Name: name, Linker: filepath.Base(last.program), Flags: last.flags}
	if err := os.Mkdir(filepath.Join(to, name), 0o755); err != nil {
		return link.Half{}, err
	}
	// copyVisible copies a file under a name that is not hidden.
	copyVisible := func(from string) (string, error) {
		at := filepath.Join(name, fmt.Sprintf("%d-%s", len(h.Objects)+len(h.Rest), strings.TrimPrefix(filepath.Base(from), ".")))
		return at, folder.CopyFile(from, filepath.Join(to, at))
	}
	if last.script != "" {
		if h.Script, err = copyVisible(t.resolvePath(last.script)); err != nil {
			return link.Half{}, err
		}
	}
	objects, err := t.sharedObjects(name, last.objects[0])
	if err != nil {
		return link.Half{}, err
	}
	for _, from := range objects {
		o, err := t.describeObject(from)
		if err == nil && o.Common == "" {
			o.Path, err = copyVisible(from)
		}
		if err != nil {
			return link.Half{}, err
		}
		h.Objects = append(h.Objects, o)
	}
	for _, from := range last.objects[1:] {
		at, err := copyVisible(from)
		if err != nil {
			return link.Half{}, err
		}
		h.Rest = append(h.Rest, at)
	}
	if len(objects) > 1 {
		h.Objtool, err = t.copyObjtool(name+".o", to)
	}
	return h, err
}

// sharedObjects returns the objects from which a module's own object was linked, if one of them is
// the same for all kernels. Otherwise it returns the module's own object.
func (t *tree) sharedObjects(name, whole string) ([]string, error) {
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
		if o, err := t.describeObject(path); err != nil || o.Common != "" {
			return all, err
		}
	}
	return []string{whole}, nil
}

// describeObject returns the path of an object in the sources, and its digest, if make has
// only made a link to it. Otherwise both are empty.
func (t *tree) describeObject(path string) (link.Object, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return link.Object{}, err
	}
	source, err := filepath.EvalSymlinks(t.Source)
	if err != nil {
		return link.Object{}, err
	}
	rel, err := filepath.Rel(source, real)
	if err != nil || !filepath.IsLocal(rel) || link.Name(rel) != filepath.Base(path) {
		return link.Object{}, err
	}
	sum, err := folder.SumFile(real)
	return link.Object{Common: rel, SHA256: sum}, err
}
