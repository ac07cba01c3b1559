package nodestate

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of texts, in bytes, and of numbers.
const (
	maxMessage     = 4096
	maxPath        = 4096 // PATH_MAX
	maxName        = 256
	maxWord        = 64
	maxMissedBytes = 384 // fits the longest namespace (63), pod (253) and container (63)
	// maxReplicas is the number of devices that the kubelet accepts of one resource.
	maxReplicas = 50000
)

// No package-level regexp here: every process would compile it at start.

// A validation keeps the first error.
type validation struct{ err error }

func (v *validation) fail(field, why string) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: %s: %s", ErrInvalid, field, why)
	}
}

// isReason reports whether s is one CamelCase word of at most 64 characters.
func isReason(s string) bool {
	if len(s) > 64 || s == "" || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		default:
			return false
		}
	}
	return true
}

// Parse decodes and checks a state. It ignores unknown fields, because the
// components of a node are upgraded one after the other.
func Parse(data []byte) (State, error) {
	if len(data) > MaxBytes {
		return State{}, fmt.Errorf("%w: larger than %d bytes", ErrInvalid, MaxBytes)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		if len(data) == 0 {
			return State{}, fmt.Errorf("%w: empty", ErrInvalid)
		}
		return State{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.validate(); err != nil {
		return State{}, err
	}
	return s, nil
}

func (c Component) isKnown() bool {
	switch c {
	case Driver, Toolkit, DevicePlugin, Validator, MPS, DRADriver:
		return true
	}
	return false
}

// validate returns the first error in s.
func (s State) validate() error {
	v := &validation{}
	if s.Version != Version {
		v.fail("version", fmt.Sprintf("%d is not known here, only %d", s.Version, Version))
	}
	if !s.Component.isKnown() {
		v.fail("component", fmt.Sprintf("%q is not a component", string(s.Component)))
	}
	if !isBootID(s.BootID) {
		v.fail("bootID", "not a boot ID")
	}
	if s.Time.IsZero() {
		v.fail("time", "missing")
	}
	switch s.Phase {
	case Waiting, Ready, Degraded, Failed:
	default:
		v.fail("phase", fmt.Sprintf("%q is not a phase", string(s.Phase)))
	}
	v.reason("reason", string(s.Reason))
	v.text("message", s.Message, maxMessage)
	if n := len(s.Unserved); n > MaxUnserved {
		v.fail("unserved", fmt.Sprintf("%d settings, at most %d are allowed", n, MaxUnserved))
	} else {
		for i, u := range s.Unserved {
			v.name(fmt.Sprintf("unserved[%d].name", i), u.Name)
			v.text(fmt.Sprintf("unserved[%d].message", i), u.Message, maxMessage)
		}
	}
	if d := s.Driver; d != nil {
		v.path("driver.root", d.Root)
		v.text("driver.version", d.Version, 64)
		v.text("driver.cudaVersion", d.CUDAVersion, 64)
	}
	if t := s.Toolkit; t != nil {
		v.text("toolkit.hook", t.Hook, maxPath)
		v.text("toolkit.handler", t.Handler, maxPath)
		for i, way := range t.HandlerAccepts {
			v.text(fmt.Sprintf("toolkit.handlerAccepts[%d]", i), way, 64)
		}
		for i, spec := range t.Specs {
			at := fmt.Sprintf("toolkit.specs[%d]", i)
			v.name(at+".kind", spec.Kind)
			v.path(at+".path", spec.Path)
			for j, name := range spec.Devices {
				v.name(fmt.Sprintf("%s.devices[%d]", at, j), name)
			}
		}
	}
	if t := s.Toolkit; t != nil && t.Runtime != nil {
		v.runtime(t.Runtime)
	}
	if t := s.Toolkit; t != nil && t.Injection != nil {
		v.injection(t.Injection)
	}
	if p := s.DevicePlugin; p != nil {
		v.plugin(p)
	}
	if i := s.Validator; i != nil {
		v.nodeLabels("validator.nodeLabels", i.NodeLabels)
		if len(i.Serve) > maxLabel || !featureValue().MatchString(i.Serve) {
			v.fail("validator.serve", fmt.Sprintf("%.80q is not the value of a label", i.Serve))
		}
	}
	if m := s.MPS; m != nil {
		v.mps(m)
	}
	if d := s.DRADriver; d != nil {
		v.draDriver(d)
	}
	return v.err
}

// nodeLabels checks the Node's labels that select a configuration. A value is the name of one,
// and a reader may use it as a file name.
func (v *validation) nodeLabels(field string, labels map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		switch value := labels[name]; {
		case name != ConfigLabel:
			v.fail(fmt.Sprintf("%s[%.80q]", field, name), "not a label that selects a configuration")
		case len(value) > maxLabel || !featureValue().MatchString(value):
			v.fail(fmt.Sprintf("%s[%q]", field, name), fmt.Sprintf("%.80q is not the value of a label", value))
		}
	}
}

func (v *validation) mps(m *MPSInfo) {
	for i, id := range m.Claimed {
		v.name(fmt.Sprintf("mps.claimed[%d]", i), string(id))
	}
	for i, r := range m.Resources {
		at := fmt.Sprintf("mps.resources[%d]", i)
		v.name(at+".name", r.Name)
		for j, id := range r.GPUs {
			v.name(fmt.Sprintf("%s.gpus[%d]", at, j), string(id))
		}
		if r.Root != "" {
			v.path(at+".root", r.Root)
		}
		for _, id := range slices.Sorted(maps.Keys(r.Replicas)) {
			v.name(at+".replicas", string(id))
			if r.Replicas[id] < 0 {
				v.fail(fmt.Sprintf("%s.replicas[%.80q]", at, id), "less than 0")
			}
		}
		v.reason(at+".reason", string(r.Reason))
		v.text(at+".message", r.Message, maxMessage)
	}
}

func (v *validation) runtime(r *Runtime) {
	v.path("toolkit.runtime.socket", r.Socket)
	v.text("toolkit.runtime.name", r.Name, maxName)
	v.text("toolkit.runtime.version", r.Version, maxName)
	v.text("toolkit.runtime.message", r.Message, maxMessage)
	for i, dir := range r.CDIDirs {
		v.path(fmt.Sprintf("toolkit.runtime.cdiDirs[%d]", i), dir)
	}
	for i, h := range r.Handlers {
		v.text(fmt.Sprintf("toolkit.runtime.handlers[%d]", i), h, maxName)
	}
	for i, h := range r.GPUHandlers {
		v.text(fmt.Sprintf("toolkit.runtime.gpuHandlers[%d]", i), h, maxName)
	}
	v.text("toolkit.runtime.defaultHandler", r.DefaultHandler, maxName)
}

func (v *validation) plugin(p *DevicePluginInfo) {
	v.text("devicePlugin.kubeletSocket", p.KubeletSocket, maxPath)
	for i, r := range p.Resources {
		at := fmt.Sprintf("devicePlugin.resources[%d]", i)
		v.name(at+".name", r.Name)
		for j, d := range r.Devices {
			at := fmt.Sprintf("%s.devices[%d]", at, j)
			v.name(at+".id", d.ID)
			v.text(at+".gpu", string(d.GPU), maxName)
			v.reason(at+".reason", string(d.Reason))
			v.text(at+".message", d.Message, maxMessage)
			v.text(at+".action", d.Action, maxMessage)
			if d.Replicas < 0 || d.Replicas > maxReplicas {
				v.fail(at+".replicas", fmt.Sprintf("%d is not between 0 and %d", d.Replicas, maxReplicas))
			}
			if d.Health != Healthy && d.Health != Unhealthy {
				v.fail(at+".health", fmt.Sprintf("%q is not a health value", string(d.Health)))
			}
			if m := d.MIG; m != nil {
				v.name(at+".mig.parent", string(m.Parent))
				v.text(at+".mig.profile", m.Profile, 64)
				v.instance(at+".mig.index", m.Index)
				v.instance(at+".mig.gpuInstance", m.GPUInstance)
				v.instance(at+".mig.computeInstance", m.ComputeInstance)
			}
		}
	}
	for i, l := range p.LeftOut {
		at := fmt.Sprintf("devicePlugin.left[%d]", i) // the JSON key of LeftOut
		v.text(at+".gpu", string(l.GPU), maxName)
		v.reason(at+".reason", string(l.Reason))
		v.text(at+".message", l.Message, maxMessage)
	}
	for i, f := range p.Faults {
		at := fmt.Sprintf("devicePlugin.faults[%d]", i)
		v.name(at+".gpu", string(f.GPU))
		v.reason(at+".reason", string(f.Reason))
		v.text(at+".message", f.Message, maxMessage)
		v.text(at+".needs", string(f.Needs), 64)
		v.text(at+".evidence", string(f.Evidence), 64)
		v.faultyInstance(at+".gpuInstance", f.GPUInstance)
		v.faultyInstance(at+".computeInstance", f.ComputeInstance)
		if f.ComputeInstance != nil && f.GPUInstance == nil {
			v.fail(at+".computeInstance", "without a gpuInstance")
		}
	}
	v.text("devicePlugin.serve", p.Serve, 64)
	v.text("devicePlugin.mig", p.MIG, 64)
	v.text("devicePlugin.switchID", p.SwitchID, 64)
	v.serve("devicePlugin.wanted", p.Wanted)
	v.withheld("devicePlugin.withheld", p.Withheld)
	v.inventory(p.Inventory)
	v.labels("devicePlugin.labels", p.Labels)
	if n := len(p.IgnoredKeys); n > MaxIgnoredKeys {
		v.fail("devicePlugin.ignoredKeys", fmt.Sprintf("%d keys, at most %d are allowed", n, MaxIgnoredKeys))
		return
	}
	for i, key := range p.IgnoredKeys {
		v.name(fmt.Sprintf("devicePlugin.ignoredKeys[%d]", i), key)
	}
}

func (v *validation) injection(i *Injection) {
	v.text("toolkit.injection.generation", i.Generation, 128)
	v.text("toolkit.injection.message", i.Message, maxMessage)
	if n := len(i.Missed); n > MaxMissed || n > i.MissedCount {
		v.fail("toolkit.injection.missed", fmt.Sprintf("%d listed of %d, at most %d may be listed", n, i.MissedCount, MaxMissed))
		return
	}
	for j, container := range i.Missed {
		v.text(fmt.Sprintf("toolkit.injection.missed[%d]", j), container, maxMissedBytes)
	}
}

func (v *validation) instance(field string, id int) {
	if id < 0 {
		v.fail(field, "negative")
	}
}

// faultyInstance checks the instance that a fault is limited to; nil: it affects all.
func (v *validation) faultyInstance(field string, id *int) {
	if id != nil && *id < 0 {
		v.fail(field, "negative; leave it out to mean all of them")
	}
}

// text rejects a text that is too long, not UTF-8, or has control characters: it is printed on
// terminals and in logs.
func (v *validation) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		v.fail(field, fmt.Sprintf("longer than %d bytes", limit))
	case !utf8.ValidString(s):
		v.fail(field, "not UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		v.fail(field, "has a control character")
	}
}

func (v *validation) name(field, s string) {
	if s == "" {
		v.fail(field, "missing")
	}
	v.text(field, s, maxName)
}

func (v *validation) path(field, s string) {
	if !filepath.IsAbs(s) {
		v.fail(field, "not an absolute path")
	}
	v.text(field, s, maxPath)
}

func (v *validation) reason(field, s string) {
	if s != "" && !isReason(s) {
		v.fail(field, "not one CamelCase word")
	}
}
