package cache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build/folder"
)

// manifestName is the file that lists an entry's files, as sha256sum -c reads it.
const manifestName = "SHA256SUMS"

// maxManifest bounds a manifest, in bytes. NVIDIA's tests of a kernel are 1,000 files.
const maxManifest = 4 << 20

// errDamaged is returned, wrapped, for an entry whose files are not those that were stored.
var errDamaged = errors.New("damaged")

// storeFiles copies the files of a folder to a new folder, writes their manifest, and syncs all of
// them to the disk.
func storeFiles(ctx context.Context, from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	files := filepath.Join(to, "files")
	if err := folder.Copy(ctx, from, files, false); err != nil {
		return err
	}
	sums := map[string]string{}
	err := filepath.WalkDir(files, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s: only regular files can be cached", path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(files, path)
		if err == nil {
			sums[rel], err = folder.CopySum(io.Discard, f)
		}
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(to, manifestName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(formatManifest(sums))
	if err == nil {
		// All files at once: NVIDIA's tests of a kernel are a thousand.
		err = unix.Syncfs(int(f.Fd()))
	}
	return errors.Join(err, f.Close())
}

// restoreFiles copies the files that store has written to a new folder. The error wraps errDamaged
// if they have changed.
func restoreFiles(ctx context.Context, from, to string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", from, errDamaged, err)
	}
	defer root.Close() //nolint:errcheck // it is only read
	text, err := readRegular(root, manifestName, maxManifest)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", from, errDamaged, err)
	}
	sums, err := parseManifest(text)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", from, errDamaged, err)
	}
	present := 0
	err = fs.WalkDir(root.FS(), "files", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			present++
			if present > len(sums) {
				err = fmt.Errorf("%s is not in the manifest", path)
			}
		}
		return err
	})
	if err != nil || present != len(sums) {
		return fmt.Errorf("%s: %w: it has %d files, not %d: %w", from, errDamaged, present, len(sums), err)
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := restoreFile(root, name, to, sums[name]); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
	return nil
}

// restoreFile copies a file whose digest has to be sum.
func restoreFile(root *os.Root, name, to, sum string) error {
	in, err := openRegular(root, filepath.Join("files", name))
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	defer in.Close() //nolint:errcheck // it is only read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	at := filepath.Join(to, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	is, err := folder.CopySum(out, in)
	if err = errors.Join(err, out.Close()); errors.Is(err, unix.EIO) {
		return fmt.Errorf("%s: %w: %w", name, errDamaged, err)
	}
	if err == nil && is != sum {
		err = fmt.Errorf("%s: %w: its digest differs", name, errDamaged)
	}
	return err
}

// openRegular opens a file, which has to be regular.
func openRegular(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func readRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, err
}

// formatManifest returns a line "<digest>  files/<name>" for each file.
func formatManifest(sums map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "%s  files/%s\n", sums[name], name)
	}
	return b.String()
}

// parseManifest is the inverse of formatManifest. It rejects any text that formatManifest would
// not write: a truncated manifest is damaged, and so is an empty one.
func parseManifest(text []byte) (map[string]string, error) {
	sums := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  files/")
		if !ok || !digestPattern.MatchString(sum) || !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." {
			return nil, fmt.Errorf("%q is not a line of %s", lines.Text()[:min(len(lines.Text()), 100)], manifestName)
		}
		sums[name] = sum
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(sums) == 0 || formatManifest(sums) != string(text) {
		return nil, fmt.Errorf("%s is truncated", manifestName)
	}
	return sums, nil
}
