// Package runfile unpacks NVIDIA's installers, NVIDIA-Linux-x86_64-<version>.run, without
// executing them. Such a file is a shell script of makeself. At the line that its variable
// skip names begins a tar archive, compressed with xz, zstd or gzip.
package runfile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5" //nolint:gosec // it is what the file has of itself; who wants to trust it names a SHA-256
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Bounds on an installer.
const (
	maxHeader = 4 << 20 // bytes of the script
	maxLines  = 100_000 // of the script and of the program that uncompresses, in lines
	maxFiles  = 50_000
	maxBytes  = 8 << 30 // unpacked
)

// Header holds the variables of the script that describe the archive.
type Header struct {
	Version string // "580.95.05"
	OS      string // "Linux"
	Arch    string // "x86_64"
	Skip    int    // the line at which the archive begins; the first line is 1
	MD5     string // of the file from the fourth line on, in hexadecimal; "": unknown
}

// none stands in the header of an installer that states no MD5.
const none = "00000000000000000000000000000000"

// ParseHeader reads the variables of the script. It considers only assignments alone on a line,
// before the first comment of the script's body.
func ParseHeader(r io.Reader) (Header, error) {
	var h Header
	lines := bufio.NewScanner(io.LimitReader(r, maxHeader))
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "#!") {
		return h, errors.New("it is not an installer: it does not begin with a script")
	}
	for n := 0; lines.Scan() && n < 100; n++ {
		name, value, found := strings.Cut(lines.Text(), "=")
		if !found {
			if strings.HasPrefix(name, "#") {
				break
			}
			continue
		}
		value = strings.Trim(value, `"`)
		switch name {
		case "MD5":
			h.MD5 = value
		case "skip":
			var err error
			if h.Skip, err = strconv.Atoi(value); err != nil {
				return h, fmt.Errorf("skip=%s is not a number", record.Clean(value, 100))
			}
		case "version_string":
			h.Version = value
		case "TARGET_OS":
			h.OS = value
		case "TARGET_ARCH":
			h.Arch = value
		}
	}
	if err := lines.Err(); err != nil {
		return h, fmt.Errorf("it is not an installer: %w", err)
	}
	return h, h.checkFields()
}

func (h *Header) checkFields() error {
	if h.Skip < 5 || h.Skip > maxLines {
		return fmt.Errorf("it is not an installer: skip=%d is not the line at which its archive begins", h.Skip)
	}
	if h.MD5 == none {
		h.MD5 = ""
	}
	if sum, err := hex.DecodeString(h.MD5); err != nil || len(sum) != md5.Size && h.MD5 != "" {
		return fmt.Errorf("MD5=%s is invalid", record.Clean(h.MD5, 100))
	}
	return nil
}

// Unpack unpacks an installer to a new folder and returns its header. It verifies the checksum
// of the header.
func Unpack(ctx context.Context, file, to string) (h Header, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", file, err)
		}
	}()
	f, err := os.Open(file)
	if err != nil {
		return h, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	if h, err = ParseHeader(f); err != nil {
		return h, err
	}
	if err := h.verifyMD5(f); err != nil {
		return h, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return h, err
	}
	r := bufio.NewReaderSize(f, 1<<20)
	if err := skipLines(r, h.Skip-1); err != nil {
		return h, err
	}
	archive, end, err := uncompressArchive(r)
	if err != nil {
		return h, err
	}
	defer end()
	return h, UntarStream(ctx, archive, to, LocalLinks)
}

// Untar unpacks a tar archive, compressed with xz, zstd or gzip, to a new folder.
func Untar(ctx context.Context, file, to string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is only read
	archive, end, err := uncompressArchive(bufio.NewReaderSize(f, 1<<20))
	if err == nil {
		defer end()
		err = UntarStream(ctx, archive, to, LocalLinks)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// Links defines which links an archive may have.
type Links int

// NoLinks is for the output of a program. LocalLinks permits links that stay below the
// archive's folder. AnyLinks is for root file systems: links may be absolute or hard, and paths
// may lead through them. No mode lets a file be written outside the archive's folder.
const (
	NoLinks Links = iota
	LocalLinks
	AnyLinks
)

// UntarStream unpacks a tar archive to a new folder, and writes nothing outside it. The archive
// may have only files, folders and links.
func UntarStream(ctx context.Context, archive io.Reader, to string, links Links) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	return errors.Join(unpackArchive(ctx, archive, root, links), root.Close())
}

// verifyMD5 compares the file with the MD5 in its header.
func (h Header) verifyMD5(f io.ReadSeeker) error {
	if h.MD5 == "" {
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReaderSize(f, 1<<20)
	if err := skipLines(r, 3); err != nil {
		return err
	}
	sum := md5.New() //nolint:gosec // see above
	if _, err := io.Copy(sum, r); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != strings.ToLower(h.MD5) {
		return fmt.Errorf("it is damaged: its MD5 is %s instead of %s; download it again", got, h.MD5)
	}
	return nil
}

func skipLines(r *bufio.Reader, lines int) error {
	for range lines {
		for {
			_, err := r.ReadSlice('\n')
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return fmt.Errorf("it ends before its archive begins: %w", err)
			}
		}
	}
	return nil
}

// uncompressArchive returns the uncompressed archive, and a function that closes it.
func uncompressArchive(r *bufio.Reader) (io.Reader, func(), error) {
	magic, err := r.Peek(6)
	if err != nil {
		return nil, nil, fmt.Errorf("it ends where its archive begins: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		x, err := xz.NewReader(r)
		return x, func() {}, err
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		g, err := gzip.NewReader(r)
		return g, func() {}, err
	}
	return nil, nil, errors.New("its archive is not compressed with xz, zstd or gzip")
}

func unpackArchive(ctx context.Context, archive io.Reader, root *os.Root, links Links) error {
	r := tar.NewReader(archive)
	left := int64(maxBytes)
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if left -= h.Size; n > maxFiles || left < 0 {
			return fmt.Errorf("it has more than %d files, or than %d bytes", maxFiles, int64(maxBytes))
		}
		if err := unpackEntry(h, r, root, links); err != nil {
			return fmt.Errorf("%q: %w", record.Clean(h.Name, 200), err)
		}
	}
}

func unpackEntry(h *tar.Header, r io.Reader, root *os.Root, links Links) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return errors.New("it is not a path below the archive's folder")
	}
	if links != AnyLinks {
		if err := checkParents(root, name); err != nil {
			return err
		}
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeLink:
		if links == AnyLinks {
			return root.Link(path.Clean(h.Linkname), name)
		}
		return errors.New("it is a hard link")
	case tar.TypeSymlink:
		if links == NoLinks {
			return errors.New("it is a symbolic link")
		}
		if links == LocalLinks && (!filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) || path.IsAbs(h.Linkname)) {
			return fmt.Errorf("the link leads out of the archive, to %q", record.Clean(h.Linkname, 200))
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
	default:
		return errors.New("it is neither a file, a folder nor a symbolic link")
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|fs.FileMode(h.Mode)&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// checkParents rejects a path that leads through a symbolic link: the target of a link at its
// end would not be known from its name.
func checkParents(root *os.Root, name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		info, err := root.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("its folder %q is a symbolic link", record.Clean(dir, 200))
		}
	}
	return nil
}
