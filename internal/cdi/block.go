package cdi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"tags.cncf.io/container-device-interface/specs-go"
)

// parseBlock reads the part of YAML that specifications are written in, mappings and
// lists in block style with plain words in them, a tenth of the time that it takes to
// read all of YAML: that is on the way of every container. It returns nil for
// anything else, which is not to say that it is wrong.
func parseBlock(data []byte) *specs.Spec {
	p := &block{}
	if !p.split(data) {
		return nil
	}
	if !p.node(0) || p.at != len(p.lines) {
		return nil
	}
	decoder := json.NewDecoder(&p.out)
	decoder.DisallowUnknownFields()
	spec := &specs.Spec{}
	if err := decoder.Decode(spec); err != nil {
		return nil
	}
	return spec
}

// line is one line without its indentation.
type line struct {
	indent int
	text   string
}

// block writes JSON for the lines that it reads.
type block struct {
	lines []line
	at    int
	out   bytes.Buffer
}

func (p *block) split(data []byte) bool {
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		if text == "---" && len(p.lines) == 0 {
			continue
		}
		trimmed := strings.TrimLeft(text, " ")
		for _, c := range []byte(trimmed) {
			if c < ' ' || c > '~' || c == '\\' || c == '#' {
				return false
			}
		}
		if trimmed == "" || trimmed[len(trimmed)-1] == ' ' || strings.HasPrefix(trimmed, "---") || strings.HasPrefix(trimmed, "...") {
			return false
		}
		p.lines = append(p.lines, line{len(text) - len(trimmed), trimmed})
	}
	return len(p.lines) > 0
}

// maxNesting is far above what a specification has.
const maxNesting = 64

// node reads a mapping or list whose lines have the indentation of the next one.
func (p *block) node(depth int) bool {
	if depth > maxNesting || p.at == len(p.lines) {
		return false
	}
	if listed(p.lines[p.at].text) {
		return p.list(depth)
	}
	return p.mapping(depth)
}

func listed(text string) bool { return strings.HasPrefix(text, "- ") }

func (p *block) list(depth int) bool {
	indent := p.lines[p.at].indent
	separator := byte('[')
	for p.at < len(p.lines) && p.lines[p.at].indent == indent && listed(p.lines[p.at].text) {
		p.out.WriteByte(separator)
		separator = ','
		l := &p.lines[p.at]
		rest := strings.TrimLeft(l.text[1:], " ")
		if _, _, ok := key(rest); ok || listed(rest) {
			// What is in it begins on this line.
			l.indent += len(l.text) - len(rest)
			l.text = rest
			if !p.node(depth + 1) {
				return false
			}
			continue
		}
		p.at++
		if !p.scalar(rest) {
			return false
		}
	}
	p.out.WriteByte(']')
	return p.at == len(p.lines) || p.lines[p.at].indent < indent || !listed(p.lines[p.at].text) && p.lines[p.at].indent == indent
}

func (p *block) mapping(depth int) bool {
	indent := p.lines[p.at].indent
	separator := byte('{')
	seen := map[string]bool{}
	for p.at < len(p.lines) && p.lines[p.at].indent == indent && !listed(p.lines[p.at].text) {
		name, value, ok := key(p.lines[p.at].text)
		if !ok || seen[name] || !known()[name] {
			return false
		}
		seen[name] = true
		p.out.WriteByte(separator)
		separator = ','
		p.out.WriteString(`"` + name + `":`)
		p.at++
		if value != "" {
			if !p.scalar(value) {
				return false
			}
			continue
		}
		if p.at == len(p.lines) {
			return false
		}
		// A list may stand below its key without indentation.
		next := p.lines[p.at]
		if next.indent < indent || next.indent == indent && !listed(next.text) || !p.node(depth+1) {
			return false
		}
	}
	p.out.WriteByte('}')
	return p.at == len(p.lines) || p.lines[p.at].indent < indent
}

// key splits "name: value" and "name:".
func key(text string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(text, ":")
	if !ok || name == "" || strings.Trim(name, letters) != "" || value != "" && value[0] != ' ' {
		return "", "", false
	}
	return name, strings.TrimLeft(value, " "), true
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
	// word are the characters of which plain text is made, with spaces between; none of
	// them has a meaning inside of it, but a colon at its end.
	word = letters + digits + "_./=:,+@-"
)

// scalar writes a value that cannot be read in two ways: a string in quotes, a whole
// number, or words that begin with a letter, a slash or a hyphen and are not one of
// YAML's names; a version.
func (p *block) scalar(text string) bool {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		text = text[1 : n-1]
		if strings.ContainsAny(text, `"'`) {
			return false
		}
		return p.write(text)
	}
	switch {
	case strings.Trim(text, digits) == "" && len(text) < 19:
		if text[0] == '0' && len(text) > 1 {
			return false
		}
		p.out.WriteString(text)
		return true
	case version(text):
		return p.write(text)
	case strings.Trim(text, word+" ") != "" || strings.Contains(text, ": ") || text[len(text)-1] == ':' || names[strings.ToLower(text)]:
		return false
	case strings.IndexByte(letters+"/", text[0]) < 0 && !strings.HasPrefix(text, "--"):
		return false
	}
	return p.write(text)
}

func (p *block) write(text string) bool {
	data, err := json.Marshal(text)
	p.out.Write(data)
	return err == nil
}

// version says whether a text is three numbers, which YAML takes for no number.
func version(text string) bool {
	parts := strings.Split(text, ".")
	for _, part := range parts {
		if part == "" || len(part) > 9 || strings.Trim(part, digits) != "" {
			return false
		}
	}
	return len(parts) == 3
}

// names are words that are no strings for some reader of YAML.
var names = map[string]bool{"true": true, "false": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true, "null": true}

// known are the keys of specifications, which have to be written exactly so.
var known = sync.OnceValue(func() map[string]bool {
	keys := map[string]bool{}
	collect(reflect.TypeFor[specs.Spec](), keys, map[reflect.Type]bool{})
	return keys
})

func collect(t reflect.Type, keys map[string]bool, seen map[reflect.Type]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return
	}
	seen[t] = true
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			keys[name] = true
		}
		collect(f.Type, keys, seen)
	}
}
