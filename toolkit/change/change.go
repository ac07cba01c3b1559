// Package change brings a host to a wanted state: what is wanted is data, what
// has to change for it is computed by looking, shown byte for byte, and only
// then done. What is right already is not touched, not even its time stamp.
package change

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/gpuready/gpuready/internal/host"
)

// Item is one thing that is wanted at a path of the host: exactly one of File,
// Link, Node and Absent.
type Item struct {
	Path   string
	Follow bool // what the path leads to is meant, if a link is there
	File   *File
	Link   string // target of a symbolic link
	Node   *Node
	Absent bool
}

// File is a regular file. What is not said is kept from the file that it
// replaces; a new file is 0644 and belongs to this process's user.
type File struct {
	Data []byte
	// From is a file of this process that has the bytes instead, for one that is too
	// large to be kept in memory; "": Data has. A Change always has Data.
	From   string
	Mode   fs.FileMode
	Owner  *host.Owner
	Xattrs map[string][]byte // such as SELinux's label, security.selinux

	// Without is what the file is to be once we are gone, for one that others
	// have edited after we wrote it: their version without our parts. Nil: as
	// they left it. It is only read by who keeps account.
	Without []byte
}

// Node is a character device.
type Node struct {
	Major, Minor uint32
	Mode         fs.FileMode
}

// Change is an Item that is not as wanted, and what is there now.
type Change struct {
	Item
	Verb   string // "create", "replace", "remove"
	Before string // in words; "" with "create"
	Was    Item   // what is there now: to want it is to undo the change
}

// ErrChanged is returned, wrapped, by Apply where what is to be replaced is not
// what it was when the plan was made.
var ErrChanged = errors.New("it was changed meanwhile; run again")

// maxFile bounds what is read, in bytes; the largest is gpu-oci-runtime, 4 MB.
const maxFile = 64 << 20

// Plan looks at the host and returns what has to change. A directory in the
// place of an item is an error: replacing it would destroy what is not ours.
func Plan(root *host.Root, items []Item) ([]Change, error) {
	var changes []Change
	for _, item := range items {
		c, err := look(root, item)
		if err != nil {
			return nil, err
		}
		if c.Verb != "" {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

func look(root *host.Root, item Item) (Change, error) {
	c := Change{Item: item}
	if item.Follow {
		real, err := root.Resolve(item.Path)
		if err != nil {
			return c, err
		}
		c.Path, c.Follow = real, false
	}
	if item.File != nil && item.File.From != "" {
		whole, err := from(root, c.Item)
		if err != nil || whole == nil {
			return c, err
		}
		c.Item = *whole
	}
	var err error
	if c.Was, c.Before, err = See(root, c.Path); err != nil {
		return c, err
	}
	if odd := c.Before != "" && c.Was.kind() == ""; odd || c.Was.Node != nil && (item.File != nil || item.Link != "") {
		return c, fmt.Errorf("%s is a %s, a %s is to be there; move it away", c.Path, c.Before, item.kind())
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

// complete says of a file what was not said.
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

// See tells what is at a path, also in words; "" for nothing. What is no file,
// link or character device is an Item that says nothing.
func See(root *host.Root, name string) (Item, string, error) {
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
		data, attr, err := root.ReadWhole(name, maxFile)
		item.File = &File{Data: data, Mode: attr.Mode, Owner: attr.Owner, Xattrs: attr.Xattrs}
		return item, fmt.Sprintf("file, %#o, %d bytes", info.Mode().Perm(), info.Size()), err
	case info.IsDir():
		return item, "directory", nil
	}
	return item, "special file (" + info.Mode().Type().String() + ")", nil
}

// matches says that what is there is as wanted.
func (i Item) matches(now Item) bool {
	if !i.Same(now) {
		return false
	}
	f := i.File
	return f == nil || f.Mode == now.File.Mode &&
		(f.Owner == nil || now.File.Owner != nil && *f.Owner == *now.File.Owner) &&
		(f.Xattrs == nil || maps.EqualFunc(f.Xattrs, now.File.Xattrs, bytes.Equal))
}

// Same says that both are of one kind and content; owners and permissions may differ.
func (i Item) Same(other Item) bool {
	switch {
	case i.File != nil:
		return other.File != nil && bytes.Equal(i.File.Data, other.File.Data)
	case i.Node != nil:
		// Its permissions are the driver's business once it is there (module
		// parameters NVreg_DeviceFileMode, …GID, …UID).
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
