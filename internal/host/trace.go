package host

import "io/fs"

// Op is one step by which a Root changes the disk. Paths are absolute inside
// the root and go through no links.
type Op struct {
	Kind  OpKind
	Path  string
	To    string // OpRename: the new path; OpSymlink: the target
	Data  []byte // OpWrite
	Mode  fs.FileMode
	Owner Owner // OpChown
}

// OpKind is a kind of step.
type OpKind string

// Kinds of steps.
const (
	OpCreate  OpKind = "create" // an empty file, which was not there
	OpWrite   OpKind = "write"
	OpChown   OpKind = "chown"
	OpXattr   OpKind = "xattr" // To is its name, Data its value
	OpChmod   OpKind = "chmod"
	OpSync    OpKind = "sync" // a file
	OpSyncDir OpKind = "syncdir"
	OpRename  OpKind = "rename"
	OpRemove  OpKind = "remove"
	OpMkdir   OpKind = "mkdir"
	OpSymlink OpKind = "symlink"
	OpMknod   OpKind = "mknod"
)

// Trace makes the Root call before ahead of every step, for tests: if it returns an
// error, the step fails without being done. Trace must not be called while the Root is
// in use.
func (r *Root) Trace(before func(Op) error) { r.trace = before }

func (r *Root) do(op Op, act func() error) error {
	if r.trace != nil {
		if err := r.trace(op); err != nil {
			return err
		}
	}
	return act()
}
