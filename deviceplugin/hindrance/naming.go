package hindrance

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

// Naming is what the toolkit says of the CDI names by which devices are handed out,
// which somebody must have written and the container runtime must resolve. The
// zero naming says nothing: a node without a toolkit may have its specs from
// elsewhere.
type Naming struct {
	doubt  string          // why containers may not get what they are allocated
	noSpec string          // why there is no specification
	noCDI  string          // why the container runtime resolves no name
	path   string          // of the specification
	names  map[string]bool // the devices in it; nil: it does not say

	silent bool                   // what there is can be told by nobody now
	mute   bool                   // the runtime does not answer, and the rest is known
	held   map[gpu.UUID]gpu.Fault // what an earlier process was told of devices, until it is known again
}

// none is why no container can get a device.
func (w Naming) none() string { return cmp.Or(w.noCDI, w.noSpec) }

// Trouble is what stands for all devices, "" for nothing.
func (w Naming) Trouble() string { return cmp.Or(w.none(), w.doubt) }

// After is what is known when this is said after that: who says nothing takes
// nothing back. A runtime that had CDI off has it off still while it restarts.
func (w Naming) After(last Naming) Naming {
	switch {
	case w.silent:
		w.noSpec, w.noCDI, w.path, w.names, w.held = last.noSpec, last.noCDI, last.path, last.names, last.held
	case w.mute:
		w.noCDI, w.held = last.noCDI, last.held
	}
	return w
}

// SameNames says whether both name the same devices.
func (w Naming) SameNames(o Naming) bool { return maps.Equal(w.names, o.names) }

// Text is Trouble, or else that a device has no name.
func (w Naming) Text() string {
	if t := w.Trouble(); t != "" {
		return t
	}
	return "the toolkit's CDI specification " + w.path + " does not name every device; see the log of gpu-toolkit"
}

// NamingOf is what the toolkit's state means.
func NamingOf(s nodestate.State, err error) Naming {
	switch {
	case nodestate.IsAbsent(err):
		return Naming{}
	case err != nil:
		return Naming{silent: true, doubt: "the toolkit's state cannot be read: " + err.Error()}
	case s.Reason == injection.ReasonNoGPU:
		return Naming{}
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		// What it wrote before may still be there.
		return Naming{silent: true, doubt: "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message}
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
	case r == nil: // nobody asked
	case r.Name == "":
		w.mute = true
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
