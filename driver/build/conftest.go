package build

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/build/folder"
)

// conftestDigest returns a digest of the inputs of NVIDIA's tests of the kernel.
func (t *tree) conftestDigest() (string, error) {
	d := folder.NewDigest("conftest", digestFormat, t.Release, t.compiler.version)
	err := d.AddFiles(filepath.Join(t.dir, "conftest.sh"),
		filepath.Join(t.Headers.Output, configFile), filepath.Join(t.Headers.Output, symbolsFile))
	return d.String(), err
}

// conftestDir is the folder in which NVIDIA's Makefile writes the results of its tests, as
// headers.
const conftestDir = "conftest"

// restoreConftest restores the results of an earlier build for the same kernel: they take 40 %
// of a build. Tests that another driver version or module adds are run by make.
func (t *tree) restoreConftest(ctx context.Context) error {
	if !t.isNVIDIA() || t.Conftest.Dir == "" {
		return nil
	}
	sum, err := t.conftestDigest()
	if err != nil {
		return err
	}
	t.conftest = sum
	earlier := filepath.Join(t.top, conftestDir)
	err = t.Conftest.Get(ctx, sum, earlier)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Log.Warn("restoring the tests of the kernel failed: they are run again", "error", err)
		return ctx.Err()
	}
	// With one time for all files, none is older than another.
	if err := folder.Copy(ctx, earlier, filepath.Join(t.dir, conftestDir), false); err != nil {
		return err
	}
	t.restored, err = countFiles(earlier)
	return err
}

// storeConftest stores the results for the next build, if make has added any.
func (t *tree) storeConftest(ctx context.Context) error {
	if t.conftest == "" {
		return nil
	}
	dir := filepath.Join(t.dir, conftestDir)
	if n, err := countFiles(dir); err != nil || n == t.restored {
		return err
	}
	return t.Conftest.Put(ctx, t.conftest, dir)
}

// countFiles returns the number of files below a folder.
func countFiles(dir string) (int, error) {
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	return n, err
}
