package assemble

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// store writes an OCI image layout.
type store struct {
	dir   string
	index v1.IndexManifest
}

func newStore(dir string) (*store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		return nil, err
	}
	return &store{dir: dir, index: v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}},
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion": "1.0.0"}`+"\n"), 0o644)
}

func (s *store) path(h v1.Hash) string { return filepath.Join(s.dir, "blobs", h.Algorithm, h.Hex) }

// put writes a blob.
func (s *store) put(data []byte, kind types.MediaType) (v1.Descriptor, error) {
	sum := sha256.Sum256(data)
	d := v1.Descriptor{MediaType: kind, Size: int64(len(data)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	return d, os.WriteFile(s.path(d.Digest), data, 0o644)
}

// putJSON writes a value as JSON.
func (s *store) putJSON(value any, kind types.MediaType) (v1.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return s.put(data, kind)
}

// add adds an artifact to the layout's index, under its name and tag.
func (s *store) add(d v1.Descriptor, registry, name, tag string) {
	d.Platform = nil
	d.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": name + ":" + tag,
		"io.containerd.image.name":          registry + "/" + name + ":" + tag,
	}
	s.index.Manifests = append(s.index.Manifests, d)
}

func (s *store) close() error {
	data, err := json.MarshalIndent(s.index, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "index.json"), append(data, '\n'), 0o644)
}

// cache keeps compressed layers from one run to the next. The name of a file has the digests of the
// content and of the file.
type cache struct {
	dir  string
	used map[string]bool
	lock *os.File
}

// newCache opens a cache, which no other run may use until it is closed.
func newCache(dir string) (*cache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	const name = "lock"
	lock, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%s: another release is being made in this folder; wait for it, or use another --dir", lock.Name())
	}
	return &cache{dir, map[string]bool{name: true}, lock}, nil
}

func (c *cache) close() { _ = c.lock.Close() }

// add puts a compressed layer into a layout. open returns its content, whose digest is known.
func (c *cache) add(s *store, content v1.Hash, open func() (io.ReadCloser, error)) (v1.Descriptor, error) {
	old, err := filepath.Glob(filepath.Join(c.dir, content.Hex+"-*.gz"))
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, file := range old {
		if d, err := c.link(s, file); err == nil {
			return d, nil
		}
	}
	in, err := open()
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer in.Close()
	file, err := c.compress(in, content)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return c.link(s, file)
}

// compress compresses a layer, checks its content, and returns the path of the result.
func (c *cache) compress(in io.Reader, content v1.Hash) (string, error) {
	out, err := os.CreateTemp(c.dir, "new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	whole, compressed := sha256.New(), sha256.New()
	zip := gzip.NewWriter(io.MultiWriter(out, compressed))
	if _, err := io.Copy(io.MultiWriter(zip, whole), in); err != nil {
		return "", err
	}
	if err := errors.Join(zip.Close(), out.Chmod(0o644), out.Sync()); err != nil {
		return "", err
	}
	if sum := hex.EncodeToString(whole.Sum(nil)); sum != content.Hex {
		return "", fmt.Errorf("a layer has the digest %s, and its image's configuration says %s: make images again", sum, content.Hex)
	}
	file := filepath.Join(c.dir, content.Hex+"-"+hex.EncodeToString(compressed.Sum(nil))+".gz")
	return file, os.Rename(out.Name(), file)
}

// link links a file of the cache into a layout, after a check of its digest.
func (c *cache) link(s *store, file string) (v1.Descriptor, error) {
	_, sum, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".gz"), "-")
	f, err := os.Open(file)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err == nil && hex.EncodeToString(h.Sum(nil)) != sum {
		err = fmt.Errorf("%s is damaged", file)
	}
	if err != nil {
		return v1.Descriptor{}, errors.Join(err, os.Remove(file))
	}
	c.used[filepath.Base(file)] = true
	d := v1.Descriptor{MediaType: types.OCILayer, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: sum}}
	if err := os.Link(file, s.path(d.Digest)); err != nil && !errors.Is(err, os.ErrExist) {
		return d, err
	}
	return d, nil
}

// prune removes what was not used by this run.
func (c *cache) prune() error {
	files, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !c.used[f.Name()] {
			if err := os.RemoveAll(filepath.Join(c.dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// compress returns data compressed with gzip, and the digest of data.
func compress(data []byte) ([]byte, v1.Hash, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	if _, err := zip.Write(data); err != nil {
		return nil, v1.Hash{}, err
	}
	if err := zip.Close(); err != nil {
		return nil, v1.Hash{}, err
	}
	sum := sha256.Sum256(data)
	return out.Bytes(), v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, nil
}
