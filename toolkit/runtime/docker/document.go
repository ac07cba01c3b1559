package docker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// mark is UTF-8's byte order mark, which dockerd accepts at the start since 23.0.
var mark = []byte("\xef\xbb\xbf")

// document is a JSON file that is changed in place.
type document struct {
	file string
	mark []byte
	text []byte       // after the mark
	tree hujson.Value // of text; without a value if the file is empty
	err  error        // the error of a failed change, of which none is known
}

// parse reads a file as dockerd does, which accepts plain JSON. But it refuses a
// duplicate key, because few people know which of the two applies.
func parse(file string, data []byte) (*document, error) {
	d := &document{file: file}
	if bytes.HasPrefix(data, []byte("\xfe\xff")) || bytes.HasPrefix(data, []byte("\xff\xfe")) {
		return nil, d.whole("it is UTF-16; save it as UTF-8")
	}
	if rest, ok := bytes.CutPrefix(data, mark); ok {
		d.mark, data = mark, rest
	}
	d.text = data
	if at := invalid(data); at >= 0 {
		return nil, d.at(at, "", "this is not UTF-8, and dockerd does not start with it; nothing is changed")
	}
	if len(bytes.TrimSpace(data)) == 0 {
		d.text = nil
		return d, nil
	}
	var whole json.RawMessage // bounds the depth as well, which hujson does not
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, d.syntax(err)
	}
	if err := d.reparse(); err != nil {
		return nil, err
	}
	if d.tree.Value.Kind() != '{' {
		return nil, d.odd(d.tree, "", "an object, {…}")
	}
	return d, d.duplicates(&d.tree, "")
}

func (d *document) reparse() (err error) {
	if d.tree, err = hujson.Parse(d.text); err != nil {
		return d.whole(err.Error())
	}
	return nil
}

// bytes returns the new content of the file.
func (d *document) bytes() []byte { return append(bytes.Clone(d.mark), d.text...) }

// invalid returns the offset of the first byte that is not UTF-8, or -1.
func invalid(data []byte) int {
	for at := 0; at < len(data); {
		r, n := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
	return -1
}

// syntax explains an error of encoding/json.
func (d *document) syntax(err error) *runtime.Refusal {
	s, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return d.whole(err.Error())
	}
	at := max(0, int(s.Offset)-1)
	message := s.Error()
	switch c := d.text[min(at, len(d.text)-1)]; {
	case int(s.Offset) >= len(d.text) && strings.HasPrefix(message, "unexpected end"):
		at = len(d.text)
	case c == '/' || c == '#':
		message = "dockerd's JSON has no comments"
	case (c == '}' || c == ']') && strings.Contains(message, "looking for beginning of"):
		message = "dockerd's JSON has no comma after the last element"
	}
	return d.at(at, "", message+"; dockerd does not start with it, and nothing is changed: mend it first")
}

// duplicates refuses keys that occur twice in an object.
func (d *document) duplicates(v *hujson.Value, key string) error {
	switch x := v.Value.(type) {
	case *hujson.Object:
		seen := map[string]int{}
		for i := range x.Members {
			m := &x.Members[i]
			name := text(m.Name)
			if first, ok := seen[name]; ok {
				line, _ := d.position(first)
				return d.refuse(m.Name, join(key, name), fmt.Sprintf("this key is there twice, first in line %d; dockerd takes the last, or both where they are objects: remove one", line))
			}
			seen[name] = m.Name.StartOffset
			if err := d.duplicates(&m.Value, join(key, name)); err != nil {
				return err
			}
		}
	case *hujson.Array:
		for i := range x.Elements {
			if err := d.duplicates(&x.Elements[i], key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *document) whole(message string) *runtime.Refusal {
	return &runtime.Refusal{File: d.file, Message: message}
}

func (d *document) at(offset int, key, message string) *runtime.Refusal {
	line, column := d.position(offset)
	return &runtime.Refusal{File: d.file, Line: line, Column: column, Key: key, Message: message}
}

func (d *document) refuse(v hujson.Value, key, message string) *runtime.Refusal {
	return d.at(v.StartOffset, key, message)
}

// odd refuses a value of another type than dockerd's.
func (d *document) odd(v hujson.Value, key, want string) *runtime.Refusal {
	is := map[hujson.Kind]string{'n': "null", 't': "true", 'f': "false", '"': "a string", '0': "a number", '[': "a list", '{': "an object"}[v.Value.Kind()]
	return d.refuse(v, key, "this is "+is+" and has to be "+want+"; nothing is changed: mend or remove it first")
}

// position counts lines and characters from 1.
func (d *document) position(offset int) (line, column int) {
	before := d.text[:offset]
	start := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[start:])
}

// members returns the members of the file's object.
func (d *document) members() []hujson.ObjectMember {
	if d.tree.Value == nil {
		return nil
	}
	return membersOf(&d.tree)
}

func (d *document) find(name string) *hujson.ObjectMember {
	if d.tree.Value == nil {
		return nil
	}
	return find(&d.tree, name)
}

// membersOf returns an object's members, none if there is no object.
func membersOf(object *hujson.Value) []hujson.ObjectMember {
	if object == nil {
		return nil
	}
	return object.Value.(*hujson.Object).Members
}

func find(object *hujson.Value, name string) *hujson.ObjectMember {
	all := membersOf(object)
	for i := range all {
		if text(all[i].Name) == name {
			return &all[i]
		}
	}
	return nil
}

// object returns the object at the end of a path of keys, nil if there is none.
func (d *document) object(path ...string) (*hujson.Value, error) {
	if d.tree.Value == nil {
		return nil, nil
	}
	at, key := &d.tree, ""
	for _, name := range path {
		key = join(key, name)
		m := find(at, name)
		if m == nil {
			return nil, nil
		}
		if m.Value.Value.Kind() != '{' {
			return nil, d.odd(m.Value, key, "an object, {…}")
		}
		at = &m.Value
	}
	return at, nil
}

// text returns a string's value.
func text(v hujson.Value) string { return v.Value.(hujson.Literal).String() }

// raw returns a value as it is written, without insignificant spaces.
func raw(v hujson.Value) string {
	v.BeforeExtra, v.AfterExtra = nil, nil
	v = v.Clone()
	v.Minimize()
	return string(v.Pack())
}

func quote(s string) string { return string(hujson.String(s)) }

func list(all []string) string {
	var quoted []string
	for _, s := range all {
		quoted = append(quoted, quote(s))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join appends a name to a dotted key: runtimes.nvidia.path.
func join(key, name string) string {
	if !plain.MatchString(name) {
		name = quote(name)
	}
	if key == "" {
		return name
	}
	return key + "." + name
}
