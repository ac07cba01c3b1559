package daemons

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Setting is a value in a daemon's configuration that differs from the image's.
type Setting struct {
	Key   string
	Value string
	From  string // the variable that sets it; "": gpu-driver itself
	Was   string // the value in the image
	Added bool   // whether the image's file does not have the key
}

const (
	settingPrefix = "NVFM_CONFIG_"
	maxValue      = 256 // as the fabric manager's file documents for paths
)

var (
	settingKey = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	fileKey    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
)

// parseSettings returns the settings of the variables NVFM_CONFIG_<KEY>=<value>, by key.
func parseSettings(env []string) ([]Setting, error) {
	var all []Setting
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		key, ok := strings.CutPrefix(name, settingPrefix)
		if !ok {
			continue
		}
		switch {
		case !settingKey.MatchString(key):
			return nil, fmt.Errorf("variable %q: the part after %s must be a key of fabricmanager.cfg, in capital letters, digits and _", name, settingPrefix)
		case key == "DAEMONIZE":
			return nil, fmt.Errorf("variable %s: the way the fabric manager runs cannot be configured; remove the variable", name)
		case slices.ContainsFunc(all, func(s Setting) bool { return s.Key == key }):
			return nil, fmt.Errorf("variable %s is set twice; remove one", name)
		}
		if err := checkValue(value); err != nil {
			return nil, fmt.Errorf("variable %s: %w", name, err)
		}
		all = append(all, Setting{Key: key, Value: value, From: name})
	}
	slices.SortFunc(all, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

// checkValue returns an error for a value that is not a single value on one line.
func checkValue(value string) error {
	switch {
	case len(value) > maxValue:
		return fmt.Errorf("the value has %d bytes; write at most %d", len(value), maxValue)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("the value %q has a line break or another control character; remove it", value)
	case strings.TrimSpace(value) != value:
		return fmt.Errorf("the value %q begins or ends with a space; remove it", value)
	}
	return nil
}

// line is one line of a configuration file: a setting, or a comment or an empty line,
// which has no key.
type line struct {
	key, value string
	text       string // as written, without the newline
}

// parseConfig parses a file of KEY=value lines, such as those of nv-fabricmanager and
// nvidia-imex.
func parseConfig(data []byte) ([]line, error) {
	var all []line
	for text := range bytes.Lines(data) {
		l := line{text: strings.TrimRight(string(text), "\r\n")}
		if trimmed := strings.TrimSpace(l.text); trimmed != "" && trimmed[0] != '#' {
			key, value, ok := strings.Cut(trimmed, "=")
			l.key, l.value = strings.TrimSpace(key), strings.TrimSpace(value)
			if !ok || !fileKey.MatchString(l.key) {
				return nil, fmt.Errorf("line %d: %.100q is not KEY=value; correct it in the image", len(all)+1, l.text)
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// replaceSettings returns a configuration file with its settings replaced. It sets Was and Added in
// the returned settings, and keeps all other lines.
func replaceSettings(data []byte, settings []Setting) ([]byte, []Setting, error) {
	lines, err := parseConfig(data)
	if err != nil {
		return nil, nil, err
	}
	settings = slices.Clone(settings)
	for i := range settings {
		s := &settings[i]
		s.Added = true
		for j := range lines {
			if lines[j].key == s.Key {
				s.Was, s.Added = lines[j].value, false
				lines[j] = line{s.Key, s.Value, s.Key + "=" + s.Value}
			}
		}
		if s.Added {
			lines = append(lines, line{s.Key, s.Value, s.Key + "=" + s.Value})
		}
	}
	var out bytes.Buffer
	for _, l := range lines {
		out.WriteString(l.text)
		out.WriteByte('\n')
	}
	return out.Bytes(), settings, nil
}

// lookUpKey returns the last value of a key; "" if the file does not have it.
func lookUpKey(data []byte, key string) (value string) {
	lines, _ := parseConfig(data)
	for _, l := range lines {
		if l.key == key {
			value = l.value
		}
	}
	return value
}
