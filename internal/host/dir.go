package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is one open directory of a Root. Its methods take names in it and resolve no
// paths, which is fast for reading thousands of files of one directory. They may not be
// called concurrently.
type Dir struct {
	f    *os.File
	link [unix.PathMax]byte // for Readlink
}

// OpenDir opens the directory that name leads to.
func (r *Root) OpenDir(name string) (*Dir, error) {
	f, err := r.openDir(name)
	if err != nil {
		return nil, err
	}
	return &Dir{f: f}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.f.Close() }

// Readlink returns the target of a link in the directory, as it is written.
func (d *Dir) Readlink(base string) (string, error) {
	n, err := unix.Readlinkat(int(d.f.Fd()), base, d.link[:])
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: base, Err: err}
	}
	return string(d.link[:n]), nil
}

// File is a regular file open for reading.
type File struct {
	fd   int
	name string
}

// OpenFile opens a regular file in the directory for reading. Like Root's, it opens
// nothing else: no link, nothing that would block, and no file without a size, because
// reading some of those in /proc changes them.
func (d *Dir) OpenFile(base string) (*File, error) {
	fail := func(err error) (*File, error) { return nil, &fs.PathError{Op: "open", Path: base, Err: err} }
	dir := int(d.f.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return fail(ErrNotRegular)
	}
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW)
	if err != nil {
		return fail(err)
	}
	if err = unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return fail(ErrNotRegular)
	}
	return &File{fd, base}, nil
}

// ReadAt reads as an io.ReaderAt does.
func (f *File) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		more, err := unix.Pread(f.fd, b[n:], at+int64(n))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return n, &fs.PathError{Op: "read", Path: f.name, Err: err}
		case more == 0:
			return n, io.EOF
		default:
			n += more
		}
	}
	return n, nil
}

// Fd returns the file's descriptor, which is valid until Close.
func (f *File) Fd() int { return f.fd }

// Close closes the file.
func (f *File) Close() error { return unix.Close(f.fd) }
