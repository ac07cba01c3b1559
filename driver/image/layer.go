package image

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// bounds on a layer of modules.
type bounds struct {
	files int
	bytes int64
}

var layerBounds = bounds{files: 10_000, bytes: 1 << 30}

// NewLayer returns a layer with the files of a folder, below a path of the image. It depends only
// on their names, contents, and executable bits.
//
// It does not use the library's constructor of layers, whose compressors would add 250 kB to
// the program.
func NewLayer(dir, at string) (v1.Layer, error) {
	l := &folderLayer{dir: dir, at: at}
	content, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	l.digest, l.size, err = v1.SHA256(content)
	if err = errors.Join(err, content.Close()); err != nil {
		return nil, err
	}
	return partial.CompressedToLayer(l)
}

// folderLayer is a layer that is compressed on each read.
type folderLayer struct {
	dir, at string
	digest  v1.Hash
	size    int64
}

func (l *folderLayer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *folderLayer) Size() (int64, error)                { return l.size, nil }
func (l *folderLayer) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }

func (l *folderLayer) Compressed() (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.write(w)) }() // ends when r is read to its end, or closed
	return r, nil
}

func (l *folderLayer) write(to io.Writer) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(z, l.dir, l.at), z.Close())
}

func writeTar(to io.Writer, dir, at string) error {
	w := tar.NewWriter(to)
	if err := writeParents(w, at); err != nil {
		return err
	}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil || rel == "." {
			return err
		}
		return writeEntry(w, file, path.Join(at, filepath.ToSlash(rel)), d)
	})
	return errors.Join(err, w.Close())
}

// writeParents writes the folder at and its parents.
func writeParents(w *tar.Writer, at string) error {
	if parent := path.Dir(at); parent != "." {
		if err := writeParents(w, parent); err != nil {
			return err
		}
	}
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: 0o755})
}

func writeEntry(w *tar.Writer, file, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := tar.Header{Name: name, Mode: 0o644}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		return w.WriteHeader(&h)
	case d.Type() == fs.ModeSymlink:
		if h.Linkname, err = os.Readlink(file); err != nil {
			return err
		}
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		return w.WriteHeader(&h)
	case !d.Type().IsRegular():
		return fmt.Errorf("%s is neither a file, a folder nor a symbolic link", file)
	}
	if info.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// unpackFiles unpacks the files of a layer below a path of the image to a new folder. A layer of
// modules has only folders and files there.
func unpackFiles(layer io.Reader, at, to string, limit bounds) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // its files are closed by themselves
	files, left := 0, limit.bytes
	r := tar.NewReader(layer)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if files++; files > limit.files {
			return fmt.Errorf("it has more than %d files", limit.files)
		}
		rel, ok := strings.CutPrefix(path.Clean(h.Name), at+"/")
		if !ok {
			continue // the folders above
		}
		if left -= h.Size; left < 0 {
			return fmt.Errorf("its files have more than %d bytes", limit.bytes)
		}
		if err := unpackEntry(root, rel, h, r); err != nil {
			return fmt.Errorf("%q: %w", sanitizeText(h.Name), err)
		}
	}
	// Read to the end after the archive: the digest covers all data.
	_, err = io.Copy(io.Discard, io.LimitReader(layer, limit.bytes))
	return err
}

func unpackEntry(root *os.Root, rel string, h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(rel, 0o755)
	case tar.TypeReg:
	default:
		return errors.New("it is neither a file nor a folder")
	}
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|fs.FileMode(h.Mode)&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// sanitizeText sanitizes and truncates text of other origin for a message.
func sanitizeText(s string) string { return record.Clean(s, 200) }
