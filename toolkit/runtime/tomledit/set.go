package tomledit

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
)

// Set returns the document with the key set. It only changes the bytes of the value, or
// adds one line or one table. A list that grows at its end keeps its existing text. An
// error is an *Error.
func (d *Doc) Set(value any, path ...string) (*Doc, error) {
	text, err := Format(value)
	if err != nil {
		return nil, d.refuse(path, "%v", err)
	}
	value = decoded(value)
	if old, ok := d.Get(path...); ok && equal(old, value) {
		return d, nil
	}
	if err := d.settable(path); err != nil {
		return nil, err
	}
	from, to, text := d.splice(path, value, text)
	data := slices.Concat(d.data[:from], []byte(text), d.data[to:])
	next, err := Parse(data)
	if err != nil {
		why, _ := errors.AsType[*Error](err)
		return nil, d.refuse(path, "this document is written in a way that it cannot be set in (%s); set it by hand", why.Message)
	}
	if !equal(next.root, with(d.root, value, path)) {
		return nil, d.refuse(path, "this document is written in a way that setting it would change something else; set it by hand")
	}
	return next, nil
}

// settable returns an error if the path cannot be set as a key.
func (d *Doc) settable(path []string) error {
	if len(path) == 0 {
		return &Error{Message: "no key"}
	}
	for n := 1; n <= len(path); n++ {
		at, ok := d.Get(path[:n]...)
		_, table := at.(map[string]any)
		switch {
		case ok && n < len(path) && !table:
			return d.refuse(path[:n], "this is no table, %s cannot be set in it", Key(path[n:]...))
		case ok && n == len(path) && table:
			return d.refuse(path, "this is a table, not a value")
		}
	}
	return nil
}

// splice returns the range of bytes to replace and the new text.
func (d *Doc) splice(path []string, value any, text string) (from, to int, with string) {
	for _, e := range d.entries {
		if e.isPair() && !e.listed && slices.Equal(e.path, path) {
			return d.replace(e, value, text)
		}
	}
	if at, with, ok := d.intoInline(path, text); ok {
		return at, at, with
	}
	if at, with, ok := d.intoTable(path, text); ok {
		return at, at, with
	}
	at, with := d.newTable(path, text)
	return at, at, with
}

func (d *Doc) replace(e entry, value any, text string) (from, to int, with string) {
	old, _ := d.Get(e.path...)
	have, isList := old.([]any)
	want, _ := value.([]any)
	if !isList || e.last == 0 || len(want) <= len(have) || !equal(have, want[:len(have)]) {
		return e.value, e.end, text
	}
	more, err := Format(want[len(have):])
	if err != nil {
		return e.value, e.end, text
	}
	return e.last, e.last, ", " + more[1:len(more)-1]
}

// intoInline adds the key to the inline table on the path, if there is one.
func (d *Doc) intoInline(path []string, text string) (at int, with string, ok bool) {
	for _, e := range d.entries {
		if !e.isPair() || e.listed || len(e.path) >= len(path) || !isPrefix(e.path, path) || d.data[e.value] != '{' {
			continue
		}
		line := Key(path[len(e.path):]...) + " = " + text
		if at, with, ok = e.value+1, " "+line+" ", true; e.last > 0 {
			at, with = e.last, ", "+line
		}
	}
	return at, with, ok
}

// intoTable adds a line to the key's table if that has a header, is the root, or is
// made by dotted keys. In the last case the line follows the last of these keys.
func (d *Doc) intoTable(path []string, text string) (at int, with string, ok bool) {
	parent := path[:len(path)-1]
	for n := len(parent); n > 0 && !ok; n-- {
		for _, e := range d.entries {
			if e.kind != pair || e.listed || len(e.table) >= n || len(e.path) <= n || !isPrefix(path[:n], e.path) {
				continue
			}
			at, ok = d.lineEnd(e.end), true
			with = d.indent(e.start) + Key(path[len(e.table):]...) + " = " + text
		}
	}
	if ok {
		return at, d.line(at, with), true
	}
	if len(parent) == 0 {
		ok = true // the root is always there, at its start if it has no keys
	}
	for _, e := range d.entries {
		own := e.kind == header && slices.Equal(e.path, parent) || e.kind == pair && slices.Equal(e.table, parent)
		if !own || e.listed {
			continue
		}
		at, ok = d.lineEnd(e.end), true
		with = d.indent(e.start)
	}
	return at, d.line(at, with+Key(path[len(parent):]...)+" = "+text), ok
}

// newTable adds a table after those with the longest common prefix, or at the end.
func (d *Doc) newTable(path []string, text string) (at int, with string) {
	parent := path[:len(path)-1]
	near := 0
	for _, e := range d.entries {
		near = max(near, commonPrefix(e.section(), parent))
	}
	at = len(d.data)
	var model []string // the table whose indentation is copied: a sibling if there is one
	var outer, inner string
	for _, e := range d.entries {
		own := e.section()
		if near == 0 || e.kind == inlinePair || commonPrefix(own, parent) < near {
			continue
		}
		at = d.lineEnd(e.end)
		switch {
		case e.kind == pair:
			if slices.Equal(own, model) {
				inner = d.indent(e.start)
			}
		case len(model) != len(parent) || len(own) == len(parent):
			model, outer = own, d.indent(e.start)
			inner = outer
		}
	}
	eol := d.eol()
	with = outer + "[" + Key(parent...) + "]" + eol + inner + Key(path[len(parent):]...) + " = " + text
	if len(bytes.TrimSpace(d.data[:at])) > 0 {
		with = eol + with
	}
	return at, d.line(at, with)
}

// line returns text as whole lines for insertion at an offset, the end of another line,
// which may lack its line end if it is the last.
func (d *Doc) line(at int, text string) string {
	if at > 0 && d.data[at-1] != '\n' {
		text = d.eol() + text
	}
	return text + d.eol()
}

func (d *Doc) lineEnd(offset int) int {
	if n := bytes.IndexByte(d.data[offset:], '\n'); n >= 0 {
		return offset + n + 1
	}
	return len(d.data)
}

func (d *Doc) indent(offset int) string {
	line := d.data[bytes.LastIndexByte(d.data[:offset], '\n')+1 : offset]
	if len(bytes.Trim(line, " \t")) > 0 {
		return ""
	}
	return string(line)
}

func (d *Doc) eol() string {
	if n := bytes.IndexByte(d.data, '\n'); n > 0 && d.data[n-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// with returns a copy of the table with one key set.
func with(table map[string]any, value any, path []string) map[string]any {
	next := maps.Clone(table)
	if next == nil {
		next = map[string]any{}
	}
	if len(path) == 1 {
		next[path[0]] = value
		return next
	}
	inner, _ := next[path[0]].(map[string]any)
	next[path[0]] = with(inner, value, path[1:])
	return next
}

// decoded returns a value as Parse would return it.
func decoded(value any) any {
	list, ok := value.([]string)
	if !ok {
		return value
	}
	items := make([]any, len(list))
	for i, s := range list {
		items[i] = s
	}
	return items
}

// equal compares decoded values. Unlike in Go, NaN equals NaN.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, func(x, y any) bool { return equal(x, y) })
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	}
	return reflect.DeepEqual(a, b)
}
