package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// object is a JSON object that keeps the text and order of its values.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

// valid returns an error if the text is not JSON.
func valid(data []byte) error {
	if json.Valid(data) {
		return nil
	}
	err := json.Unmarshal(data, new(json.RawMessage))
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() == "unexpected end of JSON input" {
		return errors.New("ends too early")
	}
	return err
}

// parseObject parses an object; the text is known to be valid JSON. It refuses a duplicate
// key, and a known key in another case. Programs differ in which of these they read, so
// the configuration checked here might not be the one that runs.
func parseObject(data []byte, known ...string) (*object, error) {
	o := &object{values: map[string]json.RawMessage{}}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || string(data) == "null" {
		return o, nil
	}
	if data[0] != '{' {
		return nil, errors.New("is no JSON object")
	}
	for rest := space(data[1:]); rest[0] != '}'; {
		end := skip(rest)
		key, err := unquote(rest[:end])
		if err != nil {
			return nil, err
		}
		rest = space(space(rest[end:])[1:]) // the colon
		end = skip(rest)
		if _, twice := o.values[key]; twice {
			return nil, fmt.Errorf("key %q is set twice", key)
		}
		if i := slices.IndexFunc(known, func(k string) bool { return k != key && strings.EqualFold(k, key) }); i >= 0 {
			return nil, fmt.Errorf("key %q is written %q", known[i], key)
		}
		o.set(key, rest[:end])
		if rest = space(rest[end:]); rest[0] == ',' {
			rest = space(rest[1:])
		}
	}
	return o, nil
}

func unquote(text []byte) (key string, err error) {
	err = json.Unmarshal(text, &key)
	return key, err
}

func space(data []byte) []byte { return bytes.TrimLeft(data, " \t\r\n") }

// skip returns the length of the value that the text begins with.
func skip(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 { // of the enclosing value
				return i
			}
			depth--
		default:
			if depth > 0 || !ends(data, i) {
				continue
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(data)
}

// ends reports whether a number or word ends at i.
func ends(data []byte, i int) bool {
	return i+1 == len(data) || strings.IndexByte(",:}] \t\r\n", data[i+1]) >= 0
}

func (o *object) get(key string) json.RawMessage { return o.values[key] }

func (o *object) set(key string, value json.RawMessage) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

func (o *object) encode() json.RawMessage {
	size := 2
	for _, key := range o.keys {
		size += len(key) + len(o.values[key]) + 8
	}
	b := bytes.NewBuffer(make([]byte, 0, size))
	for i, key := range o.keys {
		b.WriteByte("{,"[min(i, 1)])
		name, _ := json.Marshal(key) // a string always can be
		b.Write(name)
		b.WriteByte(':')
		b.Write(o.values[key])
	}
	if len(o.keys) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes()
}
