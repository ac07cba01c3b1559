// Package userspace lays out a driver's user space as on a machine on which it is installed. Its
// source is an unpacked installer of NVIDIA, or a folder of unpacked packages of a
// distribution.
package userspace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// ManifestName is the file in which NVIDIA's installer lists its files.
const ManifestName = ".manifest"

// Layout describes the folders of an operating system.
type Layout struct {
	Libraries string // "usr/lib64", "usr/lib/x86_64-linux-gnu"
	Version   string // of the driver
}

// entry is a line of the manifest: path, permissions, type, and fields of the type.
type entry struct {
	path   string
	kind   string   // "CUDA_LIB", "CUDA_SYMLINK", "UTILITY_BINARY"
	rest   []string // without "MODULE:<name>"
	folder string   // below the folder of its kind
}

const maxManifest = 16 << 20

// ReadVersion returns the driver's version in a manifest: its second line.
func ReadVersion(dir string) (string, error) {
	_, version, err := readManifest(dir)
	return version, err
}

// readManifest reads the manifest. Its first eight lines describe the driver as a whole.
func readManifest(dir string) (all []entry, version string, err error) {
	f, err := os.Open(filepath.Join(dir, ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%s has no %s: it is not a folder that NVIDIA's installer has unpacked (--extract-only)", dir, ManifestName)
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	lines := bufio.NewScanner(io.LimitReader(f, maxManifest))
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if n == 2 {
			version = text
		}
		e, ok, err := parseEntry(text)
		if err != nil {
			return nil, "", fmt.Errorf("%s, line %d: %w", f.Name(), n, err)
		}
		if n > 2 && ok {
			all = append(all, e)
		}
	}
	return all, version, lines.Err()
}

// parseEntry parses a line; ok is false for one that names no file.
func parseEntry(line string) (e entry, ok bool, err error) {
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return e, false, nil
	}
	if strings.Trim(fields[1], "01234567") != "" || strings.ToUpper(fields[2]) != fields[2] {
		return e, false, nil // the lines above the list
	}
	e = entry{path: path.Clean(fields[0]), kind: fields[2]}
	if !filepath.IsLocal(e.path) {
		return e, false, fmt.Errorf("%q is not a path below the installer's folder", record.Clean(fields[0], 200))
	}
	for _, f := range fields[3:] {
		switch {
		case strings.HasPrefix(f, "MODULE:"), strings.HasPrefix(f, "INHERIT_PATH_DEPTH:"):
		case strings.HasSuffix(f, "/"):
			e.folder = strings.Trim(f, "/")
		default:
			e.rest = append(e.rest, f)
		}
	}
	if e.folder != "" && !filepath.IsLocal(e.folder) {
		return e, false, fmt.Errorf("%q is not a folder below that of the libraries", record.Clean(e.folder, 200))
	}
	return e, true, nil
}

// kinds holds the folders of files that are not libraries, by kind; %s is the driver's version.
var kinds = map[string]string{
	"UTILITY_BINARY":             "usr/bin",
	"NVIDIA_MODPROBE":            "usr/bin",
	"NVIDIA_PERSISTENCED_BINARY": "usr/bin",
	"FIRMWARE":                   "lib/firmware/nvidia/%s",
	"CUDA_ICD":                   "etc/OpenCL/vendors",
	"VULKAN_ICD_JSON":            "usr/share/vulkan/icd.d",
	"VULKANSC_ICD_JSON":          "usr/share/vulkansc/icd.d",
	"GLVND_EGL_ICD_JSON":         "usr/share/glvnd/egl_vendor.d",
	"EGL_EXTERNAL_PLATFORM_JSON": "usr/share/egl/egl_external_platform.d",
	"SANDBOXUTILS_FILELIST_JSON": "usr/share/nvidia/files.d",
	"APPLICATION_PROFILE":        "usr/share/nvidia",
	"NVOFA_CONFIG":               "usr/share/nvidia",
}

// placeOf returns the path at which a file is installed; "": it is not installed. link is the
// target of a symbolic link.
func (l Layout) placeOf(e entry) (at, link string) {
	for _, other := range []string{"COMPAT32", "CLASSIC", "NON_GLVND"} {
		if slices.Contains(e.rest, other) {
			return "", ""
		}
	}
	base := path.Base(e.path)
	switch {
	case strings.HasSuffix(e.kind, "_SYMLINK") || strings.HasSuffix(e.kind, "_NEWSYM"):
		if !slices.Contains(e.rest, "NATIVE") || len(e.rest) < 2 {
			return "", ""
		}
		return path.Join(l.Libraries, e.folder, base), path.Base(lastWordBut(e.rest, "GLVND"))
	case strings.HasSuffix(e.kind, "_LIB") && slices.Contains(e.rest, "NATIVE"):
		return path.Join(l.Libraries, e.folder, base), ""
	case base == "LICENSE":
		return "usr/share/doc/NVIDIA_GLX-1.0/LICENSE", ""
	}
	if to, known := kinds[e.kind]; known {
		return path.Join(strings.ReplaceAll(to, "%s", l.Version), base), ""
	}
	return "", ""
}

// lastWordBut returns the last of the words that differs from but.
func lastWordBut(words []string, but string) string {
	for _, w := range slices.Backward(words) {
		if w != but {
			return w
		}
	}
	return ""
}

// Install lays out the installer of NVIDIA that was unpacked to dir, in the folder to.
func (l Layout) Install(dir, to string) error {
	all, version, err := readManifest(dir)
	if err != nil {
		return err
	}
	if version != l.Version {
		return fmt.Errorf("%s is of driver %s, not of %s (DRIVER_VERSION)", dir, record.Clean(version, 50), l.Version)
	}
	root, err := os.OpenRoot(dir) // confines its links
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	target, err := newTarget(to)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // its files are closed by themselves
	for _, e := range all {
		at, link := l.placeOf(e)
		if at == "" {
			continue
		}
		if link != "" {
			err = createLink(link, target, at)
		} else {
			err = copyFile(root, e.path, target, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// skipped lists the folders of packages for kernels, and for documentation without the licence.
var skipped = []string{"usr/src", "lib/modules", "usr/lib/modules", "usr/share/man", "usr/share/lintian", "var"}

// alternative matches the files in the folders of Debian's alternatives: nvidia/current, nvidia/tesla, nvidia/tesla-535.
var alternative = regexp.MustCompile(`^(.+)/nvidia/(?:current|tesla)[^/]*/(.+)$`)

// move returns the place of a file of a distribution: the driver's programs run with a C library that
// looks for libraries in Debian's folders.
func (l Layout) move(rel string) string {
	if m := alternative.FindStringSubmatch(rel); m != nil {
		switch m[1] {
		case l.Libraries:
			return path.Join(l.Libraries, m[2])
		case "usr/lib":
			return path.Join("usr/bin", m[2])
		}
	}
	for _, m := range [][2]string{{"usr/lib64", l.Libraries}, {"usr/lib/firmware", "lib/firmware"}} {
		if rest, isBelow := strings.CutPrefix(rel, m[0]+"/"); isBelow {
			return path.Join(m[1], rest)
		}
	}
	return rel
}

// Copy lays out the packages that were unpacked to dir, in the folder to.
func (l Layout) Copy(dir, to string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	target, err := newTarget(to)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // its files are closed by themselves
	return fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if slices.Contains(skipped, rel) {
				return fs.SkipDir
			}
			return err
		}
		at := l.move(rel)
		if d.Type() == fs.ModeSymlink {
			link, err := root.Readlink(rel)
			if err != nil {
				return err
			}
			return createLink(link, target, at)
		}
		return copyFile(root, rel, target, at)
	})
}

// newTarget opens a folder, and creates it if necessary. Writes through it stay below it,
// whatever links it contains.
func newTarget(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// removeEarlier removes an earlier file at a path: files of two packages may move to one path.
func removeEarlier(root *os.Root, at string) error {
	if err := root.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	if err := root.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func createLink(link string, root *os.Root, at string) error {
	if err := removeEarlier(root, at); err != nil {
		return err
	}
	return root.Symlink(link, at)
}

func copyFile(from *os.Root, name string, to *os.Root, at string) error {
	in, err := from.Open(name)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	info, err := in.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", in.Name())
	}
	if err != nil {
		return err
	}
	if err := removeEarlier(to, at); err != nil {
		return err
	}
	out, err := to.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|info.Mode().Perm()&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
