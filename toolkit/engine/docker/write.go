package docker

import (
	"bytes"
	"strings"

	"github.com/tailscale/hujson"
)

// style is how what is new is laid out: as what is beside it.
type style struct {
	line  string // what starts a line: line break and indentation; "": all is in one line
	unit  string // what a level is indented by
	colon string // between key and value, with its spaces
}

// deeper is the style of one level further in.
func (s style) deeper() style {
	if s.line != "" {
		s.line += s.unit
	}
	return s
}

// member writes a key below others, the last with the value.
func (s style) member(path []string, value string) string {
	if len(path) > 1 {
		in := s.deeper()
		value = "{" + in.line + in.member(path[1:], value) + s.line + "}"
	}
	return quote(path[0]) + s.colon + value
}

// set gives a key a value, which is JSON text. All objects on the way that are there
// have to be objects.
func (d *document) set(value string, path ...string) {
	if d.tree.Value == nil {
		s := style{line: "\n  ", unit: "  ", colon: ": "}
		d.splice(0, 0, "{"+s.line+s.member(path, value)+"\n}\n")
		return
	}
	at := &d.tree
	for i, name := range path {
		m := find(at, name)
		if m == nil {
			d.insert(at, path[i:], value)
			return
		}
		at = &m.Value
	}
	d.splice(at.StartOffset, at.EndOffset, value)
}

// insert puts a new member at the end of an object.
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

// extend puts strings at the end of a list that is not empty.
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

// style is that of the file's own object, by its first key; several lines where it
// has none.
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

// lineOf is the last line break of white space and what follows; "" without one.
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

// lineBreak is what a line as of lineOf starts with.
func lineBreak(line string) string { return line[:strings.IndexByte(line, '\n')+1] }

// indentation is the white space at the start of the line of an offset.
func (d *document) indentation(offset int) string {
	line := d.text[bytes.LastIndexByte(d.text[:offset], '\n')+1 : offset]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// splice puts text in the place of what is between two offsets.
func (d *document) splice(from, to int, with string) {
	d.text = append(append(bytes.Clone(d.text[:from]), with...), d.text[to:]...)
	if d.err == nil {
		d.err = d.reparse()
	}
}
