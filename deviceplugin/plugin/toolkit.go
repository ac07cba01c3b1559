package plugin

import (
	"context"
	"fmt"
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
// zero naming says nothing: a node whose toolkit is silent may have its specs from
// elsewhere.
type naming struct {
	doubt string          // why containers may not get what they are allocated
	none  string          // why no container can get a device
	path  string          // of the specification
	names map[string]bool // the devices in it; nil: it does not say
}

// trouble is what stands for all devices, "" for nothing.
func (w naming) trouble() string {
	if w.none != "" {
		return w.none
	}
	return w.doubt
}

// text is trouble, or else that a device has no name.
func (w naming) text() string {
	if t := w.trouble(); t != "" {
		return t
	}
	return "the toolkit's CDI specification " + w.path + " does not name every device; see the log of gpu-toolkit"
}

// watchToolkit follows the toolkit's state, also while the settings need none of
// it: they may change.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		now := namingOf(s, err)
		p.mu.Lock()
		same := reflect.DeepEqual(now, p.said)
		p.mu.Unlock()
		if same {
			return
		}
		p.update(func() { p.said = now })
	})
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
		return naming{doubt: "the toolkit's state cannot be read: " + err.Error()}
	case s.Reason == injection.ReasonNoGPU:
		return naming{}
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		// What it wrote before may still be there.
		return naming{doubt: "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message}
	case s.Toolkit == nil:
		return naming{}
	}
	i := slices.IndexFunc(s.Toolkit.Specs, func(spec nodestate.Spec) bool { return spec.Kind == cdi.KindGPU })
	if i < 0 {
		return naming{none: "the toolkit has written no CDI spec of kind " + cdi.KindGPU + "; see the log of gpu-toolkit"}
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
	case r == nil || r.Name == "": // of one that is silent nothing is known
	case r.CDI != nil && !*r.CDI:
		w.none = r.Message
		if w.none == "" {
			w.none = fmt.Sprintf("the container runtime %s does not resolve CDI names; turn CDI on in its configuration", r.Name)
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

// hinder marks the devices that could not be given to a container: a pod that
// waits is better off than one that fails. p.mu is held.
func (p *Plugin) hinder(resources []plan.Resource) {
	now := map[gpu.UUID]hindrance{}
	for _, r := range resources {
		for i := range r.Devices {
			d := &r.Devices[i]
			fault := p.hindrance(d.UUID())
			if fault.Reason == "" || !d.Healthy() {
				continue
			}
			h, before := p.hindered[d.UUID()]
			if !before {
				h.since = time.Now()
			}
			h.fault = fault
			now[d.UUID()] = h
			d.Fault, d.Since = h.fault, h.since
		}
	}
	p.hindered = now
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
	case p.cdi.none != "":
		return gpu.Fault{Reason: reasonCDIMissing, Message: p.cdi.none}
	case p.cdi.names != nil && !p.cdi.names[string(id)]:
		return gpu.Fault{Reason: reasonCDIMissing, Message: "the toolkit's CDI specification " + p.cdi.path + " does not name it; see the log of gpu-toolkit"}
	}
	return gpu.Fault{}
}
