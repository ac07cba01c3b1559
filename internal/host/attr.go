package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Owner is the owner of a file.
type Owner struct{ UID, GID int }

// Attr holds the attributes of a regular file.
type Attr struct {
	Mode   fs.FileMode // permissions, with setuid, setgid and sticky
	Owner  *Owner      // nil: whoever writes it
	Xattrs map[string][]byte
}

// AttrMode is the mask of the mode bits that Attr keeps.
const AttrMode = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// maxXattr is XATTR_SIZE_MAX of Linux.
const maxXattr = 64 << 10

// OwnerOf returns the owner of a file.
func OwnerOf(info fs.FileInfo) Owner {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return Owner{int(st.Uid), int(st.Gid)}
	}
	return Owner{}
}

// ReadFileAttr returns the content of a regular file of at most limit bytes, and the
// attributes to keep when it is rewritten.
func (r *Root) ReadFileAttr(name string, limit int64) ([]byte, Attr, error) {
	f, err := r.OpenFile(name)
	if err != nil {
		return nil, Attr{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, Attr{}, wrap("stat", name, err)
	}
	owner := OwnerOf(info)
	attr := Attr{Mode: info.Mode() & AttrMode, Owner: &owner}
	if attr.Xattrs, err = xattrs(int(f.Fd())); err != nil {
		return nil, Attr{}, wrap("read attributes", name, err)
	}
	var data bytes.Buffer // made at the file's size: growing step by step leaves garbage several times as large
	data.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	if _, err := data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, Attr{}, wrap("read", name, err)
	}
	if int64(data.Len()) > limit {
		return nil, Attr{}, wrap("read", name, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit))
	}
	return data.Bytes(), attr, nil
}

// xattrs returns the extended attributes of an open file, except signatures of its
// content or inode (IMA, EVM), which a new file cannot have.
func xattrs(fd int) (map[string][]byte, error) {
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return nil, nil
	}
	names := make([]byte, maxXattr) // XATTR_LIST_MAX is the same
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "security.ima" || name == "security.evm" {
			continue
		}
		value, err := xattr(fd, name)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			continue // taken away meanwhile; or listed by a layer that does not read it
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = value
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

func xattr(fd int, name string) ([]byte, error) {
	value := make([]byte, maxXattr)
	n, err := unix.Fgetxattr(fd, name, value)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(value[:n]), nil
}

// setAttr sets the owner, extended attributes and mode of a new file, in this order: a
// change of owner clears setuid.
func (r *Root) setAttr(f *os.File, at string, attr Attr) error {
	if attr.Owner != nil {
		err := r.do(Op{Kind: OpChown, Path: at, Owner: *attr.Owner}, func() error { return f.Chown(attr.Owner.UID, attr.Owner.GID) })
		if err != nil {
			return fmt.Errorf("owner %d:%d: %w", attr.Owner.UID, attr.Owner.GID, reason(err))
		}
	}
	for name, value := range attr.Xattrs {
		if now, err := xattr(int(f.Fd()), name); err == nil && bytes.Equal(now, value) {
			continue // given by the security policy already
		}
		err := r.do(Op{Kind: OpXattr, Path: at, To: name, Data: value}, func() error { return unix.Fsetxattr(int(f.Fd()), name, value, 0) })
		if err != nil {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}
	return r.do(Op{Kind: OpChmod, Path: at, Mode: attr.Mode & AttrMode}, func() error { return f.Chmod(attr.Mode & AttrMode) })
}
