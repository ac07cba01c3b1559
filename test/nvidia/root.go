package nvidia

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// root is the content of an image that is made from this machine's files.
type root struct {
	files map[string][]byte
	links map[string]string
}

// newRoot returns a root with busybox and bash, which every image of NVIDIA's has in some
// form.
func newRoot() (*root, error) {
	r := &root{files: map[string][]byte{}, links: map[string]string{}}
	if err := r.addProgram("/bin/bash", "/bin/bash"); err != nil {
		return nil, err
	}
	if err := r.addProgram("/bin/busybox", "/bin/busybox"); err != nil {
		return nil, fmt.Errorf("%w; install busybox-static", err)
	}
	for _, applet := range []string{"cat", "chroot", "cp", "date", "echo", "env", "grep", "ls", "lsmod", "mkdir", "mv", "rm", "sh", "sleep", "stat", "test", "touch"} {
		r.links["/bin/"+applet] = "busybox"
	}
	return r, nil
}

// addFile adds a file of this machine.
func (r *root) addFile(at, from string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		r.files[at] = content
	}
	return err
}

// addFolder adds the files of a folder of this machine.
func (r *root) addFolder(at, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return r.addFile(filepath.Join(at, relative), path)
	})
}

// addProgram adds a program, its loader and its libraries.
func (r *root) addProgram(at, from string) error {
	if err := r.addFile(at, from); err != nil {
		return err
	}
	return r.addNeeded(from)
}

// libraries are the folders in which distributions keep libraries.
var libraries = []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64"}

// addNeeded adds what a program or library is linked with.
func (r *root) addNeeded(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz-1) // without the zero at its end
		if _, err := p.ReadAt(loader, 0); err != nil {
			return err
		}
		if err := r.addFile(string(loader), string(loader)); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range needed {
		if err := r.addLibrary(name); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// addLibrary adds a library where the loader looks without being told.
func (r *root) addLibrary(name string) error {
	for _, dir := range libraries {
		path := filepath.Join(dir, name)
		if r.files[path] != nil {
			return nil
		}
		switch err := r.addFile(path, path); {
		case err == nil:
			return r.addNeeded(path)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return fmt.Errorf("library %s is not in %v", name, libraries)
}
