package spec

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
)

// The driver's programs that containers get.
var programs = []string{
	"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced",
	"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl", "nvidia-xconfig",
}

// pathDirs are the directories in which images search for programs by default.
var pathDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// installerDir is the directory of programs on hosts whose installer cannot write to /usr, as on
// GKE's Container-Optimized OS.
const installerDir = "/usr/local/nvidia/bin"

// programs adds the first program of each name. The directory beside libcuda's comes first, because a
// program there is of the same driver. Folders that only the driver uses may hold programs, too.
func (f *finder) programs(cuda string) {
	dirs := append(slices.Clip(pathDirs), installerDir)
	if beside := path.Join(path.Dir(cuda), "bin"); !slices.Contains(pathDirs, beside) {
		dirs = append([]string{beside}, dirs...)
	}
	for _, folder := range f.folders {
		if folder.Whole {
			dirs = append(dirs, folder.Path)
		}
	}
	for _, name := range programs {
		for _, dir := range dirs {
			if real, ok := f.program(path.Join(dir, name)); ok {
				f.addProgram(real, dir, name)
				break
			}
		}
	}
}

// addProgram adds a program that was found in dir. Containers get it at the same path if their
// PATH usually includes dir. Otherwise they get it in /usr/bin, so that nvidia-smi is found
// without its path, and a link where the host has it.
func (f *finder) addProgram(real, dir, name string) {
	at := path.Join(dir, name)
	if slices.Contains(pathDirs, dir) {
		f.mount(real, at, readOnly)
		return
	}
	inPath := path.Join("/usr/bin", name)
	f.mount(real, inPath, readOnly)
	f.addLink(inPath, dir, name)
}

// program resolves a path and reports whether containers can run the file there.
func (f *finder) program(p string) (real string, ok bool) {
	real, ok = f.file(p, func(m fs.FileMode) bool { return m.IsRegular() && m&0o111 != 0 })
	return real, ok && f.isNative(real)
}

// isNative reports whether a program is neither a script nor for another processor.
//
// Some hosts have scripts in /usr/bin that run the programs elsewhere, with a loader or libraries
// of their own. In a container such a script fails, since it gets neither its target nor the
// host's shell.
func (f *finder) isNative(p string) bool {
	file, err := f.root.OpenFile(p)
	if errors.Is(err, fs.ErrPermission) {
		return true // who may not read it cannot judge it
	}
	if f.failed(err) {
		return false
	}
	defer file.Close()
	var head [20]byte // of an ELF file: up to its machine
	n, err := io.ReadFull(file, head[:])
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) && f.failed(err) {
		return false
	}
	switch text := string(head[:n]); {
	case strings.HasPrefix(text, "#!"):
		return false
	case strings.HasPrefix(text, elf.ELFMAG) && n == len(head):
		machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
		return elf.Machine(binary.LittleEndian.Uint16(head[18:])) == machine
	}
	return true
}
