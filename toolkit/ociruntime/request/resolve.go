package request

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
)

// Source reads the specifications that can define devices of the kinds.
type Source func(kinds ...string) ([]cdi.File, error)

// Fulfill adds the requested devices to the container's configuration. It does not add
// again what the container already has: containerd or CRI-O may have resolved the same
// names before. The warnings name optional requests that the node cannot meet.
func (r Request) Fulfill(spec *oci.Spec, read Source) (warnings []string, err error) {
	if r.RemoveHook {
		spec.Hooks.Prestart = slices.DeleteFunc(spec.Hooks.Prestart, isDockerHook) //nolint:staticcheck // the hook is of this kind
	}
	edits, warnings, err := r.Edits(read)
	if err != nil {
		return nil, err
	}
	if err := applyEdits(spec, edits); err != nil {
		return nil, err
	}
	return warnings, nil
}

// Edits returns the edits for a container, in the order of their application. The same
// thing may occur more than once. The result shares memory with the specifications and
// must not be changed. The error has a bounded length.
func (r Request) Edits(read Source) (edits []specs.ContainerEdits, warnings []string, err error) {
	if r.Empty() {
		return nil, nil, nil
	}
	p := &plan{source: read, allowed: r.Capabilities, oneEach: r.OneEach}
	if err := p.resolve(r); err != nil {
		return nil, nil, Brief(err)
	}
	if err := check(r.Requirements, p.driverVersion()); err != nil {
		return nil, nil, err
	}
	return p.edits(), p.warnings, nil
}

// resolve resolves the whole request.
func (p *plan) resolve(r Request) error {
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
		errs = append(errs, p.migCapability("nvidia-cap1", "NVIDIA_MIG_CONFIG_DEVICES"))
	}
	if r.MIGMonitor {
		errs = append(errs, p.migCapability("nvidia-cap2", "NVIDIA_MIG_MONITOR_DEVICES"))
	}
	for _, feature := range r.Features {
		if err := p.qualified("nvidia.com/" + feature + "=all"); err != nil {
			p.warnings = append(p.warnings, fmt.Sprintf("NVIDIA_%s=enabled: %v", strings.ToUpper(feature), Brief(err)))
		}
	}
	return oneLine(errors.Join(errs...))
}

// oneLine joins several errors with "; ". They can no longer be unwrapped.
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

// plan collects the resolved devices.
type plan struct {
	source   Source
	allowed  Capabilities
	parts    []part
	warnings []string
	cache    map[string][]cdi.File // by kind
	oneEach  bool                  // a name may stand for one GPU at most
}

// part holds the edits from one file.
type part struct {
	file    cdi.File
	devices []specs.ContainerEdits
	// capabilities selects the edits; all of them for a device with a CDI name.
	capabilities Capabilities
	// driverOnly means that no device was requested: the device nodes that the file's devices share
	// are left out.
	driverOnly bool
	// withoutCommon leaves out the edits that the file's devices share.
	withoutCommon bool
}

// addNamed adds a device that a container named.
func (p *plan) addNamed(f cdi.File, by Capabilities, name string, d specs.Device) error {
	if n := countGPUs(d.ContainerEdits); p.oneEach && n > 1 {
		return fmt.Errorf("%s stands for %d GPUs on this node, and this container may request one GPU with each name", name, n)
	}
	p.add(f, by, d.ContainerEdits)
	return nil
}

// countGPUs returns the number of GPUs in edits.
func countGPUs(e specs.ContainerEdits) int {
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

// add adds devices of a file. All devices of a file are in one part, so that the edits that they share are
// applied once.
func (p *plan) add(f cdi.File, by Capabilities, devices ...specs.ContainerEdits) {
	for i := range p.parts {
		if old := &p.parts[i]; old.file.Path == f.Path && !old.withoutCommon {
			old.devices = append(old.devices, devices...)
			old.capabilities |= by
			old.driverOnly = old.driverOnly && len(devices) == 0
			return
		}
	}
	p.parts = append(p.parts, part{file: f, devices: devices, capabilities: by, driverOnly: len(devices) == 0})
}

func (p *plan) files(kind string) ([]cdi.File, error) {
	if files, ok := p.cache[kind]; ok {
		return files, nil
	}
	files, err := p.source(kind)
	if err != nil {
		return nil, fmt.Errorf("CDI specifications: %w", err)
	}
	if p.cache == nil {
		p.cache = map[string][]cdi.File{}
	}
	p.cache[kind] = files
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
			return p.addNamed(f, p.allowed, name, d)
		}
		if name == cdi.All && kind == cdi.KindGPU && p.addAll(files, p.allowed) {
			return nil
		}
		reasons = append(reasons, err)
	}
	existing := p.names()
	if len(existing) == 0 {
		return fmt.Errorf("GPU %q: %w; check that the driver is loaded and the toolkit is ready", name, oneLine(errors.Join(reasons...)))
	}
	if errors.Is(reasons[0], cdi.ErrAmbiguous) {
		return fmt.Errorf("GPU %q: %w", name, reasons[0])
	}
	return fmt.Errorf("there is no GPU %q on this node; there are %s", name, listed(existing))
}

// addAll adds all devices of our own kind, which has no "all". It reports whether there
// are any.
func (p *plan) addAll(files []cdi.File, by Capabilities) bool {
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

// Limits on the names and other errors that an error lists.
const (
	maxListed = 20 // 8 GPUs by index and UUID, and all
	maxErrors = 4
)

// names returns the names of all GPUs.
func (p *plan) names() []string {
	var names []string
	for _, kind := range []string{cdi.KindNVIDIA, cdi.KindGPU} {
		for _, f := range p.cache[kind] {
			if f.Kind == kind {
				names = append(names, f.Devices()...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// listed formats names for an error.
func listed(names []string) string {
	more := ""
	if len(names) > maxListed {
		names, more = names[:maxListed], fmt.Sprintf(", and %d more", len(names)-maxListed)
	}
	return strings.Join(names, ", ") + more
}

// qualified resolves a whole CDI name: "kind=device".
func (p *plan) qualified(name string) error {
	kind, device, _ := strings.Cut(name, "=")
	files, err := p.files(kind)
	if err != nil {
		return err
	}
	f, d, err := cdi.Find(files, name)
	if err != nil {
		var existing []string
		for _, f := range files {
			if f.Kind == kind {
				existing = append(existing, f.Devices()...)
			}
		}
		if len(existing) > 0 && !slices.Contains(existing, device) {
			if name == cdi.KindGPU+"="+cdi.All && p.addAll(files, allCapabilities) {
				return nil
			}
			return fmt.Errorf("there is no %s on this node; of this kind there are %s", name, listed(existing))
		}
		return err
	}
	return p.addNamed(f, allCapabilities, name, d)
}

// driver resolves only the driver's files.
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
	return fmt.Errorf("the driver's files are not known: there is no CDI specification of %s or %s; check that the driver is loaded and the toolkit is ready", cdi.KindNVIDIA, cdi.KindGPU)
}

// migCapability resolves the node of one of MIG's capabilities by its file name. In all
// drivers minor number 1 is for configuration and 2 for monitoring, according to
// /proc/driver/nvidia-caps/mig-minors.
func (p *plan) migCapability(base, variable string) error {
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
			p.parts = append(p.parts, part{file: f, withoutCommon: true, devices: []specs.ContainerEdits{{DeviceNodes: []*specs.DeviceNode{n}}}, capabilities: allCapabilities})
			return nil
		}
	}
	return fmt.Errorf("%s: this node has no /dev/nvidia-caps/%s; check that its driver supports MIG", variable, base)
}

// driverVersion returns the version in the names of the mounted files, "" if there is none.
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

// edits returns all edits, those that the devices of a file share first.
func (p *plan) edits() []specs.ContainerEdits {
	var list []specs.ContainerEdits
	add := func(e specs.ContainerEdits, by Capabilities) { list = append(list, filter(e, by)) }
	for _, part := range p.parts {
		common := part.file.Spec.ContainerEdits
		if part.driverOnly {
			common.DeviceNodes = nil
		}
		if !part.withoutCommon {
			add(common, part.capabilities)
		}
		for _, d := range part.devices {
			add(d, part.capabilities)
		}
	}
	return list
}
