package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// ModuleTree returns /lib/modules of a machine: the named modules of the kernel ("ecc") and their
// dependencies, further modules by their path below /lib/modules/<release>
// ("updates/nvidia.ko"), and depmod's files about all of them. The name of a module that is built
// into the kernel adds nothing.
func (k *Kernel) ModuleTree(t testing.TB, names []string, extra Modules) Files {
	t.Helper()
	files, err := k.moduleTree(t.Context(), t.TempDir(), names, extra)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (k *Kernel) moduleTree(ctx context.Context, work string, names []string, extra Modules) (Files, error) {
	paths, err := k.resolve(ctx, names)
	if err != nil {
		return nil, err
	}
	all := Modules{}
	for _, name := range append(paths, "modules.builtin", "modules.builtin.modinfo", "modules.order") {
		if all[name], err = os.ReadFile(filepath.Join(k.folder(), name)); err != nil {
			return nil, err
		}
	}
	maps.Copy(all, extra)
	stage := filepath.Join(work, "stage")
	for name, data := range all {
		at := filepath.Join(stage, "lib/modules", k.Release, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(at, data, 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := program(ctx, work, "/sbin/depmod", "-b", stage, k.Release); err != nil {
		return nil, err
	}
	return Folder(filepath.Join(stage, "lib/modules"), "/lib/modules")
}

// folder returns the folder with the kernel's modules.
func (k *Kernel) folder() string { return filepath.Join(k.root, "lib/modules", k.Release) }

// resolve returns the paths of modules below the kernel's folder, with those that they
// depend on.
func (k *Kernel) resolve(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	dependencies, err := k.dependencies(ctx)
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.folder(), "modules.builtin"))
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for at := range dependencies {
		byName[moduleName(at)] = at
	}
	inside := map[string]bool{}
	for line := range strings.Lines(string(builtin)) {
		inside[moduleName(strings.TrimSpace(line))] = true
	}
	var paths []string
	for _, name := range names {
		name = moduleName(name)
		at, ok := byName[name]
		switch {
		case ok:
			paths = append(append(paths, at), dependencies[at]...) // depmod lists indirect dependencies too
		case !inside[name]:
			return nil, fmt.Errorf("%s has no module %s", k.Release, name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// dependencies returns the dependencies of each module of the kernel. It runs depmod, because
// Debian does so when a kernel is installed, and this one is not.
func (k *Kernel) dependencies(ctx context.Context) (map[string][]string, error) {
	at := filepath.Join(k.root, "depmod."+k.Release)
	data, err := os.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		var printed string
		if printed, err = program(ctx, "/", "/sbin/depmod", "-n", "-b", k.root, k.Release); err != nil {
			return nil, err
		}
		data = []byte(printed)
		err = record.Write(at, data) // others may read it meanwhile
	}
	if err != nil {
		return nil, err
	}
	return parseDependencies(string(data)), nil
}

// parseDependencies parses depmod's output: the lines of modules.dep, "kernel/a.ko: kernel/b.ko",
// and then those of its other files, which have a space before the first colon.
func parseDependencies(text string) map[string][]string {
	dependencies := map[string][]string{}
	for line := range strings.Lines(text) {
		if at, rest, ok := strings.Cut(line, ":"); ok && !strings.Contains(at, " ") {
			dependencies[at] = strings.Fields(rest)
		}
	}
	return dependencies
}

// moduleName returns a module's name as /proc/modules has it.
func moduleName(at string) string {
	name, _, _ := strings.Cut(path.Base(at), ".")
	return strings.ReplaceAll(name, "-", "_")
}
