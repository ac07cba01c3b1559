package apply

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"strconv"

	"github.com/gpuready/gpuready/internal/host"
)

// State is a past, present or future state of a path, without a file's bytes. Exactly
// one of SHA256, Link, Node and Absent is set. The owner and mode are a file's.
type State struct {
	SHA256 string            `json:"sha256,omitempty"`
	Link   string            `json:"link,omitempty"`
	Node   string            `json:"node,omitempty"` // "195:255"
	Absent bool              `json:"absent,omitempty"`
	Mode   Mode              `json:"mode,omitempty"`
	UID    *int              `json:"uid,omitempty"`
	GID    *int              `json:"gid,omitempty"`
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
}

// Mode is a mode in the notation of chmod(1): "0644".
type Mode uint32

// MarshalText writes a mode in octal.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#o", uint32(m)), nil }

// UnmarshalText reads a mode in octal.
func (m *Mode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 12)
	*m = Mode(n)
	return err
}

// special maps the bits of a mode above its permissions from Go's values to chmod's.
var special = map[fs.FileMode]Mode{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000}

func modeOf(m fs.FileMode) Mode {
	mode := Mode(m.Perm())
	for goBit, bit := range special {
		if m&goBit != 0 {
			mode |= bit
		}
	}
	return mode
}

func (m Mode) file() fs.FileMode {
	mode := fs.FileMode(m) & fs.ModePerm
	for goBit, bit := range special {
		if m&bit != 0 {
			mode |= goBit
		}
	}
	return mode
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func stateOf(i Item) State {
	switch {
	case i.File != nil:
		s := State{SHA256: hash(i.File.Data), Mode: modeOf(i.File.Mode), Xattrs: i.File.Xattrs}
		if o := i.File.Owner; o != nil {
			s.UID, s.GID = &o.UID, &o.GID
		}
		return s
	case i.Node != nil:
		return State{Node: fmt.Sprintf("%d:%d", i.Node.Major, i.Node.Minor)}
	case i.Absent:
		return State{Absent: true}
	}
	return State{Link: i.Link}
}

// same reports whether kind and content are the same.
func (s State) same(o State) bool {
	return s.SHA256 == o.SHA256 && s.Link == o.Link && s.Node == o.Node && s.Absent == o.Absent
}

// sameAttributes reports whether mode, owner and extended attributes are the same.
func (s State) sameAttributes(o State) bool {
	owner := func(s State) host.Owner {
		if s.UID == nil || s.GID == nil {
			return host.Owner{}
		}
		return host.Owner{UID: *s.UID, GID: *s.GID}
	}
	return s.Mode == o.Mode && owner(s) == owner(o) && maps.EqualFunc(s.Xattrs, o.Xattrs, bytes.Equal)
}

// withAttributes returns s with the mode, owner and extended attributes of o.
func (s State) withAttributes(o State) State {
	s.Mode, s.UID, s.GID, s.Xattrs = o.Mode, o.UID, o.GID, o.Xattrs
	return s
}

// observe returns the current state of a path.
func observe(root *host.Root, name string) (State, error) {
	item, description, err := ReadItem(root, name)
	if err != nil {
		return State{}, err
	}
	if description != "" && item.File == nil && item.Node == nil && item.Link == "" {
		return State{Node: description}, nil // equal to no state in a manifest
	}
	return stateOf(item), nil
}
