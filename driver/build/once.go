package build

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/build/cache"
)

// CompileOnce writes the modules of a request, or their halves, into the folder dir, which it
// replaces. It takes them from the cache, or compiles and caches them. It returns their Digest,
// and whether they were cached. CompileOnce sets r.Work and r.Conftest.
func CompileOnce(ctx context.Context, r Request, store cache.Cache, dir string) (digest string, cached bool, err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", false, r.buildError(err)
	}
	// On the same file system, so that the modules appear at once.
	if r.Work, err = os.MkdirTemp(filepath.Dir(dir), ".build-"); err != nil {
		return "", false, r.buildError(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.Work)) }()
	if store.Dir != "" {
		r.Conftest = cache.Cache{Dir: filepath.Join(store.Dir, "conftest"), Keep: store.Keep}
		store.Dir = filepath.Join(store.Dir, "modules")
	}
	if digest, err = Digest(ctx, r); err != nil {
		return "", false, err
	}
	r.setDefaults()
	made := filepath.Join(r.Work, "cached")
	err = store.Get(ctx, digest, made)
	cached = err == nil
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.Log.Warn("cached modules cannot be read: they are built again", "err", err)
		}
		compile := Compile
		if r.Halves {
			compile = CompileHalves
		}
		if made, err = compile(ctx, r); err == nil {
			if err := store.Put(ctx, digest, made); err != nil { // the cache only saves time
				r.Log.Warn("caching the built modules failed", "err", err)
			}
		}
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(dir), os.Rename(made, dir))
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return digest, cached, err
}
