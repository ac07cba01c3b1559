package nvidia

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blobs keeps a registry's blobs in a folder. Unlike the registry package's own, it does not
// read them whole each time it is asked for one.
type blobs string

func (b blobs) path(h v1.Hash) string { return filepath.Join(string(b), h.Algorithm, h.Hex) }

// Get opens a blob.
func (b blobs) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	f, err := os.Open(b.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, registry.ErrNotFound
	}
	return f, err
}

// Stat returns a blob's size.
func (b blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	info, err := os.Stat(b.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, registry.ErrNotFound
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Put keeps a blob, whose digest the reader checks.
func (b blobs) Put(_ context.Context, _ string, h v1.Hash, content io.ReadCloser) error {
	defer content.Close()
	if err := os.MkdirAll(filepath.Join(string(b), h.Algorithm), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(b), "upload-")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), b.path(h))
}
