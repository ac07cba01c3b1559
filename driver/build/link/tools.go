package link

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/output"
)

// ToolsDir holds, in an image, what CopyTools copied: the linker, its libraries and its dynamic
// loader. With these the linker runs on any base image.
const ToolsDir = "/usr/lib/gpu-driver/tools"

// The files of such a folder beside the libraries.
const (
	linkerName = "ld"
	loaderName = "loader"
)

// tools is a folder laid out like ToolsDir; "": the programs installed on this machine are used.
type tools string

// newTools returns the tools in a folder, or in ToolsDir if dir is "" and the image has that.
func newTools(dir string) tools {
	if dir == "" && fileExists(filepath.Join(ToolsDir, linkerName)) {
		dir = ToolsDir
	}
	return tools(dir)
}

// findLinker returns the path of the folder's linker. Without a folder it is the machine's linker of the
// given name, such as x86_64-linux-gnu-ld, or its plain ld if that is not installed.
func (t tools) findLinker(name string) (string, error) {
	if t != "" {
		return filepath.Join(string(t), linkerName), nil
	}
	path, err := exec.LookPath(name)
	if err != nil && strings.HasSuffix(name, linkerName) {
		path, err = exec.LookPath(linkerName)
	}
	if err != nil {
		return "", fmt.Errorf("there is no linker: %w; link in an image that has binutils", err)
	}
	return path, nil
}

// command returns the command that runs a program with the libraries of the folder.
func (t tools) command(program string, args []string) (string, []string) {
	if t == "" {
		return program, args
	}
	return filepath.Join(string(t), loaderName), append([]string{"--library-path", string(t), program}, args...)
}

// KernelArch returns this machine's architecture in the spelling of the kernel's sources: "x86".
func KernelArch() string {
	return map[string]string{"amd64": "x86", "arm64": "arm64"}[runtime.GOARCH]
}

// findObjtool returns the objtool in a folder with halves, which are the compiled parts of modules that
// still have to be linked. Debian's is a wrapper that runs another program
// beside it, chosen by the environment, with libraries that the base may not have.
func findObjtool(halves string) string {
	path := filepath.Join(halves, ObjtoolDir, "objtool")
	if real := path + ".real-" + KernelArch(); fileExists(real) {
		return real
	}
	return path
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// CopyTools copies to a new folder the tools that Link needs for halves where no linker is
// installed: this machine's linker, which must be that of the compiler's package, and the libraries of
// the linker and of objtool.
func CopyTools(ctx context.Context, halves, to string) error {
	all, err := Read(halves)
	if err != nil {
		return err
	}
	if len(all.Modules) == 0 {
		return fmt.Errorf("%s has no modules", halves)
	}
	linker, err := tools("").findLinker(all.Modules[0].Linker)
	if err != nil {
		return err
	}
	if linker, err = filepath.EvalSymlinks(linker); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if err := folder.CopyFile(linker, filepath.Join(to, linkerName)); err != nil {
		return err
	}
	programs := []string{linker}
	if objtool := findObjtool(halves); fileExists(objtool) {
		programs = append(programs, objtool)
	}
	for _, p := range programs {
		if err := copyLibraries(ctx, p, to); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// copyLibraries copies the dynamic loader and the libraries of a program. A statically linked
// program has none.
func copyLibraries(ctx context.Context, program, to string) error {
	loader, err := readInterpreter(program)
	if err != nil || loader == "" {
		return err
	}
	cmd := exec.CommandContext(ctx, loader, "--list", program)
	cmd.Env = output.Environment(to)
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", loader, err)
	}
	if err := copyOnce(loader, filepath.Join(to, loaderName)); err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		name, path, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			continue // a line without a path: the loader itself, or the kernel's vDSO
		}
		path, _, _ = strings.Cut(path, " (")
		if !filepath.IsAbs(path) {
			return fmt.Errorf("its library %s is not on this machine", name)
		}
		if err := copyOnce(path, filepath.Join(to, filepath.Base(name))); err != nil {
			return err
		}
	}
	return nil
}

// copyOnce copies a file unless it exists already: programs share libraries.
func copyOnce(from, to string) error {
	err := folder.CopyFile(from, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// readInterpreter returns the dynamic loader of a program; "": none.
func readInterpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	s := f.Section(".interp")
	if s == nil {
		return "", nil
	}
	text, err := s.Data()
	if err != nil {
		return "", err
	}
	path := strings.TrimRight(string(text), "\x00")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("its dynamic loader %s is not on this machine", path)
	}
	return path, nil
}
