package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/test/built"
	"github.com/gpuready/gpuready/test/cluster/inside"
)

// Folders of programs that a node has, each its own: runc makes an overlay of
// the one that it is in, and would see nothing that is bound to a file there.
const (
	bin     = "bin"
	plugins = "cni"
)

var programs = map[string][]string{
	bin:     {"kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc"},
	plugins: {"bridge", "host-local", "loopback"},
}

// Collect fills the folder with a node's programs and this one, which a build
// may replace while nodes still run it. path tells where a program is.
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

// Bin is the path of the folder with kubelet, containerd, what they need, and
// this program.
func (f *Folder) Bin() string { return f.Join(bin) }

// Plugins is the path of the folder with the network's plugins, as CNI wants it.
func (f *Folder) Plugins() string { return f.Join(plugins) }

// Programs returns where a node's programs lie outside, by their paths on a node that has
// kubelet and containerd in one folder and the network's plugins in another.
func (f *Folder) Programs(binAt, pluginsAt string) map[string]string {
	all := map[string]string{}
	for dir, at := range map[string]string{bin: binAt, plugins: pluginsAt} {
		for _, name := range programs[dir] {
			all[filepath.Join(at, name)] = filepath.Join(f.Path, dir, name)
		}
	}
	return all
}

// Tool is the path of this program there.
func (f *Folder) Tool() string { return filepath.Join(f.Bin(), inside.ToolName) }

// linkOrCopy gives a program another name, where it can be without a copy. Who
// builds programs replaces files and does not write to them.
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
