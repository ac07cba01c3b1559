package main

import (
	"bytes"
	"encoding/json"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

var hookNames = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

func hookLists(h *oci.Hooks) [][]oci.Hook {
	return [][]oci.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} //nolint:staticcheck // bundles of today have prestart hooks
}

// merge writes the edits of Spec back into the document.
func (c *containerConfig) merge() (changed bool, err error) {
	m := &merger{}
	if p := c.Spec.Process; p != nil {
		list(m, c.process, "env", p.Env)
		list(m, c.user, "additionalGids", p.User.AdditionalGids)
		m.update(c.process, "user", c.user)
		m.update(c.top, "process", c.process)
	}
	list(m, c.top, "mounts", c.Spec.Mounts)
	if h := c.Spec.Hooks; h != nil {
		for i, hooks := range hookLists(h) {
			list(m, c.hooks, hookNames[i], hooks)
		}
		m.update(c.top, "hooks", c.hooks)
	}
	if l := c.Spec.Linux; l != nil {
		if l.Resources != nil {
			list(m, c.resources, "devices", l.Resources.Devices)
			m.update(c.linux, "resources", c.resources)
		}
		list(m, c.linux, "devices", l.Devices)
		whole(m, c.linux, "netDevices", l.NetDevices, len(l.NetDevices) == 0)
		whole(m, c.linux, "intelRdt", l.IntelRdt, l.IntelRdt == nil)
		m.update(c.top, "linux", c.linux)
	}
	return m.changed, m.err
}

type merger struct {
	changed bool
	err     error
	dirty   map[*object]bool
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

func whole(m *merger, o *object, key string, value any, empty bool) {
	if empty && o.get(key) == nil {
		return
	}
	if now := m.encode(value); m.differs(o.get(key), now) {
		m.set(o, key, now)
	}
}

// differs compares the meaning of two values, in the form of Go's encoder.
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

// list writes a list. Elements that existed before keep their original text.
func list[T any](m *merger, o *object, key string, now []T) {
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
		word := string(m.encode(b))
		originals[word] = append(originals[word], texts[i])
	}
	result := make([]json.RawMessage, len(now))
	same := len(now) == len(before)
	for i, n := range now {
		word := m.encode(n)
		result[i] = word
		if left := originals[string(word)]; len(left) > 0 {
			result[i], originals[string(word)] = left[0], left[1:]
		}
		same = same && bytes.Equal(result[i], texts[i])
	}
	if same {
		return
	}
	m.set(o, key, m.encode(result))
}
