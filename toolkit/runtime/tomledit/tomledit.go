// Package tomledit changes single keys of a TOML document and leaves every other byte
// as it is: comments, spacing, line ends, order and unknown keys.
//
// This file parses a document, reads its values and finds the offsets of its keys; set.go
// edits it. The result of an edit means the same as the old document with the key set. To
// ensure this, Set parses the result and compares it. If they differ, Set returns an *Error
// with the position.
package tomledit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Doc is a valid TOML document. It is immutable: Set returns another.
type Doc struct {
	data    []byte
	root    map[string]any
	entries []entry
}

// Error is the position and description of an error in a document or of an obstacle to
// an edit.
type Error struct {
	Line, Column int // from 1, the column in bytes; 0 means the whole document
	Message      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Message)
}

// entry is a table's header or a key with its value, at byte offsets.
type entry struct {
	kind   kind
	path   []string // from the root
	table  []string // of a pair: the table of its header, or its inline table
	listed bool     // in or below an array of tables, where several entries have the same path
	start  int
	end    int
	value  int // start of a pair's value, which ends at end
	// last is the end of the last element of a pair's array or inline table. It is 0 if that is
	// empty or the last element is nested, as the parser gives no extent for that.
	last int
}

// isPair reports whether the entry is a key with its value.
func (e entry) isPair() bool { return e.kind == pair || e.kind == inlinePair }

// section returns the table that an entry opens or belongs to.
func (e entry) section() []string {
	if e.isPair() {
		return e.table
	}
	return e.path
}

type kind int

const (
	header     kind = iota // [a.b]
	listHeader             // [[a.b]]
	pair                   // key = value
	inlinePair             // key = value inside { }
)

// Parse reads a document. An error is an *Error.
func Parse(data []byte) (*Doc, error) {
	d := &Doc{data: data, root: map[string]any{}}
	if err := toml.Unmarshal(data, &d.root); err != nil {
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := at.Position()
			return nil, &Error{Line: line, Column: column, Message: strings.TrimPrefix(at.Error(), "toml: ")}
		}
		return nil, &Error{Message: strings.TrimPrefix(err.Error(), "toml: ")}
	}
	if err := d.scan(); err != nil {
		return nil, err
	}
	return d, nil
}

// Bytes returns the text of the document. It must not be changed.
func (d *Doc) Bytes() []byte { return d.data }

// Root returns the decoded document: tables are map[string]any, arrays []any, integers
// int64. It must not be changed.
func (d *Doc) Root() map[string]any { return d.root }

// Get returns the decoded value of a key. It does not look inside arrays.
func (d *Doc) Get(path ...string) (any, bool) { return Lookup(d.root, path...) }

// Position returns the start of a key or table, or of its nearest ancestor.
func (d *Doc) Position(path ...string) (line, column int) {
	best, offset := -1, 0
	for _, e := range d.entries {
		near := commonPrefix(e.path, path)
		if near == len(path) && len(e.path) > near {
			near-- // an entry below the path defines it too, but its own header is better
		}
		if near > best && near > 0 {
			best, offset = near, e.start
		}
	}
	return d.position(offset)
}

func (d *Doc) position(offset int) (line, column int) {
	before := d.data[:offset]
	return bytes.Count(before, []byte("\n")) + 1, offset - bytes.LastIndexByte(before, '\n')
}

func (d *Doc) refuse(path []string, format string, args ...any) error {
	line, column := d.Position(path...)
	return &Error{Line: line, Column: column, Message: Key(path...) + ": " + fmt.Sprintf(format, args...)}
}

// scan records the offsets of all headers and pairs.
func (d *Doc) scan() error {
	var p unstable.Parser
	p.Reset(d.data)
	var table []string
	var lists [][]string
	for p.NextExpression() {
		n := p.Expression()
		e := entry{path: names(n.Key())}
		keyStart, keyEnd := bounds(n.Key())
		switch n.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = e.path
			brackets := 1
			if n.Kind == unstable.ArrayTable {
				e.kind, brackets = listHeader, 2
				lists = append(lists, e.path)
			}
			e.start = bytes.LastIndexByte(d.data[:keyStart], '[') + 1 - brackets
			e.end = keyEnd + bytes.IndexByte(d.data[keyEnd:], ']') + brackets
			e.listed = inAny(lists, table)
			d.entries = append(d.entries, e)
		case unstable.KeyValue:
			d.scanPair(n, pair, table, inAny(lists, table))
		}
	}
	if err := p.Error(); err != nil {
		return &Error{Message: err.Error()}
	}
	return nil
}

// scanPair records the offsets of a pair, and of those in its inline tables.
func (d *Doc) scanPair(n *unstable.Node, as kind, table []string, listed bool) {
	keyStart, keyEnd := bounds(n.Key())
	e := entry{
		kind: as, path: append(slices.Clone(table), names(n.Key())...), table: table, listed: listed,
		start: keyStart, end: int(n.Raw.Offset + n.Raw.Length),
	}
	e.value = keyEnd + bytes.IndexByte(d.data[keyEnd:], '=') + 1
	e.value += len(d.data[e.value:]) - len(bytes.TrimLeft(d.data[e.value:], " \t"))
	// An edit replaces the value, not the white space behind it.
	for e.end > e.value && bytes.IndexByte([]byte(" \t\r\n"), d.data[e.end-1]) >= 0 {
		e.end--
	}
	at := len(d.entries)
	d.entries = append(d.entries, e)
	it := n.Value().Children()
	for (n.Value().Kind == unstable.InlineTable || n.Value().Kind == unstable.Array) && it.Next() {
		child := it.Node()
		if child.Kind == unstable.KeyValue {
			d.scanPair(child, inlinePair, e.path, listed)
		}
		d.entries[at].last = 0
		if raw := child.Raw; raw.Length > 0 && child.Kind != unstable.InlineTable && child.Kind != unstable.Array {
			d.entries[at].last = int(raw.Offset + raw.Length)
		}
	}
}

func names(it unstable.Iterator) []string {
	var path []string
	for it.Next() {
		path = append(path, string(it.Node().Data))
	}
	return path
}

// bounds returns the start and end of a key.
func bounds(it unstable.Iterator) (start, end int) {
	start = -1
	for it.Next() {
		raw := it.Node().Raw
		if start < 0 {
			start = int(raw.Offset)
		}
		end = int(raw.Offset + raw.Length)
	}
	return start, end
}

// inAny reports whether a path is one of the arrays of tables, or below one.
func inAny(lists [][]string, path []string) bool {
	return slices.ContainsFunc(lists, func(list []string) bool { return isPrefix(list, path) })
}

func isPrefix(prefix, path []string) bool {
	return len(prefix) <= len(path) && slices.Equal(prefix, path[:len(prefix)])
}

// commonPrefix returns the number of leading keys that two paths share.
func commonPrefix(a, b []string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
