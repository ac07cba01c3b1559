// Package record reads and writes a small file that one process writes and others
// read, such as a component's state or a readiness proof.
//
// The writer replaces the file as a whole, so that a reader sees the old
// content or the new one and nothing between. The reader does not trust the
// writer: it bounds the size and refuses a symbolic link, a FIFO or a device in
// place of the file, instead of following, waiting on or opening it.
package record

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInvalid means that something other than a record is at the path.
var ErrInvalid = errors.New("not a valid record")

// staleTemp is the age at which a temporary file must be left over from a killed
// writer: writing one takes milliseconds.
const staleTemp = time.Minute

// Write replaces the file at path with data, mode 0644, and creates its directory
// (0755) if it is missing. After an error the old file is unchanged and
// no temporary file is left.
func Write(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w%s", path, cause(err), advice(err, dir))
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sweep(path)
	temp := filepath.Join(dir, tempPrefix(path)+rand.Text())
	if err := writeSynced(temp, data); err != nil {
		_ = os.Remove(temp)
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncDir(dir)
}

// Replace is like Write for a file whose old content must not stay once it is wrong.
// Without room or a descriptor for a new file, it overwrites the old one in place, and
// readers may briefly see part of the content. After an error the file is empty or gone.
func Replace(path string, data []byte) error {
	err := Write(path, data)
	if err == nil {
		return nil
	}
	if overwriteErr := overwrite(path, data); overwriteErr == nil {
		return nil
	}
	return errors.Join(err, Clear(path))
}

// overwrite replaces the content of an existing file. It needs no inode, and on
// most file systems no more room than the old content took.
func overwrite(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return ErrInvalid
	}
	// Truncating first would free the file's room for somebody else to take.
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	return f.Sync()
}

// Clear empties the file at path, which takes neither room nor a descriptor. Its content is no longer
// true, and there is no other. An empty file is better than none: a reader learns that there was a record.
func Clear(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().IsRegular() {
		err = os.Truncate(path, 0) // the directory is the writer's own: nobody puts a link there meanwhile
		if err == nil {
			return nil
		}
	}
	return Remove(path)
}

// Remove removes the file at path. A missing file is not an error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w%s", path, cause(err), advice(err, filepath.Dir(path)))
	}
	return nil
}

// Read returns the content of the file at path, at most limit bytes of it. The
// error is fs.ErrNotExist, ErrInvalid or that of the file system, wrapped.
func Read(path string, limit int) ([]byte, error) {
	// O_NONBLOCK: opening a FIFO must not wait for its writer, and the check
	// comes after the open so that nothing can be exchanged between the two.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w: %s is a symbolic link; remove it", ErrInvalid, path)
	case errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %s is a socket or a device; remove it", ErrInvalid, path)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file (%s); remove it", ErrInvalid, path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(data) > limit {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, path, limit)
	}
	return data, nil
}

func writeSynced(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	// The mode is part of the contract, whatever the umask is.
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	// Some file systems cannot sync a directory and return EINVAL: there the
	// rename is as durable as it can be.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func tempPrefix(path string) string { return "." + filepath.Base(path) + ".tmp-" }

// sweep removes temporary files of killed writers. It is best effort: a left-over
// only takes room.
func sweep(path string) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix(path)) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleTemp {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// cause strips the path of a temporary file, which would only confuse.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

// FreeSpace returns the next action where the file system of a directory has no room left.
func FreeSpace(dir string) string {
	return fmt.Sprintf("free space on the file system of %[1]s: df -h %[1]s, df -i %[1]s", dir)
}

// advice returns the next action for errors that a person can fix.
func advice(err error, dir string) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "; " + FreeSpace(dir)
	case errors.Is(err, unix.EROFS):
		return "; mount " + dir + " writable"
	case errors.Is(err, fs.ErrPermission):
		return "; run as root or make " + dir + " writable for this user"
	case errors.Is(err, unix.ENOTDIR):
		return "; remove the file that is in the place of the directory " + dir
	}
	return ""
}
