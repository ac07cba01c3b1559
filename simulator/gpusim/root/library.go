package root

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// simulated is the function that every library of the simulated driver exports, and no
// real library does.
const simulated = "gpusim_simulated"

// Libraries reads the built libraries of the simulated driver from dir, as entries of
// a plan. Each library gets the version as its suffix.
func Libraries(dir, arch, version string) ([]Entry, error) {
	var entries []Entry
	for _, l := range []struct {
		name, path string
		mode       uint32
		library    bool
	}{
		{"nvidia-smi", "usr/bin/nvidia-smi", 0o755, false},
		{"nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-control", 0o755, false},
		{"libcuda.so", LibDir(arch) + "/libcuda.so." + version, 0o644, true},
		{"libnvidia-ml.so", LibDir(arch) + "/libnvidia-ml.so." + version, 0o644, true},
	} {
		content, err := os.ReadFile(filepath.Join(dir, l.name))
		if err != nil {
			return nil, fmt.Errorf("the simulated driver: %w; build it with make, or name its folder with --lib-dir", err)
		}
		if l.library {
			ours, err := Simulated(content)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Join(dir, l.name), err)
			}
			if !ours {
				return nil, fmt.Errorf("%s is not a library of the simulated driver: it does not export %s", filepath.Join(dir, l.name), simulated)
			}
		}
		e := NewFile(l.path, l.mode, content)
		e.Library = true
		entries = append(entries, e)
	}
	return entries, nil
}

// Simulated reports whether a file is a library of the simulated driver. It returns
// false for a file that is not ELF.
func Simulated(content []byte) (bool, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		return false, nil
	}
	return slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
		return s.Name == simulated && s.Section != elf.SHN_UNDEF
	}), err
}
