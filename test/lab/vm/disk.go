package vm

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
)

// rootDevice is the disk with the root, as the kernel names it.
const rootDevice = "/dev/vda"

// rootArguments returns the kernel's arguments that tell the agent where the root is.
func rootArguments(c Config) []string {
	if c.Disk == 0 {
		return nil
	}
	return []string{"MACHINE_ROOT=" + rootDevice}
}

// diskFiles returns the files of the initial root in memory for a machine whose root is on a
// disk: the agent, and the module that the disk needs.
func (m *Machine) diskFiles(own Files) (Files, error) {
	files := Files{"/init": own["/init"]}
	for at, f := range own {
		if path.Dir(at) == "/usr/lib/machine" {
			files[at] = f
		}
	}
	const module = "kernel/drivers/block/virtio_blk.ko"
	found, err := filepath.Glob(filepath.Join(m.config.Kernel.folder(), module+"*"))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s has no module %s", m.config.Kernel.Release, module)
	}
	files["/usr/lib/machine/"+filepath.Base(found[0])] = File{Source: found[0]}
	return files, nil
}

// writeDisk writes files as an ext4 file system of size MiB. The image is sparse.
func writeDisk(ctx context.Context, at string, size int, files Files) error {
	stage := at + ".files"
	defer os.RemoveAll(stage)
	if err := writeTree(stage, files); err != nil {
		return err
	}
	_, err := program(ctx, "/", "/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", stage, at, strconv.Itoa(size)+"M")
	return err
}

// writeTree lays files below a folder.
func writeTree(dir string, files Files) error {
	byName := Files{}
	for link, target := range merged {
		byName[target] = File{Mode: fs.ModeDir | 0o755}
		byName[link] = File{Link: target}
	}
	for at, f := range files {
		byName[place(at)] = f
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) { // a folder comes before what is in it
		if err := byName[name].write(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("file /%s of the machine: %w", name, err)
		}
	}
	return nil
}

// write makes a file at a path outside, and the folders above it.
func (f File) write(at string) error {
	above := filepath.Dir(at)
	if f.Mode.IsDir() {
		above = at
	}
	if err := os.MkdirAll(above, 0o755); err != nil {
		return err
	}
	switch {
	case f.Link != "":
		return os.Symlink(f.Link, at)
	case f.Mode.IsDir():
		return os.Chmod(at, f.Mode.Perm()|f.Mode&fs.ModeSticky)
	case f.Source == "":
		return writeFile(at, f.Data, fs.FileMode(permissions(f.Mode, 0o644)))
	}
	return copyProgram(f.Source, at, f.Mode)
}

func writeFile(at string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(at, data, mode); err != nil {
		return err
	}
	return os.Chmod(at, mode) // whatever the umask
}

// copyProgram copies a file that may be too large to be held in memory.
func copyProgram(source, at string, mode fs.FileMode) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.Create(at)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if err := out.Chmod(fs.FileMode(permissions(mode, uint32(info.Mode().Perm())))); err != nil {
		return err
	}
	return out.Close()
}
