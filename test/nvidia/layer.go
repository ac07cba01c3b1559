package nvidia

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// load returns the image of an archive and its full name. Layers are compressed, as in
// registries. dir is for files that the image needs.
func load(archive, dir string) (string, v1.Image, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err == nil && len(manifest) == 1 && len(manifest[0].RepoTags) > 0 {
		image, err := tarball.ImageFromPath(archive, nil)
		return manifest[0].RepoTags[0], image, err
	}
	return loadLayout(archive, dir)
}

// loadLayout is load for an archive in the OCI layout, of package binaries.
func loadLayout(archive, dir string) (string, v1.Image, error) {
	unpacked := filepath.Join(dir, filepath.Base(archive)+".unpacked")
	if err := unpack(archive, unpacked); err != nil {
		return "", nil, err
	}
	index, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		return "", nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return "", nil, err
	}
	if len(list.Manifests) != 1 {
		return "", nil, fmt.Errorf("%d images, not one", len(list.Manifests))
	}
	image, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		return "", nil, err
	}
	image, err = compress(image)
	return list.Manifests[0].Annotations["io.containerd.image.name"], image, err
}

// compress returns an image with compressed layers and the same configuration.
func compress(image v1.Image) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	made, err := mutate.Config(empty.Image, config.Config)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		smaller, err := tarball.LayerFromOpener(l.Uncompressed)
		if err != nil {
			return nil, err
		}
		if made, err = mutate.AppendLayers(made, smaller); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// unpack unpacks an archive of files and folders.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag == tar.TypeDir {
			err = root.MkdirAll(header.Name, 0o755)
		} else {
			err = unpackFile(root, header.Name, r)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, content io.Reader) error {
	f, err := root.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// padding is a layer of random bytes in a file on disk, uncompressed.
type padding struct {
	file string
	hash v1.Hash
	size int64
}

// newPadding makes a layer of a size, the same one for the same seed, in the folder of a
// registry's blobs: the registry would keep it in memory while it is uploaded.
func newPadding(blobs, seed string, size int64) (*padding, error) {
	if err := os.MkdirAll(filepath.Join(blobs, "sha256"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(blobs, "padding-")
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	counted := &counter{w: io.MultiWriter(f, sum)}
	w := tar.NewWriter(counted)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/share/padding", Mode: 0o644, Size: size})
	if err == nil {
		_, err = io.CopyN(w, rand.NewChaCha8(sha256.Sum256([]byte(seed))), size)
	}
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		return nil, err
	}
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	blob := filepath.Join(blobs, hash.Algorithm, hash.Hex)
	return &padding{blob, hash, counted.n}, os.Rename(f.Name(), blob)
}

func (p *padding) Digest() (v1.Hash, error)             { return p.hash, nil }
func (p *padding) DiffID() (v1.Hash, error)             { return p.hash, nil }
func (p *padding) Compressed() (io.ReadCloser, error)   { return os.Open(p.file) }
func (p *padding) Uncompressed() (io.ReadCloser, error) { return os.Open(p.file) }
func (p *padding) Size() (int64, error)                 { return p.size, nil }
func (p *padding) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
