// Package tomledit changes single keys of a TOML document and leaves every other byte
// as it is: comments, spacing, line ends, order and unknown keys.
//
// The result of an edit means the same as the old document with the key set. To ensure
// this, Set parses the result and compares it. An edit that fails this check is an
// *Error with its position.
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
	listed bool     // in an array of tables, where a path is ambiguous
	start  int
	end    int
	value  int // start of a pair's value, which ends at end
	last   int // end of the last element of a pair's array or inline table; 0 if it has none
}

// section returns the table that an entry opens or belongs to.
func (e entry) section() []string {
	if e.kind >= pair {
		return e.table
	}
	return e.path
}

type kind int

const (
	header kind = iota
	listHeader
	pair
	inlinePair
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

// Get returns the decoded value of a key. It finds no keys below an array.
func (d *Doc) Get(path ...string) (any, bool) { return Lookup(d.root, path...) }

// Position returns the start of a key or table, or of its nearest ancestor.
func (d *Doc) Position(path ...string) (line, column int) {
	best, offset := -1, 0
	for _, e := range d.entries {
		near := common(e.path, path)
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
		first, last := bounds(n.Key())
		switch n.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = e.path
			width := 1
			if n.Kind == unstable.ArrayTable {
				e.kind, width = listHeader, 2
				lists = append(lists, e.path)
			}
			e.start = bytes.LastIndexByte(d.data[:first], '[') + 1 - width
			e.end = last + bytes.IndexByte(d.data[last:], ']') + width
			e.listed = below(lists, table)
			d.entries = append(d.entries, e)
		case unstable.KeyValue:
			d.scanPair(n, pair, table, below(lists, table))
		}
	}
	if err := p.Error(); err != nil {
		return &Error{Message: err.Error()}
	}
	return nil
}

func (d *Doc) scanPair(n *unstable.Node, as kind, table []string, listed bool) {
	first, last := bounds(n.Key())
	e := entry{
		kind: as, path: append(slices.Clone(table), names(n.Key())...), table: table, listed: listed,
		start: first, end: int(n.Raw.Offset + n.Raw.Length),
	}
	e.value = last + bytes.IndexByte(d.data[last:], '=') + 1
	e.value += len(d.data[e.value:]) - len(bytes.TrimLeft(d.data[e.value:], " \t"))
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
func bounds(it unstable.Iterator) (first, last int) {
	first = -1
	for it.Next() {
		raw := it.Node().Raw
		if first < 0 {
			first = int(raw.Offset)
		}
		last = int(raw.Offset + raw.Length)
	}
	return first, last
}

func below(lists [][]string, path []string) bool {
	return slices.ContainsFunc(lists, func(list []string) bool { return isPrefix(list, path) })
}

func isPrefix(prefix, path []string) bool {
	return len(prefix) <= len(path) && slices.Equal(prefix, path[:len(prefix)])
}

// common returns the number of leading keys that two paths share.
func common(a, b []string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
