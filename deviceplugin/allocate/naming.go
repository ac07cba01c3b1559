package allocate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Naming holds what the toolkit's state says about the CDI names by which devices are
// handed out. The names must be in a specification and the container runtime must
// resolve them. The zero Naming is unknown: a node without a toolkit may have specs
// from elsewhere.
type Naming struct {
	doubt  string          // why containers may not get the allocated devices
	noSpec string          // why there is no specification
	noCDI  string          // why the container runtime resolves no name
	path   string          // of the specification
	names  map[string]bool // the devices in it; nil: not listed

	unknown       bool                   // the current state is not known
	runtimeSilent bool                   // the runtime does not respond; the rest is known
	earlier       map[gpu.UUID]gpu.Fault // faults known to an earlier process, until the state is known again
}

// unavailable returns why no container can get a device, or "".
func (w Naming) unavailable() string { return cmp.Or(w.noCDI, w.noSpec) }

// Problem returns the problem that affects all devices, or "".
func (w Naming) Problem() string { return cmp.Or(w.unavailable(), w.doubt) }

// MergeAfter merges w with the Naming before it. Missing information overrides nothing: a
// runtime that had CDI off still has it off while it restarts.
func (w Naming) MergeAfter(last Naming) Naming {
	switch {
	case w.unknown:
		w.noSpec, w.noCDI, w.path, w.names, w.earlier = last.noSpec, last.noCDI, last.path, last.names, last.earlier
	case w.runtimeSilent:
		w.noCDI, w.earlier = last.noCDI, last.earlier
	}
	return w
}

// SameNames reports whether both name the same devices.
func (w Naming) SameNames(o Naming) bool { return maps.Equal(w.names, o.names) }

// Text returns Trouble, or else the message that a device has no name.
func (w Naming) Text() string {
	if t := w.Problem(); t != "" {
		return t
	}
	return "the toolkit's CDI specification " + w.path + " does not name every device; see the log of gpu-toolkit"
}

// NamingOf returns the Naming for the toolkit's state.
func NamingOf(s nodestate.State, err error) Naming {
	switch {
	case nodestate.IsAbsent(err):
		return Naming{}
	case err != nil:
		return Naming{unknown: true, doubt: "the toolkit's state cannot be read: " + err.Error()}
	case s.Reason == injection.ReasonNoGPU:
		return Naming{}
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		// An earlier specification may still exist.
		return Naming{unknown: true, doubt: "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message}
	case s.Toolkit == nil:
		return Naming{}
	}
	i := slices.IndexFunc(s.Toolkit.Specs, func(spec nodestate.Spec) bool { return spec.Kind == cdi.KindGPU })
	if i < 0 {
		return Naming{noSpec: "the toolkit has written no CDI spec of kind " + cdi.KindGPU + "; see the log of gpu-toolkit"}
	}
	spec := s.Toolkit.Specs[i]
	w := Naming{path: spec.Path}
	for _, name := range spec.Devices {
		if w.names == nil {
			w.names = map[string]bool{}
		}
		w.names[name] = true
	}
	switch r := s.Toolkit.Runtime; {
	case r == nil: // the runtime was not queried
	case r.Name == "":
		w.runtimeSilent = true
	case r.CDI != nil && !*r.CDI:
		w.noCDI = r.Message
		if w.noCDI == "" {
			w.noCDI = fmt.Sprintf("the container runtime %s does not resolve CDI names; turn CDI on in its configuration", r.Name)
		}
	default:
		w.doubt = r.Message
	}
	return w
}
