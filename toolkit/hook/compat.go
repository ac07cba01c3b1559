package main

// This file decides whether an image's own CUDA user libraries take precedence over
// the driver's (CUDA forward compatibility). Images built with a newer CUDA than the host's
// driver supports contain libcuda of a newer driver, which works with older kernel modules.
// NVIDIA's "CUDA Compatibility" lists these.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// compatDir is the directory of the libraries of the package cuda-compat.
const compatDir = "/usr/local/cuda/compat"

const (
	compatPrefix   = "libcuda.so."
	maxCompatNames = 4096 // in the directory; the package has about ten

	maxCompatListed = 16 // driver versions in a message
)

// hostCUDA holds the versions of the host's driver, "" if unknown.
type hostCUDA struct {
	Driver string // "570.86.15"
	CUDA   string // "12.8"
}

// chooseCompat returns the directory of the image's libraries if they take precedence over the
// driver's, and otherwise "". If the image has such libraries, why is the reason.
//
// Without the host's CUDA version, the image's driver must have a higher major version than
// the host's. If its libcuda lists the supported major versions, the host's must be among
// them. With the host's CUDA version, as on Tegra, where driver versions are meaningless,
// the image's libcuda must state a higher CUDA version.
func chooseCompat(root *rootfs.Root, dir string, h hostCUDA) (chosen, why string, err error) {
	if h.Driver == "" && h.CUDA == "" {
		return "", "", nil
	}
	major, err := parseMajor(h.Driver)
	if err != nil && h.CUDA == "" {
		return "", "", fmt.Errorf("--host-driver-version: %w", err)
	}
	real, err := root.Resolve(dir)
	if err != nil {
		return "", compatReason(dir, err), nil
	}
	file, why := findCompat(root, real)
	if file == "" {
		return "", why, nil
	}
	note, err := readNote(root, file)
	if err != nil {
		return "", compatReason(file, err), nil
	}
	if h.CUDA != "" {
		if note == nil || compareVersions(note.CUDA, h.CUDA) <= 0 {
			return "", "", nil
		}
		return real, "", nil
	}
	theirs, err := parseMajor(strings.TrimPrefix(path.Base(file), compatPrefix))
	switch {
	case err != nil:
		return "", compatReason(file, err), nil
	case theirs <= major:
		return "", "", nil
	case note != nil && len(note.Driver) > 0 && !slices.Contains(note.Driver, major):
		return "", fmt.Sprintf("%s works on drivers %s and not on %s, so the host's libraries are used", file, list(note.Driver), h.Driver), nil
	}
	return real, "", nil
}

// findCompat returns the only file libcuda.so.<version> in the directory.
func findCompat(root *rootfs.Root, dir string) (file, why string) {
	entries, err := root.ReadDirAtMost(dir, maxCompatNames)
	if err != nil {
		return "", compatReason(dir, err)
	}
	var found []string
	for _, e := range entries {
		// libcuda.so.1 is a link to it.
		version, ok := strings.CutPrefix(e.Name(), compatPrefix)
		if ok && e.Type().IsRegular() && strings.Contains(version, ".") {
			found = append(found, path.Join(dir, e.Name()))
		}
	}
	switch len(found) {
	case 0:
		return "", ""
	case 1:
		return found[0], ""
	}
	return "", fmt.Sprintf("%s has %d libraries libcuda.so.<version>, so none is used", dir, len(found))
}

// compatReason describes an error, "" if the file does not exist.
func compatReason(name string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return fmt.Sprintf("%s is not used: %v", name, err)
}

func parseMajor(version string) (int, error) {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is not a driver version like 570.86.15", version)
	}
	return n, nil
}

// compareVersions compares "12.8" with "13.0" part by part. A part that is not a number is
// the lowest.
func compareVersions(a, b string) int {
	as, bs := strings.Split(strings.TrimPrefix(a, "v"), "."), strings.Split(strings.TrimPrefix(b, "v"), ".")
	for i := range max(len(as), len(bs)) {
		if c := cmp.Compare(part(as, i), part(bs, i)); c != 0 {
			return c
		}
	}
	return 0
}

func part(parts []string, i int) int {
	if i >= len(parts) {
		return 0
	}
	n, err := strconv.Atoi(parts[i])
	if err != nil {
		return -1
	}
	return n
}

func list(numbers []int) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == maxCompatListed {
			b.WriteString("…")
			break
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}
