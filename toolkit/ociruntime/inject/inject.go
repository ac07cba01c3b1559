// Package inject gives a container what it asks for: it resolves names in the CDI
// specifications of the node, leaves out what is not for the container's driver
// capabilities, and edits the container's configuration.
package inject

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/toolkit/capability"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// Source reads the specifications that can define one of the kinds.
type Source func(kinds ...string) ([]cdi.File, error)

// Into edits the configuration. What the container has already, because the runtime
// above resolved the same names, it is not given again. The warnings are what it asked
// for that the node does not have and that it can do without.
func Into(spec *oci.Spec, r request.Request, read Source) (warnings []string, err error) {
	if r.RemoveHook {
		spec.Hooks.Prestart = slices.DeleteFunc(spec.Hooks.Prestart, request.IsDockerHook) //nolint:staticcheck // it is there
	}
	edits, warnings, err := Edits(r, read)
	if err != nil {
		return nil, err
	}
	if err := apply(spec, edits); err != nil {
		return nil, err
	}
	return warnings, nil
}

// Edits are what a container is to be given, in the order in which it is: the same
// thing may be there more than once. They share memory with what read returned and are
// not to be changed. Its error has a bounded length.
func Edits(r request.Request, read Source) (edits []specs.ContainerEdits, warnings []string, err error) {
	if r.Empty() {
		return nil, nil, nil
	}
	p := &plan{source: read, allowed: r.Capabilities, oneEach: r.OneEach}
	if err := p.all(r); err != nil {
		return nil, nil, request.Brief(err)
	}
	if err := request.Check(r.Requirements, p.driverVersion()); err != nil {
		return nil, nil, err
	}
	return p.edits(), p.warnings, nil
}

// all resolves the whole request.
func (p *plan) all(r request.Request) error {
	var errs []error
	for i, name := range r.Devices {
		err := p.device(name)
		if err == nil {
			continue
		}
		if errs = append(errs, err); len(errs) == maxErrors && i < len(r.Devices)-1 {
			errs = append(errs, fmt.Errorf("and perhaps more of the other %d", len(r.Devices)-1-i))
			break
		}
	}
	if r.DriverOnly {
		errs = append(errs, p.driver())
	}
	for _, channel := range r.Channels {
		errs = append(errs, p.qualified(cdi.KindIMEX+"="+channel))
	}
	if r.MIGConfig {
		errs = append(errs, p.capability("nvidia-cap1", "NVIDIA_MIG_CONFIG_DEVICES"))
	}
	if r.MIGMonitor {
		errs = append(errs, p.capability("nvidia-cap2", "NVIDIA_MIG_MONITOR_DEVICES"))
	}
	for _, feature := range r.Features {
		if err := p.qualified("nvidia.com/" + feature + "=all"); err != nil {
			p.warnings = append(p.warnings, fmt.Sprintf("NVIDIA_%s=enabled: %v", strings.ToUpper(feature), request.Brief(err)))
		}
	}
	return oneLine(errors.Join(errs...))
}

func oneLine(err error) error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) == 1 {
		return err
	}
	var words []string
	for _, e := range joined.Unwrap() {
		words = append(words, e.Error())
	}
	return errors.New(strings.Join(words, "; "))
}

// plan is what was resolved.
type plan struct {
	source   Source
	allowed  capability.Set
	parts    []part
	warnings []string
	read     map[string][]cdi.File
	oneEach  bool // a name stands for one GPU at most
}

// part is what a container gets of one file.
type part struct {
	file    cdi.File
	devices []specs.ContainerEdits
	// by filters the edits; a CDI name means all that is written under it.
	by capability.Set
	// bare leaves out the device nodes that all devices of the file have.
	bare bool
	// only leaves out all but the devices.
	only bool
}

// give adds a device that a container named.
func (p *plan) give(f cdi.File, by capability.Set, name string, d specs.Device) error {
	if n := gpus(d.ContainerEdits); p.oneEach && n > 1 {
		return fmt.Errorf("%s stands for %d GPUs on this node, and the container may only name each by itself", name, n)
	}
	p.add(f, by, d.ContainerEdits)
	return nil
}

// gpus returns how many GPUs edits give.
func gpus(e specs.ContainerEdits) int {
	seen := map[string]bool{}
	for _, n := range e.DeviceNodes {
		if IsGPU(n.HostPath) {
			seen[path.Base(n.HostPath)] = true
		} else if IsGPU(n.Path) {
			seen[path.Base(n.Path)] = true
		}
	}
	return len(seen)
}

// IsGPU reports whether a device node is that of one GPU.
func IsGPU(p string) bool {
	number, ok := strings.CutPrefix(path.Base(p), "nvidia")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

func (p *plan) add(f cdi.File, by capability.Set, devices ...specs.ContainerEdits) {
	for i := range p.parts {
		if old := &p.parts[i]; old.file.Path == f.Path && !old.only {
			old.devices = append(old.devices, devices...)
			old.by |= by
			old.bare = old.bare && len(devices) == 0
			return
		}
	}
	p.parts = append(p.parts, part{file: f, devices: devices, by: by, bare: len(devices) == 0})
}

func (p *plan) files(kind string) ([]cdi.File, error) {
	if files, ok := p.read[kind]; ok {
		return files, nil
	}
	files, err := p.source(kind)
	if err != nil {
		return nil, fmt.Errorf("CDI specifications: %w", err)
	}
	if p.read == nil {
		p.read = map[string][]cdi.File{}
	}
	p.read[kind] = files
	return files, nil
}

// device resolves one name of a GPU.
func (p *plan) device(name string) error {
	if strings.Contains(name, "=") {
		return p.qualified(name)
	}
	var reasons []error
	for _, kind := range []string{cdi.KindNVIDIA, cdi.KindGPU} {
		files, err := p.files(kind)
		if err != nil {
			return err
		}
		f, d, err := cdi.Find(files, kind+"="+name)
		if err == nil {
			return p.give(f, p.allowed, name, d)
		}
		if name == cdi.All && kind == cdi.KindGPU && p.everyDevice(files, p.allowed) {
			return nil
		}
		reasons = append(reasons, err)
	}
	there := p.names()
	if len(there) == 0 {
		return fmt.Errorf("GPU %q: %w; is the driver loaded, and does the toolkit say that it is ready?", name, oneLine(errors.Join(reasons...)))
	}
	if strings.Contains(reasons[0].Error(), "defined by") {
		return fmt.Errorf("GPU %q: %w", name, reasons[0])
	}
	return fmt.Errorf("there is no GPU %q on this node; there are %s", name, listed(there))
}

// everyDevice adds all devices of our own kind, which has no "all".
func (p *plan) everyDevice(files []cdi.File, by capability.Set) bool {
	found := false
	for _, f := range files {
		if f.Kind != cdi.KindGPU || f.Spec == nil {
			continue
		}
		for _, d := range f.Spec.Devices {
			p.add(f, by, d.ContainerEdits)
			found = true
		}
	}
	return found
}

// How many names and other errors an error lists.
const (
	maxNames  = 20 // 8 GPUs by index and UUID, and all
	maxErrors = 4
)

// names are those of all GPUs there are.
func (p *plan) names() []string {
	var names []string
	for _, kind := range []string{cdi.KindNVIDIA, cdi.KindGPU} {
		for _, f := range p.read[kind] {
			if f.Kind == kind {
				names = append(names, f.Devices()...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// listed returns names as an error lists them.
func listed(names []string) string {
	more := ""
	if len(names) > maxNames {
		names, more = names[:maxNames], fmt.Sprintf(", and %d more", len(names)-maxNames)
	}
	return strings.Join(names, ", ") + more
}

// qualified resolves a CDI name of one of request.Kinds, or of what a variable stands for.
func (p *plan) qualified(name string) error {
	kind, device, _ := strings.Cut(name, "=")
	files, err := p.files(kind)
	if err != nil {
		return err
	}
	f, d, err := cdi.Find(files, name)
	if err != nil {
		var there []string
		for _, f := range files {
			if f.Kind == kind {
				there = append(there, f.Devices()...)
			}
		}
		if len(there) > 0 && !slices.Contains(there, device) {
			if name == cdi.KindGPU+"="+cdi.All && p.everyDevice(files, capability.All) {
				return nil
			}
			return fmt.Errorf("there is no %s on this node; of this kind there are %s", name, listed(there))
		}
		return err
	}
	return p.give(f, capability.All, name, d)
}

// driver resolves the driver's files alone.
func (p *plan) driver() error {
	for _, kind := range []string{cdi.KindNVIDIA, cdi.KindGPU} {
		files, err := p.files(kind)
		if err != nil {
			return err
		}
		for _, f := range files {
			if f.Kind == kind && f.Spec != nil {
				p.add(f, p.allowed)
				return nil
			}
		}
	}
	return fmt.Errorf("the driver's files are not known: there is no CDI specification of %s or %s; is the driver loaded, and does the toolkit say that it is ready?", cdi.KindNVIDIA, cdi.KindGPU)
}

// capability resolves the node of one of MIG's capabilities by its file name: minor
// number 1 is to configure, 2 to monitor, as /proc/driver/nvidia-caps/mig-minors has
// it in all drivers.
func (p *plan) capability(base, variable string) error {
	files, err := p.files(cdi.KindManagement)
	if err != nil {
		return err
	}
	f, d, err := cdi.Find(files, cdi.ManagementName())
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	for _, n := range d.ContainerEdits.DeviceNodes {
		if path.Base(n.Path) == base {
			p.parts = append(p.parts, part{file: f, only: true, devices: []specs.ContainerEdits{{DeviceNodes: []*specs.DeviceNode{n}}}, by: capability.All})
			return nil
		}
	}
	return fmt.Errorf("%s: this node has no /dev/nvidia-caps/%s; does its driver have MIG?", variable, base)
}

// driverVersion is that of the files that are mounted; "" if they do not say it.
func (p *plan) driverVersion() string {
	for _, part := range p.parts {
		for _, m := range part.file.Spec.ContainerEdits.Mounts {
			base := path.Base(m.ContainerPath)
			for _, prefix := range []string{"libcuda.so.", "libnvidia-ml.so."} {
				if version, ok := strings.CutPrefix(base, prefix); ok && strings.Contains(version, ".") {
					return version
				}
			}
		}
	}
	return ""
}

// edits are all that the container gets, what all devices of a file have first.
func (p *plan) edits() []specs.ContainerEdits {
	var list []specs.ContainerEdits
	add := func(e specs.ContainerEdits, by capability.Set) { list = append(list, filter(e, by)) }
	for _, part := range p.parts {
		common := part.file.Spec.ContainerEdits
		if part.bare {
			common.DeviceNodes = nil
		}
		if !part.only {
			add(common, part.by)
		}
		for _, d := range part.devices {
			add(d, part.by)
		}
	}
	return list
}
