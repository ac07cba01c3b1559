package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// title is the annotation with the name of a blob's file.
const title = "org.opencontainers.image.title"

// Blob is a part of an artifact: a layer that is neither an archive nor compressed.
type Blob struct {
	descriptor v1.Descriptor
	open       func() (io.ReadCloser, error)
}

// NewBlob returns a blob with the given bytes. The name may be empty.
func NewBlob(name string, mediaType types.MediaType, data []byte) *Blob {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	return &Blob{describe(name, mediaType, hash(data), int64(len(data))), open}
}

// OpenBlob returns a blob with the content of a file, which must not change.
func OpenBlob(name string, mediaType types.MediaType, file string) (*Blob, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return nil, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	return &Blob{describe(name, mediaType, digest, n), func() (io.ReadCloser, error) { return os.Open(file) }}, nil
}

func describe(name string, mediaType types.MediaType, digest v1.Hash, size int64) v1.Descriptor {
	d := v1.Descriptor{MediaType: mediaType, Size: size, Digest: digest}
	if name != "" {
		d.Annotations = map[string]string{title: name}
	}
	return d
}

// AddTo writes the blob into an OCI layout. A blob is there whole or not at all.
func (b *Blob) AddTo(to layout.Path) error {
	path := filepath.Join(string(to), "blobs", b.descriptor.Digest.Algorithm, b.descriptor.Digest.Hex)
	if info, err := os.Stat(path); err == nil && info.Size() == b.descriptor.Size {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	data, err := b.open()
	if err != nil {
		return err
	}
	defer data.Close()
	f, err := os.CreateTemp(filepath.Dir(path), ".writing-")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// FileName returns the name of the file that a layer of an artifact holds, or "".
func FileName(layer v1.Descriptor) string { return layer.Annotations[title] }

// Digest returns the digest of the bytes.
func (b *Blob) Digest() (v1.Hash, error) { return b.descriptor.Digest, nil }

// DiffID returns the digest, since nothing is compressed.
func (b *Blob) DiffID() (v1.Hash, error) { return b.descriptor.Digest, nil }

// Size returns the number of bytes.
func (b *Blob) Size() (int64, error) { return b.descriptor.Size, nil }

// MediaType returns the type of the blob.
func (b *Blob) MediaType() (types.MediaType, error) { return b.descriptor.MediaType, nil }

// Compressed returns the bytes.
func (b *Blob) Compressed() (io.ReadCloser, error) { return b.open() }

// Uncompressed returns the bytes.
func (b *Blob) Uncompressed() (io.ReadCloser, error) { return b.open() }
