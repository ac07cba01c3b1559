package kernel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// Limits on folders of modules.
const (
	maxList    = 16 << 20 // bytes of modules.dep; Debian's has 600 kB
	maxFound   = 4096     // files below a folder of drivers
	maxNesting = 8
)

// Module is a module file with its information.
type Module struct {
	Info
	Root *host.Root
	Path string // inside Root
}

// String names the module's file.
func (m Module) String() string { return m.Root.Path(m.Path) }

// Files holds the modules of one driver, by name.
type Files map[string]Module

// FindDrivers reads the modules below a folder of root, compressed or not, and returns the
// driver's modules by kind. These are in the folders with a module nvidia, whose licence
// determines the kind. Of several folders with the same kind, the one whose path sorts first
// counts. A missing folder has no drivers.
func FindDrivers(root *host.Root, dir string) (map[Kind]Files, error) {
	var folders []string
	byFolder := map[string]Files{}
	err := findFiles(root, dir, maxNesting, new(int), func(p string) error {
		m, err := ReadModule(root, p)
		if err != nil {
			return err
		}
		folder := path.Dir(p)
		if byFolder[folder] == nil {
			byFolder[folder] = Files{}
			folders = append(folders, folder)
		}
		if _, known := byFolder[folder][m.Name]; !known {
			byFolder[folder][m.Name] = m
		}
		return nil
	})
	byKind := map[Kind]Files{}
	for _, folder := range folders {
		main, isDriver := byFolder[folder]["nvidia"]
		if _, known := byKind[main.Kind()]; isDriver && !known {
			byKind[main.Kind()] = byFolder[folder]
		}
	}
	return byKind, err
}

// findFiles calls visit for each file of a module below dir, in the order of their paths.
func findFiles(root *host.Root, dir string, nesting int, seen *int, visit func(string) error) error {
	entries, err := root.ReadDirAtMost(dir, maxFound)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if *seen++; *seen > maxFound {
			return fmt.Errorf("%s: more than %d files; a driver's modules are in a folder of their own", root.Path(dir), maxFound)
		}
		p := path.Join(dir, e.Name())
		switch {
		case e.IsDir() && nesting > 0:
			err = findFiles(root, p, nesting-1, seen, visit)
		case e.Type().IsRegular() && isModule(e.Name()):
			err = visit(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isModule reports whether a file name is that of a module, compressed or not.
func isModule(name string) bool {
	name = path.Base(name)
	for _, suffix := range []string{"", ".xz", ".zst", ".gz"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && strings.HasSuffix(base, ".ko") {
			return true
		}
	}
	return false
}

// ReadModule reads the information of the module in a file.
func ReadModule(root *host.Root, p string) (Module, error) {
	f, err := root.OpenFile(p)
	if err != nil {
		return Module{}, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	r, size, err := openUncompressed(f, p)
	if err != nil {
		return Module{}, fmt.Errorf("%s: %w", root.Path(p), err)
	}
	info, err := ReadInfo(r, size)
	if err != nil {
		return Module{}, fmt.Errorf("%s: %w", root.Path(p), err)
	}
	if info.Name == "" {
		info.Name = NormalizeName(p)
	}
	return Module{info, root, p}, nil
}

// Tree is the folder of the modules that belong to the running kernel,
// /lib/modules/<release>, as depmod(8) has indexed it.
type Tree struct {
	Root    *host.Root
	Dir     string // inside Root
	paths   map[string]string
	depends map[string][]string
	builtin map[string]bool
}

// ReadTree reads modules.dep and modules.builtin. Without them, the Tree has no modules.
func ReadTree(root *host.Root, dir string) (*Tree, error) {
	t := &Tree{Root: root, Dir: dir, paths: map[string]string{}, depends: map[string][]string{}, builtin: map[string]bool{}}
	for _, file := range []struct {
		name string
		read func(io.Reader) error
	}{{"modules.dep", t.readDepends}, {"modules.builtin", t.readBuiltin}} {
		data, err := root.ReadFile(path.Join(dir, file.name), maxList)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = file.read(bytes.NewReader(data))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w; run depmod to recreate it", root.Path(path.Join(dir, file.name)), err)
		}
	}
	return t, nil
}

// readDepends parses lines "<path>: <path> ...", modules.dep(5).
func (t *Tree) readDepends(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		file, needs, ok := strings.Cut(lines.Text(), ":")
		if !ok || !isModule(file) {
			return fmt.Errorf("%q is not a line of modules.dep", truncateText(lines.Text()))
		}
		name := NormalizeName(file)
		t.paths[name] = file
		for need := range strings.FieldsSeq(needs) {
			t.depends[name] = append(t.depends[name], NormalizeName(need))
		}
		slices.Reverse(t.depends[name]) // the file lists the first dependency last
	}
	return lines.Err()
}

func (t *Tree) readBuiltin(r io.Reader) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		t.builtin[NormalizeName(lines.Text())] = true
	}
	return lines.Err()
}

// IsBuiltin reports whether a module is built into the kernel.
func (t *Tree) IsBuiltin(name string) bool { return t.builtin[NormalizeName(name)] }

// Path returns the path of a module's file inside Root; "" if the tree has none.
func (t *Tree) Path(name string) string {
	p, known := t.paths[NormalizeName(name)]
	if !known {
		return ""
	}
	return path.Join(t.Dir, p)
}

// Dependencies returns the modules to load before a module, in order.
func (t *Tree) Dependencies(name string) []string { return t.depends[NormalizeName(name)] }

func truncateText(s string) string { return s[:min(len(s), 100)] }
