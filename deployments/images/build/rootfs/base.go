// The base image's file system, assembled without a registry. It takes glibc's loader and
// libraries, and the few files that programs expect around them, from packages of the builder's
// own distribution. Its glibc is therefore never older than the one that programs were linked
// with.
//
// There is no package manager, no shell and no loader cache. A runtime's CDI
// hook creates /etc/ld.so.cache for the injected files. Without a cache the loader
// searches the folders of glibc and the multiarch ones, which is where a driver's
// libraries are.

package rootfs

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Wanted lists the packages. Apt.Plan adds the package with the licence to which
// libgcc-s1's folder of documentation only links.
var Wanted = []string{"base-files", "ca-certificates", "libc6", "libgcc-s1"}

// libraries are the libraries to keep. The programs need libc, libdl and libpthread; a
// driver's libraries also need libm and librt. glibc itself loads libgcc_s when a
// thread is cancelled or ends itself, and aborts without it.
var libraries = []string{
	"libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1",
	"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}

// authorityDir is the folder of the package's certificates.
const authorityDir = "/usr/share/ca-certificates/mozilla/"

// BundleCertificates replaces the certificates of package ca-certificates by the file Bundle.
// Debian's package has one file for each authority; its update-ca-certificates, which does not
// run here, would combine them.
func BundleCertificates(entries []Entry) ([]Entry, error) {
	bundle := Entry{Path: Bundle, Mode: 0o644}
	var rest, parts []Entry
	for _, e := range entries {
		if strings.HasPrefix(e.Path, authorityDir) {
			parts = append(parts, e)
			continue
		}
		rest = append(rest, e)
	}
	slices.SortFunc(parts, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for _, part := range parts {
		if block, _ := pem.Decode(part.Data); block == nil || block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s of package ca-certificates is not a certificate", part.Path)
		}
		bundle.Data = append(append(bundle.Data, bytes.TrimSpace(part.Data)...), '\n')
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("package ca-certificates has nothing in %s: images could not connect to a registry", authorityDir)
	}
	return append(rest, bundle), nil
}

// Entry is a file, directory or link of the base.
type Entry struct {
	Path     string // absolute, without links
	Mode     fs.FileMode
	UID, GID int
	Link     string
	Data     []byte
}

// PathInBase reports whether a package's file goes into the base, and returns its path there:
// /lib and the like are links to /usr/lib, as on every current system.
func PathInBase(name string) (string, bool) {
	name = path.Clean("/" + name)
	for _, dir := range []string{"/lib/", "/lib64/"} {
		if strings.HasPrefix(name, dir) {
			name = "/usr" + name
		}
	}
	dir, file := path.Split(name)
	switch {
	case dir == "/usr/lib/" || dir == "/usr/lib64/" || path.Dir(path.Clean(dir)) == "/usr/lib" && strings.HasSuffix(dir, "-linux-gnu/"):
		return name, slices.Contains(libraries, file) || name == "/usr/lib/os-release"
	case strings.HasPrefix(name, "/etc/ld.so.conf.d/"), name == "/etc/os-release", name == "/etc/debian_version":
		return name, true
	case strings.HasPrefix(name, authorityDir):
		return name, strings.HasSuffix(name, ".crt")
	case strings.HasPrefix(name, "/usr/share/common-licenses/"):
		return name, true
	case strings.HasPrefix(name, "/usr/share/doc/"):
		// A folder of documentation may be a link to another package's.
		return name, file == "copyright" || path.Dir(name) == "/usr/share/doc"
	}
	return name, false
}

// Skeleton returns the entries of the base that are not from packages: the directories
// that runtimes mount on, and libc's files about users and names.
func Skeleton(arch string) []Entry {
	text := func(name, content string) Entry { return Entry{Path: name, Mode: 0o644, Data: []byte(content)} }
	link := func(name, to string) Entry { return Entry{Path: name, Mode: fs.ModeSymlink | 0o777, Link: to} }
	dir := func(name string, mode fs.FileMode) Entry { return Entry{Path: name, Mode: fs.ModeDir | mode} }
	all := []Entry{
		dir("/dev", 0o755), dir("/proc", 0o555), dir("/run", 0o755), dir("/sys", 0o555),
		dir("/tmp", 0o777|fs.ModeSticky), dir("/var/tmp", 0o777|fs.ModeSticky),
		dir("/root", 0o700), dir("/usr/bin", 0o755), dir("/usr/sbin", 0o755),
		{Path: "/home/nonroot", Mode: fs.ModeDir | 0o700, UID: 65532, GID: 65532},
		link("/bin", "usr/bin"), link("/sbin", "usr/sbin"), link("/lib", "usr/lib"), link("/var/run", "/run"),
		text("/etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\n"+
			"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"+
			"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"),
		text("/etc/group", "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n"),
		text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
		text("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"),
	}
	if arch == "amd64" { // the loader's path is below it
		all = append(all, dir("/usr/lib64", 0o755), link("/lib64", "usr/lib64"))
	}
	return all
}

// Select reads a package's files (a tar archive) and returns the ones to keep.
func Select(files io.Reader) ([]Entry, error) {
	var kept []Entry
	in := tar.NewReader(files)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
		name, ok := PathInBase(h.Name)
		if !ok || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		e := Entry{Path: name, Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid, Link: h.Linkname}
		if h.Typeflag == tar.TypeReg {
			if e.Data, err = io.ReadAll(in); err != nil {
				return nil, fmt.Errorf("%s: %w", h.Name, err)
			}
		}
		kept = append(kept, e)
	}
}

// Status returns the file in which an image without a package manager records an
// installed package; scanners know it. control is the package's own description.
func Status(name string, control []byte) Entry {
	return Entry{Path: path.Join(StatusFolder, name), Mode: 0o644, Data: control}
}

// WriteBase writes a tar archive that depends on the entries alone: sorted, with the
// directories that they need, all with the same time.
func WriteBase(w io.Writer, entries []Entry, at time.Time) error {
	all := map[string]Entry{}
	for _, e := range entries {
		if _, twice := all[e.Path]; twice {
			return fmt.Errorf("%s comes from two packages", e.Path)
		}
		all[e.Path] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.Path); dir != "/"; dir = path.Dir(dir) {
			if above, ok := all[dir]; !ok {
				all[dir] = Entry{Path: dir, Mode: fs.ModeDir | 0o755}
			} else if !above.Mode.IsDir() {
				return fmt.Errorf("%s is below %s, which is not a directory", e.Path, dir)
			}
		}
	}
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := add(out, all[name], at); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return out.Close()
}

func add(out *tar.Writer, e Entry, at time.Time) error {
	h := &tar.Header{
		Name: strings.TrimPrefix(e.Path, "/"), Mode: int64(e.Mode.Perm()), Uid: e.UID, Gid: e.GID,
		Size: int64(len(e.Data)), ModTime: at, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg,
	}
	if e.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch e.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err := out.Write(e.Data)
	return err
}
