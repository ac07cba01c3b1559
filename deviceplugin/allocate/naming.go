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

// Naming describes the CDI names of the devices, according to the toolkit's state. A device can
// be allocated by a name that is in a specification and that the container runtime resolves. The
// zero Naming rules nothing out: a node without a toolkit may have specifications from elsewhere.
type Naming struct {
	warning string          // why containers may not get their devices, though nothing is known to be wrong; "": no doubt
	noSpec  string          // why there is no specification; "": there is one, or it is not known
	noCDI   string          // why the container runtime resolves no name; "": it does, or it is not known
	path    string          // of the specification
	names   map[string]bool // the names of devices in it; nil: the toolkit has not listed them
	runtime runtimeInfo

	unknown       bool                   // the current state is not known
	runtimeSilent bool                   // only noCDI is not known: the runtime has not answered the toolkit
	earlierFaults map[gpu.UUID]gpu.Fault // faults known to an earlier process, until the state is known again
}

// unavailable returns why no container can get a device by its CDI name, or "".
func (n Naming) unavailable() string { return cmp.Or(n.noCDI, n.noSpec) }

// Problem returns a certain or possible problem of all devices, or "".
func (n Naming) Problem() string { return cmp.Or(n.unavailable(), n.warning) }

// MergeAfter fills in what n does not know from the last Naming: a runtime that had CDI off
// still has it off while it restarts.
func (n Naming) MergeAfter(last Naming) Naming {
	switch {
	case n.unknown:
		n.noSpec, n.noCDI, n.path, n.names, n.runtime, n.earlierFaults = last.noSpec, last.noCDI, last.path, last.names, last.runtime, last.earlierFaults
	case n.runtimeSilent:
		n.noCDI, n.runtime, n.earlierFaults = last.noCDI, last.runtime, last.earlierFaults
	}
	return n
}

// SameNames reports whether n and o name the same devices.
func (n Naming) SameNames(o Naming) bool { return maps.Equal(n.names, o.names) }

// Text returns Problem, or if that is "", the message that a device has no name.
func (n Naming) Text() string {
	if t := n.Problem(); t != "" {
		return t
	}
	return "the toolkit's CDI specification " + n.path + " does not name every device; see the log of gpu-toolkit"
}

// NamingFrom returns the Naming for the toolkit's state.
func NamingFrom(s nodestate.State, err error) Naming {
	switch {
	case nodestate.IsAbsent(err):
		return Naming{}
	case err != nil:
		return Naming{unknown: true, warning: "the toolkit's state cannot be read: " + err.Error()}
	case s.Reason == injection.ReasonNoGPU:
		return Naming{}
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		// The specification of an earlier toolkit may still exist, so nothing is ruled out.
		return Naming{unknown: true, warning: "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message}
	case s.Toolkit == nil:
		return Naming{}
	}
	n := Naming{runtime: runtimeInfoFrom(s.Toolkit)}
	i := slices.IndexFunc(s.Toolkit.Specs, func(spec nodestate.Spec) bool { return spec.Kind == cdi.KindGPU })
	if i < 0 {
		n.noSpec = "the toolkit has written no CDI spec of kind " + cdi.KindGPU + "; see the log of gpu-toolkit"
		return n
	}
	spec := s.Toolkit.Specs[i]
	n.path = spec.Path
	for _, name := range spec.Devices {
		if n.names == nil {
			n.names = map[string]bool{}
		}
		n.names[name] = true
	}
	switch r := s.Toolkit.Runtime; {
	case r == nil: // the runtime was not queried
	case r.Name == "":
		n.runtimeSilent = true
	case r.CDI != nil && !*r.CDI:
		n.noCDI = r.Message
		if n.noCDI == "" {
			n.noCDI = fmt.Sprintf("the container runtime %s does not resolve CDI names; turn CDI on in its configuration", r.Name)
		}
	default:
		n.warning = r.Message
	}
	return n
}
