package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// Folders of a node's programs. They are separate because runc makes an overlay of its own
// folder, in which files bound there would be invisible.
const (
	bin     = "bin"
	plugins = "cni"
)

var programs = map[string][]string{
	bin:     {"kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc"},
	plugins: {"bridge", "host-local", "loopback"},
}

// Collect fills the folder with a node's programs and a copy of this one, which a build may
// replace while nodes still run it. path returns the path of a program.
func (f *Folder) Collect(path func(name string) string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for dir, names := range programs {
		if err := os.Mkdir(f.Join(dir), 0o755); err != nil {
			return err
		}
		for _, name := range names {
			if err := linkOrCopy(path(name), filepath.Join(f.Path, dir, name)); err != nil {
				return fmt.Errorf("a node's %s: %w", name, err)
			}
		}
	}
	return linkOrCopy(self, f.Tool())
}

// Bin returns the path of the folder with kubelet, containerd, the programs they need, and this
// program.
func (f *Folder) Bin() string { return f.Join(bin) }

// Plugins returns the path of the folder with the CNI plugins.
func (f *Folder) Plugins() string { return f.Join(plugins) }

// Programs returns the paths of a node's programs outside, by their paths on a node. That node
// has kubelet and containerd in the folder binAt, and the CNI plugins in pluginsAt.
func (f *Folder) Programs(binAt, pluginsAt string) map[string]string {
	all := map[string]string{}
	for dir, at := range map[string]string{bin: binAt, plugins: pluginsAt} {
		for _, name := range programs[dir] {
			all[filepath.Join(at, name)] = filepath.Join(f.Path, dir, name)
		}
	}
	return all
}

// Tool returns the path of this program's copy.
func (f *Folder) Tool() string { return filepath.Join(f.Bin(), namespace.ToolName) }

// linkOrCopy links a program to another name, or copies it if it must. Links are safe because
// builds replace programs and do not write into them.
func linkOrCopy(from, to string) error {
	if err := os.Link(from, to); err == nil || errors.Is(err, os.ErrExist) {
		return err
	}
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return built.WriteProgram(to, program, 0o755)
}
