// Package change brings a host to a wanted state: what is wanted is data, what
// has to change for it is computed by looking, shown byte for byte, and only
// then done. What is right already is not touched, not even its time stamp.
package change

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuready/gpuready/internal/host"
)

// Item is one thing that is wanted at a path of the host: exactly one of File,
// Link, Node and Absent.
type Item struct {
	Path   string
	File   *File
	Link   string // target of a symbolic link
	Node   *Node
	Absent bool
}

// File is a regular file.
type File struct {
	Data []byte
	Mode fs.FileMode
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
	old    []byte // content of the file that is replaced or removed
}

// maxFile bounds what is read for comparison; the largest is the hook, 3 MB.
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
	info, err := root.Lstat(item.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if !item.Absent {
			c.Verb = "create"
		}
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c.Before = describe(root, item.Path, info)
	if info.IsDir() {
		return c, fmt.Errorf("%s is a directory, a %s is to be there; move it away", item.Path, item.kind())
	}
	if info.Mode().IsRegular() && (item.File != nil || item.Absent) {
		if c.old, err = root.ReadFile(item.Path, maxFile); err != nil {
			return c, err
		}
	}
	if item.Absent {
		c.Verb = "remove"
		return c, nil
	}
	if !item.matches(root, info, c.old) {
		c.Verb = "replace"
	}
	return c, nil
}

func (i Item) matches(root *host.Root, info fs.FileInfo, data []byte) bool {
	switch {
	case i.File != nil:
		return info.Mode().IsRegular() && info.Mode().Perm() == i.File.Mode && bytes.Equal(data, i.File.Data)
	case i.Node != nil:
		// Its permissions are the driver's business once it is there (module
		// parameters NVreg_DeviceFileMode, …GID, …UID).
		major, minor, ok := host.Device(info)
		return ok && major == i.Node.Major && minor == i.Node.Minor
	default:
		target, err := root.Readlink(i.Path)
		return err == nil && target == i.Link
	}
}

func (i Item) kind() string {
	switch {
	case i.File != nil:
		return "file"
	case i.Node != nil:
		return "device node"
	case i.Absent:
		return "nothing"
	}
	return "link"
}

func describe(root *host.Root, name string, info fs.FileInfo) string {
	if major, minor, ok := host.Device(info); ok {
		return fmt.Sprintf("device node %d:%d", major, minor)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, _ := root.Readlink(name)
		return "link to " + target
	}
	if info.Mode().IsRegular() {
		return fmt.Sprintf("file, %#o, %d bytes", info.Mode().Perm(), info.Size())
	}
	return info.Mode().Type().String()
}

// Dirs lists the directories that Apply will make, outermost first.
func Dirs(root *host.Root, changes []Change) ([]string, error) {
	var dirs []string
	for _, c := range changes {
		if c.Verb == "remove" {
			continue
		}
		dir, err := root.Resolve(path.Dir(c.Path))
		if err != nil {
			return nil, err
		}
		at := len(dirs)
		for ; dir != "/" && !slices.Contains(dirs, dir); dir = path.Dir(dir) {
			if _, err := root.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				break
			}
			dirs = slices.Insert(dirs, at, dir)
		}
	}
	return dirs, nil
}

// Apply makes the changes, in their order. Each is whole or not at all; it stops
// at the first that fails.
// Made tells which were made.
func Apply(root *host.Root, changes []Change) error {
	for i, c := range changes {
		if err := apply(root, c); err != nil {
			return &incomplete{made: changes[:i], err: err}
		}
	}
	return nil
}

// incomplete is why not all changes were made.
type incomplete struct {
	made []Change
	err  error
}

func (e *incomplete) Error() string { return e.err.Error() }
func (e *incomplete) Unwrap() error { return e.err }

// Made returns those of changes that were made, given what Apply returned, also
// when that was wrapped. Another error means that none was.
func Made(changes []Change, err error) []Change {
	if err == nil {
		return changes
	}
	if stopped, ok := errors.AsType[*incomplete](err); ok {
		return stopped.made
	}
	return nil
}

func apply(root *host.Root, c Change) error {
	if c.Verb != "remove" {
		if _, err := root.MkdirAll(path.Dir(c.Path), 0o755); err != nil {
			return err
		}
	}
	switch {
	case c.Verb == "remove":
		return root.Remove(c.Path)
	case c.File != nil:
		return root.WriteAtomic(c.Path, c.File.Data, c.File.Mode)
	case c.Node != nil:
		if c.Verb == "replace" { // nothing that uses the old node is harmed: it is open
			if err := root.Remove(c.Path); err != nil {
				return err
			}
		}
		return root.Mknod(c.Path, c.Node.Mode, c.Node.Major, c.Node.Minor)
	default:
		_, err := root.Symlink(c.Link, c.Path)
		return err
	}
}

// Print shows the changes to a person, byte for byte: text as lines marked with
// + and -, anything else by size and SHA-256.
func Print(w io.Writer, changes []Change) error {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s %s", c.Verb, c.Path)
		switch {
		case c.File != nil:
			fmt.Fprintf(&b, " (file, %#o, %d bytes)", c.File.Mode, len(c.File.Data))
		case c.Node != nil:
			fmt.Fprintf(&b, " (device node %d:%d, %#o)", c.Node.Major, c.Node.Minor, c.Node.Mode)
		case c.Link != "":
			fmt.Fprintf(&b, " (link to %s)", c.Link)
		}
		if c.Before != "" {
			fmt.Fprintf(&b, "; there is now: %s", c.Before)
		}
		b.WriteString("\n")
		if c.File != nil {
			body(&b, c.old, c.File.Data)
		}
	}
	if len(changes) == 0 {
		b.WriteString("nothing to change\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// body shows a file's new content, or how it differs from the old.
func body(b *strings.Builder, old, data []byte) {
	if !isText(old) || !isText(data) {
		sum := sha256.Sum256(data)
		fmt.Fprintf(b, "    sha256 %s\n", hex.EncodeToString(sum[:]))
		return
	}
	before, after := lines(old), lines(data)
	same := 0 // a common beginning and end are left out
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	end := 0
	for end < min(len(before), len(after))-same && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	if same+end > 0 {
		fmt.Fprintf(b, "    @@ line %d @@\n", same+1)
	}
	for _, l := range before[same : len(before)-end] {
		fmt.Fprintf(b, "    -%s\n", l)
	}
	for _, l := range after[same : len(after)-end] {
		fmt.Fprintf(b, "    +%s\n", l)
	}
}

func isText(data []byte) bool { return utf8.Valid(data) && !bytes.ContainsRune(data, 0) }

func lines(data []byte) []string {
	all := slices.Collect(strings.Lines(string(data)))
	for i, l := range all {
		all[i] = strings.TrimSuffix(l, "\n")
	}
	return all
}
