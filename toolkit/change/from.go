package change

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gpuready/gpuready/internal/host"
)

// chunk is how much of two files is compared at a time, in bytes.
const chunk = 32 << 10

// from settles an item whose bytes lie in a file of this process: nil where that is
// what is there already, else the item with those bytes. So a program of megabytes
// is in memory only when it has to be written.
func from(root *host.Root, item Item) (*Item, error) {
	f := *item.File
	if f.Owner == nil && f.Xattrs == nil {
		if same, err := holds(root, item.Path, f); same || err != nil {
			return nil, err
		}
	}
	var err error
	if f.Data, err = os.ReadFile(f.From); err != nil {
		return nil, err
	}
	if len(f.Data) > maxFile {
		return nil, &fs.PathError{Op: "read", Path: f.From, Err: fmt.Errorf("%w: more than %d bytes", host.ErrTooLarge, maxFile)}
	}
	f.From, item.File = "", &f
	return &item, nil
}

// holds says that a path is a regular file with the bytes of f.From, and with its mode.
func holds(root *host.Root, name string, f File) (bool, error) {
	wanted, err := os.Open(f.From)
	if err != nil {
		return false, err
	}
	defer wanted.Close()
	will, err := wanted.Stat()
	if err != nil {
		return false, err
	}
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return false, nil // the long way says what is the matter
	}
	there, err := root.OpenFile(name)
	if err != nil {
		return false, nil
	}
	defer there.Close()
	is, err := there.Stat()
	if err != nil || is.Size() != will.Size() || f.Mode != 0 && f.Mode != is.Mode()&host.AttrMode {
		return false, nil
	}
	return equal(there, wanted)
}

// equal compares what is left to read.
func equal(there, wanted io.Reader) (bool, error) {
	buffers := make([]byte, 2*chunk)
	a, b := buffers[:chunk], buffers[chunk:]
	for {
		m, errA := io.ReadFull(there, a)
		n, errB := io.ReadFull(wanted, b)
		if over := errors.Is(errB, io.EOF) || errors.Is(errB, io.ErrUnexpectedEOF); errB != nil && !over {
			return false, errB
		}
		if m != n || !bytes.Equal(a[:m], b[:n]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			return errors.Is(errA, io.EOF) || errors.Is(errA, io.ErrUnexpectedEOF), nil
		}
	}
}
