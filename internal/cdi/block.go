package cdi

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"
)

// parseBlock reads a subset of YAML, mappings and lists in block style with plain
// scalars, straight into a specification. Specifications are written that way, and
// every start of a container waits for this. It takes a twentieth of a full YAML
// parser's time. It returns nil for any other input, which may still be valid YAML.
func parseBlock(data []byte) *specs.Spec {
	p := &block{rest: string(data)}
	p.rest = strings.TrimPrefix(p.rest, "---\n")
	if !p.next() {
		return nil
	}
	spec := &specs.Spec{}
	if !p.spec(spec) || p.failed || !p.end {
		return nil
	}
	return spec
}

// block is a parser that reads a text line by line.
type block struct {
	rest   string // the text after the line
	indent int    // of the line; the text after a list's hyphen has its own column
	text   string // the line without its indentation
	inline bool   // text follows a key on the same line
	end    bool   // there is no line left
	simple bool   // every character of the line has class word
	failed bool   // a line is not in the subset
	depth  int    // of nested mappings and lists
}

// next advances to the next line. It returns false at the end, and for a line that is
// not in the subset.
func (p *block) next() bool {
	if p.rest == "" {
		p.end, p.text, p.indent = true, "", -1
		return false
	}
	var line string
	line, p.rest, _ = strings.Cut(p.rest, "\n")
	text := strings.TrimLeft(line, " ")
	p.indent, p.text, p.inline = len(line)-len(text), text, false
	least := word
	for i := range len(text) {
		least = min(least, classes[text[i]])
	}
	p.simple = least == word
	p.failed = p.failed || least == special || text == "" || text[len(text)-1] == ' ' || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "...")
	return !p.failed
}

// Classes of characters in a line.
const (
	special = uint8(iota) // not in the subset
	other                 // literal inside quotes
	word                  // literal inside a plain scalar, except a colon before a space or the end
)

var classes = func() (c [256]uint8) {
	for i := ' '; i <= '~'; i++ {
		c[i] = other
	}
	for _, i := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,+@- " {
		c[i] = word
	}
	c['\\'], c['#'] = special, special
	return c
}()

// maxNesting is more than the depth of any specification.
const maxNesting = 16

func isListItem(text string) bool { return strings.HasPrefix(text, "- ") }

// list reads the list that begins on this line. It calls element to read each element.
func (p *block) list(element func() bool) bool {
	if p.depth++; p.depth > maxNesting || p.inline || !isListItem(p.text) {
		return false
	}
	indent := p.indent
	for p.indent == indent && isListItem(p.text) {
		inside := strings.TrimLeft(p.text[1:], " ")
		p.indent += len(p.text) - len(inside)
		p.text = inside
		if !element() || p.failed {
			return false
		}
	}
	p.depth--
	// After a list that is not indented comes the next key of the enclosing mapping.
	return p.indent < indent || p.indent == indent && !isListItem(p.text)
}

// mapping reads the mapping that begins on this line. It calls value to read each
// key's value.
func (p *block) mapping(value func(key string) bool) bool {
	if p.depth++; p.depth > maxNesting || p.inline || p.end {
		return false
	}
	indent := p.indent
	var buffer [16]string
	seen := buffer[:0]
	for p.indent == indent && !isListItem(p.text) {
		key, rest, ok := strings.Cut(p.text, ":")
		if !ok || rest != "" && rest[0] != ' ' {
			return false
		}
		if slices.Contains(seen, key) {
			return false
		}
		seen = append(seen, key)
		if p.text = strings.TrimLeft(rest, " "); p.text == "" {
			// Lists may stand below their key without indentation.
			if !p.next() || p.indent < indent || p.indent == indent && !isListItem(p.text) {
				return false
			}
		} else {
			p.inline = true
		}
		if !value(key) || p.failed {
			return false
		}
	}
	p.depth--
	return p.indent < indent
}

// scalar reads an unambiguous scalar on this line: a string in quotes, an integer, a
// version, or plain text. Plain text begins with a letter, a slash or two hyphens and is
// not one of YAML's keywords.
func (p *block) scalar() (text string, number, ok bool) {
	text = p.text
	simple := p.simple
	p.next()
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		text = text[1 : n-1]
		return text, false, !strings.ContainsAny(text, `"'`)
	}
	switch c := text[0]; {
	case '0' <= c && c <= '9':
		number = strings.Trim(text, digits) == ""
		return text, number, number && (c != '0' || len(text) == 1) || isVersion(text)
	case isLetter(c) || c == '/' || strings.HasPrefix(text, "--"):
		return text, false, (simple || allWord(text)) && isString(text)
	}
	return "", false, false
}

const digits = "0123456789"

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// allWord reports whether every character of text has class word.
func allWord(text string) bool {
	for i := range len(text) {
		if classes[text[i]] != word {
			return false
		}
	}
	return true
}

// isString reports whether plain text is a string for every reader of YAML.
func isString(text string) bool {
	if text[len(text)-1] == ':' || strings.Contains(text, ": ") {
		return false
	}
	return len(text) > len("false") || !keywords[strings.ToLower(text)]
}

// keywords are the words that some reader of YAML does not take for strings.
var keywords = map[string]bool{"true": true, "false": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true, "null": true}

// isVersion reports whether text is three numbers with dots, which is a string in YAML.
func isVersion(text string) bool {
	parts := strings.Split(text, ".")
	for _, part := range parts {
		if part == "" || len(part) > 9 || strings.Trim(part, digits) != "" {
			return false
		}
	}
	return len(parts) == 3
}

// string reads a string.
func (p *block) string(into *string) bool {
	text, number, ok := p.scalar()
	*into = text
	return ok && !number
}

// number reads an unsigned integer of the given size in bits.
func (p *block) number(bits int) (n int64, ok bool) {
	text, number, ok := p.scalar()
	if !ok || !number {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, bits+1)
	return n, err == nil
}

func (p *block) strings(into *[]string) bool {
	return p.list(func() bool {
		*into = append(*into, "")
		// "key: value" and "- value" are not strings.
		return !isListItem(p.text) && p.string(&(*into)[len(*into)-1])
	})
}

// readList reads a list and calls read for each element.
func readList[T any](p *block, into *[]*T, read func(*T) bool) bool {
	return p.list(func() bool {
		element := new(T)
		*into = append(*into, element)
		return read(element)
	})
}

func (p *block) spec(s *specs.Spec) bool {
	return p.mapping(func(key string) bool {
		switch key {
		case "cdiVersion":
			return p.string(&s.Version)
		case "kind":
			return p.string(&s.Kind)
		case "containerEdits":
			return p.edits(&s.ContainerEdits)
		case "devices":
			return p.list(func() bool {
				s.Devices = append(s.Devices, specs.Device{})
				return p.device(&s.Devices[len(s.Devices)-1])
			})
		}
		return false
	})
}

func (p *block) device(d *specs.Device) bool {
	return p.mapping(func(key string) bool {
		switch key {
		case "name":
			return p.string(&d.Name)
		case "containerEdits":
			return p.edits(&d.ContainerEdits)
		}
		return false
	})
}

func (p *block) edits(e *specs.ContainerEdits) bool {
	return p.mapping(func(key string) bool {
		switch key {
		case "env":
			return p.strings(&e.Env)
		case "deviceNodes":
			return readList(p, &e.DeviceNodes, p.deviceNode)
		case "hooks":
			return readList(p, &e.Hooks, p.hook)
		case "mounts":
			return readList(p, &e.Mounts, p.mount)
		}
		return false // the other keys are rare
	})
}

func (p *block) deviceNode(n *specs.DeviceNode) bool {
	return p.mapping(func(key string) (ok bool) {
		switch key {
		case "path":
			return p.string(&n.Path)
		case "hostPath":
			return p.string(&n.HostPath)
		case "type":
			return p.string(&n.Type)
		case "permissions":
			return p.string(&n.Permissions)
		case "major":
			n.Major, ok = p.number(32)
			return ok
		case "minor":
			n.Minor, ok = p.number(32)
			return ok
		case "fileMode":
			mode, ok := p.number(32)
			n.FileMode = new(os.FileMode(mode))
			return ok
		case "uid":
			id, ok := p.number(32)
			n.UID = new(uint32(id))
			return ok
		case "gid":
			id, ok := p.number(32)
			n.GID = new(uint32(id))
			return ok
		}
		return false
	})
}

func (p *block) mount(m *specs.Mount) bool {
	return p.mapping(func(key string) bool {
		switch key {
		case "hostPath":
			return p.string(&m.HostPath)
		case "containerPath":
			return p.string(&m.ContainerPath)
		case "type":
			return p.string(&m.Type)
		case "options":
			return p.strings(&m.Options)
		}
		return false
	})
}

func (p *block) hook(h *specs.Hook) bool {
	return p.mapping(func(key string) bool {
		switch key {
		case "hookName":
			return p.string(&h.HookName)
		case "path":
			return p.string(&h.Path)
		case "args":
			return p.strings(&h.Args)
		case "env":
			return p.strings(&h.Env)
		case "timeout":
			seconds, ok := p.number(31)
			h.Timeout = new(int(seconds))
			return ok
		}
		return false
	})
}
