package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// object is a JSON object whose values are left as they are, in their order.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

// parseObject reads an object. A key that stands there twice is refused, and so is
// one of the known keys in other letters: of those programs read different ones,
// and what was checked here would not be what runs.
func parseObject(data []byte, known ...string) (*object, error) {
	o := &object{values: map[string]json.RawMessage{}}
	if len(data) == 0 || string(data) == "null" {
		return o, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	start, err := decoder.Token()
	if err != nil {
		return nil, ended(err)
	}
	if start != json.Delim('{') {
		return nil, errors.New("is no JSON object")
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, ended(err)
		}
		key, _ := token.(string) // the decoder lets nothing else stand there
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, ended(err)
		}
		if _, twice := o.values[key]; twice {
			return nil, fmt.Errorf("key %q stands there twice", key)
		}
		if i := slices.IndexFunc(known, func(k string) bool { return k != key && strings.EqualFold(k, key) }); i >= 0 {
			return nil, fmt.Errorf("key %q is written %q", known[i], key)
		}
		o.set(key, value)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, ended(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return o, nil
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("ends too early")
	}
	return err
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
