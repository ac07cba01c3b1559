package main

import (
	"bytes"
	"encoding/json"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

var hookNames = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

func hookLists(h *oci.Hooks) [][]oci.Hook {
	return [][]oci.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} //nolint:staticcheck // deprecated, and still in use
}

// merge writes the edited parts of Spec into config.json's objects, and leaves all other text as it was:
// Spec has only the fields that this version of the specification knows, and encoding it would lose the
// rest. A part of Spec that is nil is left alone, not removed.
func (c *containerConfig) merge() (changed bool, err error) {
	m := &merger{}
	if p := c.Spec.Process; p != nil {
		setList(m, c.process, "env", p.Env)
		setList(m, c.user, "additionalGids", p.User.AdditionalGids)
		m.update(c.process, "user", c.user)
		m.update(c.top, "process", c.process)
	}
	setList(m, c.top, "mounts", c.Spec.Mounts)
	if h := c.Spec.Hooks; h != nil {
		for i, hooks := range hookLists(h) {
			setList(m, c.hooks, hookNames[i], hooks)
		}
		m.update(c.top, "hooks", c.hooks)
	}
	if l := c.Spec.Linux; l != nil {
		if l.Resources != nil {
			setList(m, c.resources, "devices", l.Resources.Devices)
			m.update(c.linux, "resources", c.resources)
		}
		setList(m, c.linux, "devices", l.Devices)
		setValue(m, c.linux, "netDevices", l.NetDevices, len(l.NetDevices) == 0)
		setValue(m, c.linux, "intelRdt", l.IntelRdt, l.IntelRdt == nil)
		m.update(c.top, "linux", c.linux)
	}
	return m.changed, m.err
}

type merger struct {
	changed bool
	err     error
	dirty   map[*object]bool // changed, and perhaps not yet written into the object around it
}

func (m *merger) set(o *object, key string, value json.RawMessage) {
	o.set(key, value)
	if m.dirty == nil {
		m.dirty = map[*object]bool{}
	}
	m.dirty[o], m.changed = true, true
}

// update writes a changed object into the object that contains it.
func (m *merger) update(o *object, key string, part *object) {
	if m.dirty[part] {
		m.set(o, key, part.encode())
	}
}

func (m *merger) encode(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil && m.err == nil {
		m.err = err
	}
	return data
}

// setValue writes a value if its meaning has changed.
func setValue(m *merger, o *object, key string, value any, empty bool) {
	if empty && o.get(key) == nil {
		return
	}
	if now := m.encode(value); m.differs(o.get(key), now) {
		m.set(o, key, now)
	}
}

// differs reports whether two JSON texts mean different values. The order of keys and spaces do not count.
func (m *merger) differs(before, now json.RawMessage) bool {
	var old any
	if err := unmarshal(before, &old); err != nil {
		return true
	}
	var fresh any
	if err := unmarshal(now, &fresh); err != nil {
		return true
	}
	return !bytes.Equal(m.encode(old), m.encode(fresh))
}

// setList writes a list if it has changed. Elements that it had before keep their original text, with the
// fields that T does not know.
func setList[T any](m *merger, o *object, key string, now []T) {
	if m.err != nil {
		return
	}
	var texts []json.RawMessage
	var before []T
	if raw := o.get(key); raw != nil {
		if m.err = unmarshal(raw, &texts); m.err == nil {
			m.err = unmarshal(raw, &before)
		}
	}
	if m.err != nil {
		return
	}
	originals := map[string][]json.RawMessage{}
	for i, b := range before {
		encoded := string(m.encode(b))
		originals[encoded] = append(originals[encoded], texts[i])
	}
	result := make([]json.RawMessage, len(now))
	same := len(now) == len(before)
	for i, n := range now {
		encoded := m.encode(n)
		result[i] = encoded
		if left := originals[string(encoded)]; len(left) > 0 {
			result[i], originals[string(encoded)] = left[0], left[1:]
		}
		same = same && bytes.Equal(result[i], texts[i])
	}
	if same {
		return
	}
	m.set(o, key, m.encode(result))
}
