package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/gpuready/gpuready/internal/host"
)

// Item is the wanted state of a path of the host: exactly one of File, Link, Node and
// Absent.
type Item struct {
	Path   string
	Follow bool // follow a link at the path
	File   *File
	Link   string // target of a symbolic link
	Node   *Node
	Absent bool
}

// File is a regular file. Unset attributes are kept from the file that it replaces. A new
// file is 0644 and belongs to this process's user.
type File struct {
	Data []byte
	// From is a file of this process with the bytes, for one that is too large to be kept
	// in memory. If it is "", Data has the bytes. A Change always has Data.
	From   string
	Mode   fs.FileMode
	Owner  *host.Owner
	Xattrs map[string][]byte // such as SELinux's label, security.selinux

	// Without is the content to restore later, for a file that others have edited after
	// we wrote it: their version without our parts. If it is nil, their version is kept.
	// Only a store reads it.
	Without []byte
}

// Node is a character device.
type Node struct {
	Major, Minor uint32
	Mode         fs.FileMode
}

// Change is an Item that differs from the host, with the current state.
type Change struct {
	Item
	Verb   string // "create", "replace", "remove"
	Before string // description of the current state; "" with "create"
	Was    Item   // the current state; applying it undoes the change
}

// errChanged is returned, wrapped, by Apply if the path has changed since the plan was made.
var errChanged = errors.New("it was changed meanwhile; run again")

// maxFile limits the size of a file, in bytes. The largest is gpu-oci-runtime, 4 MB.
const maxFile = 64 << 20

// Plan compares the items with the host and returns the required changes. A directory at the
// path of an item is an error, since replacing it would destroy files of others.
func Plan(root *host.Root, items []Item) ([]Change, error) {
	var changes []Change
	for _, item := range items {
		c, err := compare(root, item)
		if err != nil {
			return nil, err
		}
		if c.Verb != "" {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// compare returns the change for an item, without a verb if it is as wanted.
func compare(root *host.Root, item Item) (Change, error) {
	c := Change{Item: item}
	if item.Follow {
		real, err := root.Resolve(item.Path)
		if err != nil {
			return c, err
		}
		c.Path, c.Follow = real, false
	}
	if item.File != nil && item.File.From != "" {
		loaded, err := load(root, c.Item)
		if err != nil || loaded == nil {
			return c, err
		}
		c.Item = *loaded
	}
	var err error
	if c.Was, c.Before, err = ReadItem(root, c.Path); err != nil {
		return c, err
	}
	if odd := c.Before != "" && c.Was.kind() == ""; odd || c.Was.Node != nil && (item.File != nil || item.Link != "") {
		return c, fmt.Errorf("%s is a %s, but a %s is wanted there; move it away", c.Path, c.Before, item.kind())
	}
	c.complete()
	switch {
	case c.matches(c.Was):
	case c.Absent:
		c.Verb = "remove"
	case c.Was.Absent:
		c.Verb = "create"
	default:
		c.Verb = "replace"
	}
	return c, nil
}

// complete fills in the unset attributes of a file.
func (c *Change) complete() {
	if c.File == nil {
		return
	}
	f, was := *c.File, File{Mode: 0o644}
	if c.Was.File != nil {
		was = *c.Was.File
	}
	if f.Mode == 0 {
		f.Mode = was.Mode
	}
	if f.Owner == nil {
		f.Owner = was.Owner
	}
	if f.Xattrs == nil {
		f.Xattrs = was.Xattrs
	}
	c.File = &f
}

// ReadItem returns the state of a path and a description of it, "" if the path does not exist. For
// anything but a file, link or character device the Item is empty.
func ReadItem(root *host.Root, name string) (Item, string, error) {
	item := Item{Path: name}
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		item.Absent = true
		return item, "", nil
	}
	if err != nil {
		return item, "", err
	}
	major, minor, isDevice := host.Device(info)
	switch {
	case isDevice:
		item.Node = &Node{Major: major, Minor: minor, Mode: info.Mode().Perm()}
		return item, fmt.Sprintf("device node %d:%d", major, minor), nil
	case info.Mode()&fs.ModeSymlink != 0:
		item.Link, err = root.Readlink(name)
		return item, "link to " + item.Link, err
	case info.Mode().IsRegular():
		data, attr, err := root.ReadFileAttr(name, maxFile)
		item.File = &File{Data: data, Mode: attr.Mode, Owner: attr.Owner, Xattrs: attr.Xattrs}
		return item, fmt.Sprintf("file, %#o, %d bytes", info.Mode().Perm(), info.Size()), err
	case info.IsDir():
		return item, "directory", nil
	}
	return item, "special file (" + info.Mode().Type().String() + ")", nil
}

// matches reports whether the current state is as wanted.
func (i Item) matches(now Item) bool {
	if !i.Same(now) {
		return false
	}
	f := i.File
	return f == nil || f.Mode == now.File.Mode &&
		(f.Owner == nil || now.File.Owner != nil && *f.Owner == *now.File.Owner) &&
		(f.Xattrs == nil || maps.EqualFunc(f.Xattrs, now.File.Xattrs, bytes.Equal))
}

// Same reports whether both have the same kind and content; owners and permissions may
// differ.
func (i Item) Same(other Item) bool {
	switch {
	case i.File != nil:
		return other.File != nil && bytes.Equal(i.File.Data, other.File.Data)
	case i.Node != nil:
		// The driver controls the permissions of an existing node (module parameters
		// NVreg_DeviceFileMode, …GID, …UID).
		return other.Node != nil && i.Node.Major == other.Node.Major && i.Node.Minor == other.Node.Minor
	case i.Absent:
		return other.Absent
	}
	return i.Link != "" && i.Link == other.Link
}

func (i Item) kind() string {
	switch {
	case i.File != nil:
		return "file"
	case i.Node != nil:
		return "device node"
	case i.Absent:
		return "nothing"
	case i.Link != "":
		return "link"
	}
	return ""
}
