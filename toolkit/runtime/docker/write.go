package docker

import (
	"bytes"
	"strings"

	"github.com/tailscale/hujson"
)

// style is the layout of new text, taken from the text around it.
type style struct {
	line  string // the start of a line: line break and indentation; "" if all is on one line
	unit  string // the indentation of one level
	colon string // between key and value, with its spaces
}

// deeper returns the style one level further in.
func (s style) deeper() style {
	if s.line != "" {
		s.line += s.unit
	}
	return s
}

// member formats a path of nested keys, the last with the value.
func (s style) member(path []string, value string) string {
	if len(path) > 1 {
		value = s.object(path[1:], value)
	}
	return quote(path[0]) + s.colon + value
}

// object formats an object with a path of nested keys, as the value of a key in this style.
func (s style) object(path []string, value string) string {
	in := s.deeper()
	return "{" + in.line + in.member(path, value) + s.line + "}"
}

// set sets a key to a value, which is JSON text. Existing values on the way have to be
// objects, or null.
func (d *document) set(value string, path ...string) {
	if d.tree.Value == nil {
		s := style{line: "\n  ", unit: "  ", colon: ": "}
		d.splice(0, 0, "{"+s.line+s.member(path, value)+"\n}\n")
		return
	}
	at := &d.tree
	for i, name := range path {
		m, rest := find(at, name), path[i+1:]
		if m == nil {
			d.insert(at, path[i:], value)
			return
		}
		if at = &m.Value; len(rest) == 0 {
			break
		}
		if isNull(m) {
			s := d.style()
			for range i {
				s = s.deeper()
			}
			value = s.object(rest, value)
			break
		}
		if i == 0 {
			at, _ = d.object(name, rest[0]) // an object, as planning has found
		}
	}
	d.splice(at.StartOffset, at.EndOffset, value)
}

// insert adds a new member at the end of an object.
func (d *document) insert(object *hujson.Value, path []string, value string) {
	members := membersOf(object)
	s := d.style()
	if len(members) == 0 {
		outer := s.line
		if s.line != "" {
			outer = lineBreak(s.line) + d.indentation(object.StartOffset)
		}
		s.line = outer
		s = s.deeper()
		d.splice(object.StartOffset, object.EndOffset, "{"+s.line+s.member(path, value)+outer+"}")
		return
	}
	last := members[len(members)-1]
	lead := string(last.Name.BeforeExtra)
	s.line = lineOf(lead)
	if s.line != "" {
		lead = s.line
	} else if lead == "" && len(members) == 1 && strings.HasSuffix(s.colon, " ") {
		lead = " "
	}
	d.splice(last.Value.EndOffset, last.Value.EndOffset, ","+lead+s.member(path, value))
}

// extend adds strings at the end of a list that is not empty.
func (d *document) extend(key string, more []string) {
	elements := d.find(key).Value.Value.(*hujson.Array).Elements
	last := elements[len(elements)-1]
	lead := string(last.BeforeExtra)
	if line := lineOf(lead); line != "" {
		lead = line
	} else if len(elements) == 1 {
		lead = " "
	}
	var b strings.Builder
	for _, s := range more {
		b.WriteString("," + lead + quote(s))
	}
	d.splice(last.EndOffset, last.EndOffset, b.String())
}

// style returns the style of the file's own object, judged by its first key. Without
// keys it is several lines.
func (d *document) style() style {
	s := style{line: "\n", unit: "  ", colon: ": "}
	if bytes.Contains(d.text, []byte("\r\n")) {
		s.line = "\r\n"
	}
	members := d.members()
	if len(members) == 0 {
		return s
	}
	first := members[0]
	if colon := string(first.Name.AfterExtra) + ":" + string(first.Value.BeforeExtra); !strings.Contains(colon, "\n") {
		s.colon = colon
	}
	s.line = lineOf(string(first.Name.BeforeExtra))
	s.unit = strings.TrimPrefix(strings.TrimLeft(s.line, "\r\n"), d.indentation(d.tree.StartOffset))
	return s
}

// lineOf returns the last line break of white space and the text after it, or "".
func lineOf(space string) string {
	at := strings.LastIndexByte(space, '\n')
	if at < 0 {
		return ""
	}
	if at > 0 && space[at-1] == '\r' {
		at--
	}
	return space[at:]
}

// lineBreak returns the line break that a result of lineOf starts with.
func lineBreak(line string) string { return line[:strings.IndexByte(line, '\n')+1] }

// indentation returns the white space at the start of the line of an offset.
func (d *document) indentation(offset int) string {
	line := d.text[bytes.LastIndexByte(d.text[:offset], '\n')+1 : offset]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// splice replaces the text between two offsets.
func (d *document) splice(from, to int, with string) {
	d.text = append(append(bytes.Clone(d.text[:from]), with...), d.text[to:]...)
	if d.err == nil {
		d.err = d.reparse()
	}
}
