package plugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// naming is what the toolkit says of the CDI names by which devices are handed out,
// which somebody must have written and the container runtime must resolve. The
// zero naming says nothing: a node without a toolkit may have its specs from
// elsewhere.
type naming struct {
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
func (w naming) none() string { return cmp.Or(w.noCDI, w.noSpec) }

// trouble is what stands for all devices, "" for nothing.
func (w naming) trouble() string { return cmp.Or(w.none(), w.doubt) }

// after is what is known when this is said after that: who says nothing takes
// nothing back. A runtime that had CDI off has it off still while it restarts.
func (w naming) after(last naming) naming {
	switch {
	case w.silent:
		w.noSpec, w.noCDI, w.path, w.names, w.held = last.noSpec, last.noCDI, last.path, last.names, last.held
	case w.mute:
		w.noCDI, w.held = last.noCDI, last.held
	}
	return w
}

// text is trouble, or else that a device has no name.
func (w naming) text() string {
	if t := w.trouble(); t != "" {
		return t
	}
	return "the toolkit's CDI specification " + w.path + " does not name every device; see the log of gpu-toolkit"
}

// watchToolkit follows the toolkit's state, also while the settings need none of
// it: they may change. Where it names other devices it has seen what no event tells
// of with every driver, as a MIG layout, by the device nodes that came or went.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		p.mu.Lock()
		now := namingOf(s, err).after(p.said)
		same, named := reflect.DeepEqual(now, p.said), maps.Equal(now.names, p.said.names)
		p.mu.Unlock()
		if !same {
			p.update(func() { p.said = now })
		}
		if !named {
			select {
			case p.others <- struct{}{}:
			default: // it is about to be done
			}
		}
	})
}

// askToolkit hears what the toolkit has said already: no list is to promise what it
// has denied.
func (p *Plugin) askToolkit() {
	p.said = namingOf(nodestate.ReadBoot(p.stateDir(nodestate.Toolkit), p.boot)).after(p.said)
}

// believe heeds what the toolkit says where devices are handed out by CDI names:
// the NVIDIA container runtime needs none. p.mu is held.
func (p *Plugin) believe() {
	before, now := p.cdi.trouble(), p.said
	if !p.settings.Flags.Plugin.CDI() {
		now = naming{}
	}
	p.cdi = now
	switch {
	case before == now.trouble():
	case now.trouble() == "":
		p.cfg.Log.Info("the toolkit has made the devices' CDI names known")
	default:
		p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(reasonCDIMissing), "message", now.trouble())
	}
}

// namingOf is what the toolkit's state means.
func namingOf(s nodestate.State, err error) naming {
	switch {
	case nodestate.IsAbsent(err):
		return naming{}
	case err != nil:
		return naming{silent: true, doubt: "the toolkit's state cannot be read: " + err.Error()}
	case s.Reason == injection.ReasonNoGPU:
		return naming{}
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		// What it wrote before may still be there.
		return naming{silent: true, doubt: "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message}
	case s.Toolkit == nil:
		return naming{}
	}
	i := slices.IndexFunc(s.Toolkit.Specs, func(spec nodestate.Spec) bool { return spec.Kind == cdi.KindGPU })
	if i < 0 {
		return naming{noSpec: "the toolkit has written no CDI spec of kind " + cdi.KindGPU + "; see the log of gpu-toolkit"}
	}
	spec := s.Toolkit.Specs[i]
	w := naming{path: spec.Path}
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

// hindrance is why a device that has nothing wrong with it could not be given to
// a container, and since when.
type hindrance struct {
	fault gpu.Fault
	since time.Time
}

// reasonIMEX is of imex.required.
const reasonIMEX gpu.Reason = "IMEXChannelMissing"

// recallHindrances takes up what an earlier process of this boot knew: nothing is
// newer than it was because a process is, and while the toolkit says nothing it
// stays.
func (p *Plugin) recallHindrances(info *nodestate.DevicePluginInfo) {
	p.hindered = map[gpu.UUID]hindrance{}
	p.said.held = map[gpu.UUID]gpu.Fault{}
	if info == nil {
		return
	}
	for _, r := range info.Resources {
		for _, d := range r.Devices {
			fault := gpu.Fault{Reason: d.Reason, Message: d.Message}
			switch d.Reason {
			case reasonCDIMissing:
				p.said.held[d.GPU] = fault
			case reasonIMEX, reasonMPS:
			default:
				continue
			}
			p.hindered[d.GPU] = hindrance{fault, d.Since}
		}
	}
}

// hinder marks the devices that could not be given to a container: a pod that
// waits is better off than one that fails. p.mu is held.
func (p *Plugin) hinder(resources []plan.Resource) {
	now := map[gpu.UUID]hindrance{}
	for _, r := range resources {
		for i := range r.Devices {
			d := &r.Devices[i]
			fault := p.hindrance(d.UUID())
			if fault.Reason == "" {
				fault = p.unshared(r.Name, *d)
			}
			if fault.Reason == "" {
				continue
			}
			h, replica := now[d.UUID()]
			if !replica {
				h = p.hindered[d.UUID()]
			}
			if h.fault.Reason != fault.Reason {
				h.since = time.Now()
			}
			h.fault = fault
			now[d.UUID()] = h
			if d.Healthy() {
				d.Fault, d.Since = h.fault, h.since
			}
		}
	}
	// Before the first snapshot only what is remembered is listed, not what there is.
	if p.snapshot.Driver.Version != "" {
		p.hindered = now
	}
}

// hindrance is why the device could not be given to a container; zero: it could.
func (p *Plugin) hindrance(id gpu.UUID) gpu.Fault {
	if imex := p.settings.Imex; imex.Required != nil && *imex.Required && p.snapshot.Driver.Version != "" {
		for _, channel := range imex.ChannelIDs {
			if !slices.Contains(p.host.Imex, channel) {
				return gpu.Fault{Reason: reasonIMEX, Message: fmt.Sprintf("imex.required is set and there is no %s below %s; "+
					"load the driver with NVreg_CreateImexChannel0=1, or write imex.required: false", allocate.ImexPath(channel), p.host.DevRoot)}
			}
		}
	}
	switch {
	case !p.settings.Flags.Plugin.CDI():
	case p.cdi.none() != "":
		return gpu.Fault{Reason: reasonCDIMissing, Message: p.cdi.none()}
	case p.cdi.names != nil && !p.cdi.names[string(id)]:
		return gpu.Fault{Reason: reasonCDIMissing, Message: "the toolkit's CDI specification " + p.cdi.path + " does not name it; see the log of gpu-toolkit"}
	default:
		return p.cdi.held[id]
	}
	return gpu.Fault{}
}
