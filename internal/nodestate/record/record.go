// Package record is a small file that one process writes and others read: a
// component's state, a readiness proof.
//
// The writer replaces the file as a whole, so that a reader sees the old
// content or the new one and nothing between. The reader does not trust the
// writer: what is read is bounded in size, and a symbolic link, a FIFO or a
// device in the place of the file is refused rather than followed, waited on or
// opened.
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

// ErrInvalid means that there is something at the path, but not a record.
var ErrInvalid = errors.New("not a valid record")

// staleTemp is the age at which a temporary file must be what a killed writer
// left behind: writing one takes milliseconds.
const staleTemp = time.Minute

// Write replaces the file at path by data, mode 0644, and makes its directory
// (0755) where it is missing. After an error the old file is as it was and
// nothing new is left beside it.
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

// Replace is Write for a file whose old content must not outlive its truth: where there
// is no room for a new file, or no descriptor for it, the old one is written over.
// Readers may then see a part of it for a moment. After an error the file is empty, or
// there is none: it says nothing any more.
func Replace(path string, data []byte) error {
	err := Write(path, data)
	if err == nil {
		return nil
	}
	if again := overwrite(path, data); again == nil {
		return nil
	}
	return errors.Join(err, void(path))
}

// overwrite replaces the content of a file that is there. It needs no inode, and on
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
	// Truncated first, it would give back the room that it has, for somebody else to take.
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	return f.Sync()
}

// void makes the file at path say nothing, which takes neither room nor a descriptor.
// An empty file is better than none: a reader learns that something was known.
func void(path string) error {
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

// Remove removes the file at path. That there is none is not an error.
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
	// Some file systems cannot sync a directory and say EINVAL: there the
	// rename is as durable as it gets.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func tempPrefix(path string) string { return "." + filepath.Base(path) + ".tmp-" }

// sweep removes what writers that were killed left behind. It is best effort: a
// left-over does no harm but take room.
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
	if path, is := errors.AsType[*fs.PathError](err); is {
		return path.Err
	}
	if link, is := errors.AsType[*os.LinkError](err); is {
		return link.Err
	}
	return err
}

// advice is the next action for the errors that a person can do something about.
func advice(err error, dir string) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "; free space on the file system of " + dir
	case errors.Is(err, unix.EROFS):
		return "; mount " + dir + " writable"
	case errors.Is(err, fs.ErrPermission):
		return "; run as root or make " + dir + " writable for this user"
	case errors.Is(err, unix.ENOTDIR):
		return "; remove the file that is in the place of the directory " + dir
	}
	return ""
}
