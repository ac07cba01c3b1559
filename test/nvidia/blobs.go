package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blobs keeps a registry's blobs in a folder. Unlike the registry package's own, it does not
// read a blob whole to answer a question about its size.
type blobs struct {
	registry.BlobHandler
	registry.BlobPutHandler
	dir string
}

func newBlobs(dir string) blobs {
	disk := registry.NewDiskBlobHandler(dir)
	return blobs{disk, disk.(registry.BlobPutHandler), dir}
}

// Stat returns a blob's size.
func (b blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	info, err := os.Stat(filepath.Join(b.dir, h.Algorithm, h.Hex))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, registry.ErrNotFound
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
