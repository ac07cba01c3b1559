package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gpuready/gpuready/internal/host"
)

// chunk is the number of bytes of two files that are compared at a time.
const chunk = 32 << 10

// load loads the bytes of an item from a file of this process. It returns nil if the host
// already has that file. So a program of megabytes is only in memory if it has to be
// written.
func load(root *host.Root, item Item) (*Item, error) {
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

// holds reports whether a path is a regular file with the bytes of f.From and the mode of f.
func holds(root *host.Root, name string, f File) (bool, error) {
	wanted, err := os.Open(f.From)
	if err != nil {
		return false, err
	}
	defer wanted.Close()
	wantedInfo, err := wanted.Stat()
	if err != nil {
		return false, err
	}
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return false, nil // the full comparison reports the error
	}
	current, err := root.OpenFile(name)
	if err != nil {
		return false, nil
	}
	defer current.Close()
	currentInfo, err := current.Stat()
	if err != nil || currentInfo.Size() != wantedInfo.Size() || f.Mode != 0 && f.Mode != currentInfo.Mode()&host.AttrMode {
		return false, nil
	}
	return equalBytes(current, wanted)
}

// equalBytes compares the remaining bytes of two readers.
func equalBytes(current, wanted io.Reader) (bool, error) {
	buffers := make([]byte, 2*chunk)
	a, b := buffers[:chunk], buffers[chunk:]
	for {
		m, errA := io.ReadFull(current, a)
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
