package docker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// mark is UTF-8's byte order mark, which dockerd accepts at the start since 23.0, as those of UTF-16.
var mark = []byte("\xef\xbb\xbf")

// document is a JSON file that is changed in place.
type document struct {
	file  string
	mark  []byte
	order binary.AppendByteOrder // of a file in UTF-16; nil: it is UTF-8
	text  []byte                 // after the mark, in UTF-8
	tree  hujson.Value           // of text; without a value if the file is empty
	err   error                  // the error of a failed change, of which none is known
}

// parse reads a file as dockerd does, which accepts plain JSON, null for what is not set, and keys that
// occur twice, of which the last applies.
func parse(file string, data []byte) (*document, error) {
	d := &document{file: file}
	switch {
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		d.order = binary.BigEndian
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		d.order = binary.LittleEndian
	}
	if d.order != nil {
		if len(data)%2 != 0 {
			return nil, d.whole("it is UTF-16 with half a character at its end; nothing is changed")
		}
		d.mark, data = data[:2], decodeUTF16(data[2:], d.order.(binary.ByteOrder))
	} else if rest, ok := bytes.CutPrefix(data, mark); ok {
		d.mark, data = mark, rest
	}
	d.text = data
	if at := invalid(data); at >= 0 {
		return nil, d.at(at, "", "this is not UTF-8, and dockerd does not start with it; nothing is changed")
	}
	if start := bytes.TrimSpace(data); len(start) == 0 || string(start) == "null" {
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
	return d, nil
}

func (d *document) reparse() (err error) {
	if d.tree, err = hujson.Parse(d.text); err != nil {
		return d.whole(err.Error())
	}
	return nil
}

// bytes returns the new content of the file.
func (d *document) bytes() []byte {
	data := bytes.Clone(d.mark)
	if d.order == nil {
		return append(data, d.text...)
	}
	for _, unit := range utf16.Encode([]rune(string(d.text))) {
		data = d.order.AppendUint16(data, unit)
	}
	return data
}

// decodeUTF16 returns UTF-16 as UTF-8.
func decodeUTF16(data []byte, order binary.ByteOrder) []byte {
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = order.Uint16(data[2*i:])
	}
	return []byte(string(utf16.Decode(units)))
}

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

// find returns the member of a name; of several, the last, which applies.
func find(object *hujson.Value, name string) *hujson.ObjectMember {
	all := membersOf(object)
	for i := range slices.Backward(all) {
		if text(all[i].Name) == name {
			return &all[i]
		}
	}
	return nil
}

// object returns the file's object of a key that has, or is to have, a member of a name; nil if there is none.
// dockerd merges the objects of a key that occurs twice, and forgets those before a null.
func (d *document) object(key, name string) (*hujson.Value, error) {
	var last *hujson.Value
	all := d.members()
	for i := range slices.Backward(all) {
		m := &all[i]
		if text(m.Name) != key {
			continue
		}
		if isNull(m) {
			break
		}
		if m.Value.Value.Kind() != '{' {
			return nil, d.odd(m.Value, key, "an object, {…}")
		}
		if find(&m.Value, name) != nil {
			return &m.Value, nil
		}
		if last == nil {
			last = &m.Value
		}
	}
	return last, nil
}

// isNull reports whether a member is missing or null, which is the same for dockerd.
func isNull(m *hujson.ObjectMember) bool { return m == nil || m.Value.Value.Kind() == 'n' }

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
