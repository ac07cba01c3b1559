// Package config decodes configuration files, and reads flags from the environment.
//
// It is strict, because whoever writes a setting relies on it, and a setting that is silently
// ignored has no effect. It refuses an unknown, misspelt or repeated key, a second document and a value of the
// wrong type. Each error names the source, the path of the field and, if one is
// similar, the intended key.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

// MaxBytes bounds the size of a configuration.
const MaxBytes = 1 << 20

// Error is an error in a configuration. It reads
// "file: field.path: what is wrong".
type Error struct {
	Source string // as given to Strict, usually the path of a file; "" if there is none
	Path   string // "sharing.timeSlicing.resources[0].name"; "" for the whole
	Err    error
}

func (e *Error) Error() string {
	text := e.Err.Error()
	for _, part := range []string{e.Path, e.Source} {
		if part != "" {
			text = part + ": " + text
		}
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// Strict decodes YAML (or JSON, which is YAML) into the struct that into points
// to, by its json tags. Keys are case-sensitive. It returns a *Error, or several joined
// ones for unknown keys; into must not be used then.
func Strict(data []byte, into any, source string) error {
	_, err := decode(data, into, source, false)
	return err
}

// Ignoring is like Strict, but ignores unknown keys and returns one Error for each, in
// the order of their paths. It refuses everything else that Strict refuses, including
// duplicate keys.
func Ignoring(data []byte, into any, source string) ([]*Error, error) {
	return decode(data, into, source, true)
}

func decode(data []byte, into any, source string, ignore bool) ([]*Error, error) {
	generic, err := parse(data, source)
	if err != nil {
		return nil, err
	}
	unknown := removeUnknownKeys(generic, reflect.TypeOf(into), "")
	for _, e := range unknown {
		e.Source = source
		key := e.Path[strings.LastIndex(e.Path, ".")+1:]
		if places := findKey(reflect.TypeOf(into), key, "", 0); len(places) > 0 && len(places) <= 3 {
			e.Err = fmt.Errorf("unknown key here, did you mean %s?", strings.Join(places, " or "))
		}
	}
	if len(unknown) > 0 {
		if !ignore {
			return nil, joinErrors(unknown)
		}
		// Encode the remaining keys again: the decoder would accept a key that differs
		// from a known one only in case.
		if data, err = json.Marshal(generic); err != nil {
			return nil, &Error{Source: source, Err: err}
		}
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, &Error{Source: source, Path: mismatch.Field, Err: fmt.Errorf("want %s, have %s", kind(mismatch.Type), mismatch.Value)}
		}
		return nil, &Error{Source: source, Err: errors.New(strings.TrimPrefix(syntaxMessage(err), "error unmarshaling JSON: while decoding JSON: "))}
	}
	return unknown, nil
}

// joinErrors joins the errors into one.
func joinErrors(all []*Error) error {
	if len(all) == 1 {
		return all[0]
	}
	errs := make([]error, len(all))
	for i, e := range all {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// parse reads one YAML document of keys and values.
func parse(data []byte, source string) (any, error) {
	refuse := func(format string, args ...any) (any, error) {
		return nil, &Error{Source: source, Err: fmt.Errorf(format, args...)}
	}
	if len(data) > MaxBytes {
		return refuse("has %d bytes, no more than %d are read; is it the right file?", len(data), MaxBytes)
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return refuse("has a zero byte and is no text; write it again")
	}
	if second := secondDocument(data); second > 0 {
		return refuse("line %d: a second document begins; keep one per file", second)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return refuse("%s", syntaxMessage(err))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var generic any
	if err := decoder.Decode(&generic); err != nil {
		return refuse("%w", err)
	}
	switch generic.(type) {
	case nil:
		return refuse("empty; write a configuration into it or do not name it")
	case map[string]any:
	default:
		return refuse("holds no keys; is it the right file, or was it cut short?")
	}
	return generic, nil
}

// secondDocument returns the line on which a second YAML document begins, 0 if
// there is none. The decoder would silently stop before it.
func secondDocument(data []byte) int {
	content := false
	for i, line := range strings.Split(string(data), "\n") {
		marker := strings.HasPrefix(line, "---") && (len(line) == 3 || strings.ContainsRune(" \t\r", rune(line[3])))
		switch {
		case marker && content:
			return i + 1
		case marker:
			content = strings.TrimSpace(line[3:]) != ""
		case strings.TrimSpace(line) != "" && !strings.HasPrefix(strings.TrimSpace(line), "#"):
			content = true
		}
	}
	return 0
}

// duplicate matches the YAML parser's error for a key that is set twice. It is compiled on
// first use: most files have no error.
var duplicate = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`line (\d+): key (.+) already set in map`)
})

// syntaxMessage returns the text of an error of the YAML parser as one line, without the parser's
// prefixes.
func syntaxMessage(err error) string {
	if m := duplicate().FindStringSubmatch(err.Error()); m != nil {
		return fmt.Sprintf("line %s: key %s is set twice; remove one", m[1], m[2])
	}
	s := strings.Join(strings.Fields(err.Error()), " ")
	s = strings.TrimPrefix(s, "error converting YAML to JSON: ")
	s = strings.TrimPrefix(s, "yaml: ")
	s = strings.TrimPrefix(s, "unmarshal errors: ")
	if strings.Contains(s, "did not find expected") || strings.Contains(s, "unexpected end") || strings.Contains(s, "could not find expected") {
		s += "; was the file cut short?"
	}
	return s
}

// kind describes a type for people.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number that is not negative"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "keys with values"
	}
	return "a " + t.Kind().String()
}
