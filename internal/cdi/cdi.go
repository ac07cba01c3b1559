// Package cdi defines the project's use of the Container Device Interface: the kinds
// and names of devices, the directories of specifications, and a check whether a
// device can really be injected.
//
// A kind ("k8s.gpuready.io/gpu") has devices, a device has a qualified name
// (kind=name), and a specification file says for one kind what a container
// with the device gets: device nodes, mounts, hooks, environment.
package cdi

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// The kinds that the toolkit writes.
const (
	// KindGPU is the kind that the device plugin allocates. Only the toolkit writes it.
	KindGPU = "k8s.gpuready.io/gpu"
	// KindManagement has the one device "all", for the node's own agents.
	KindManagement = "management.gpuready.io/gpu"
	// KindNVIDIA is the well-known kind; the toolkit writes it only if nobody else does.
	KindNVIDIA = "nvidia.com/gpu"
)

// The kinds of devices that GPUs work with. The toolkit writes them only where the
// devices exist and nobody else writes them. The names are those of nvidia-ctk. Each
// has the one device "all"; IMEX channels also have one for each number.
const (
	KindGDS      = "nvidia.com/gds"          // GPUDirect Storage
	KindMOFED    = "nvidia.com/mofed"        // RDMA
	KindGDRCopy  = "nvidia.com/gdrcopy"      // copying by the CPU, in small pieces
	KindNVSwitch = "nvidia.com/nvswitch"     // for managing the switches
	KindIMEX     = "nvidia.com/imex-channel" // memory shared between machines
)

// KindMPS has a device for each GPU that an MPS control daemon serves, with what its clients need
// besides the GPU. gpu-device-plugin mps-daemon writes it.
const KindMPS = "k8s.gpuready.io/mps"

// All is the device that stands for everything of its kind, such as all GPUs.
const All = "all"

// The directories in which runtimes look for specifications, in rising order of
// precedence.
const (
	StaticDir  = "/etc/cdi"
	DynamicDir = "/var/run/cdi"
)

// maxSpec bounds a specification file: 16 GPUs with 7 MIG devices each need 200 KiB.
const maxSpec = 8 << 20

// Limits on the text that an error of Find quotes: the name, which may come from a
// container, and the reason.
const (
	maxQuoted = 256
	maxReason = 1024
)

// Errors that Find and Check wrap.
var (
	ErrUnresolvable = errors.New("CDI device cannot be resolved")
	ErrAmbiguous    = errors.New("two CDI files define it") // an error that wraps it also wraps ErrUnresolvable
	ErrIncomplete   = errors.New("CDI device needs what is not there")
)

// GPUName returns the qualified name under which the device plugin allocates a GPU or
// MIG device.
func GPUName(id gpu.UUID) string { return KindGPU + "=" + string(id) }

// ManagementName returns the qualified name of the device for node agents.
func ManagementName() string { return KindManagement + "=" + All }

// File is a specification file.
type File struct {
	Path     string      // on the host
	Priority int         // of its directory; higher wins
	Kind     string      // set even if the rest could not be parsed, if possible
	Spec     *specs.Spec // nil if Err is set
	Err      error       // why runtimes ignore the file
}

// Devices returns the names of the file's devices.
func (f File) Devices() []string {
	if f.Spec == nil {
		return nil
	}
	names := make([]string, len(f.Spec.Devices))
	for i, d := range f.Spec.Devices {
		names[i] = d.Name
	}
	return names
}

// Encode gives the specification the lowest version that can express it, checks
// it and returns the file's content. Equal specifications have equal content.
func Encode(spec specs.Spec) ([]byte, error) {
	version, err := specs.MinimumRequiredVersion(&spec)
	if err != nil {
		return nil, fmt.Errorf("CDI kind %s: %w", spec.Kind, err)
	}
	spec.Version = version
	if err := validate(&spec); err != nil {
		return nil, fmt.Errorf("CDI kind %s: %w", spec.Kind, err)
	}
	data, err := yaml.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("CDI kind %s: %w", spec.Kind, err)
	}
	return data, nil
}

// Parse reads the content of a specification file as runtimes do: it refuses unknown
// fields.
func Parse(data []byte) (*specs.Spec, error) {
	if len(data) > maxSpec {
		return nil, fmt.Errorf("CDI specification has %d bytes, more than %d", len(data), maxSpec)
	}
	if spec := parseBlock(data); spec != nil {
		return spec, validate(spec)
	}
	spec, err := cdi.ParseSpec(data)
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, errors.New("CDI specification is empty")
	}
	return spec, validate(spec)
}

func validate(spec *specs.Spec) error {
	vendor, class := parser.ParseQualifier(spec.Kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return err
	}
	if err := specs.ValidateVersion(spec); err != nil {
		return err
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).Validate(); err != nil {
		return err
	}
	if len(spec.Devices) == 0 {
		return errors.New("no devices")
	}
	seen := map[string]bool{}
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return err
		}
		if seen[d.Name] {
			return fmt.Errorf("device %q is there twice", d.Name)
		}
		seen[d.Name] = true
		if err := (&cdi.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate(); err != nil {
			return fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	return nil
}

// Load reads all specification files of the directories, given in rising order of
// precedence; the default is StaticDir and DynamicDir. A missing directory has no
// files; a bad file is a File with Err.
func Load(root *host.Root, dirs ...string) ([]File, error) {
	return load(root, func([]byte) bool { return true }, dirs)
}

// load reads the files whose content is wanted.
func load(root *host.Root, wanted func([]byte) bool, dirs []string) ([]File, error) {
	if len(dirs) == 0 {
		dirs = []string{StaticDir, DynamicDir}
	}
	var files []File
	for priority, dir := range dirs {
		paths, err := root.Glob(dir, "*")
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if ext := path.Ext(p); ext != ".json" && ext != ".yaml" {
				continue
			}
			data, err := root.ReadFile(p, maxSpec)
			switch {
			case err != nil:
				files = append(files, File{Path: p, Priority: priority, Err: err})
			case wanted(data):
				files = append(files, file(p, priority, data))
			}
		}
	}
	return files, nil
}

func file(p string, priority int, data []byte) File {
	f := File{Path: p, Priority: priority}
	spec, err := Parse(data)
	if err != nil {
		f.Err = fmt.Errorf("%s: %w", p, err)
		var kind struct {
			Kind string `json:"kind"`
		}
		if yaml.Unmarshal(data, &kind) == nil {
			f.Kind = kind.Kind
		}
		return f
	}
	f.Spec, f.Kind = spec, spec.Kind
	return f
}

// Find returns the file and device that a runtime resolves a qualified name to.
// Its error wraps ErrUnresolvable, and ErrAmbiguous if two files of the highest priority define it.
func Find(files []File, name string) (File, specs.Device, error) {
	fail := func(format string, args ...any) (File, specs.Device, error) {
		return File{}, specs.Device{}, fmt.Errorf("%w: %s: %s", ErrUnresolvable, record.Clean(name, maxQuoted), record.Clean(fmt.Sprintf(format, args...), maxReason))
	}
	vendor, class, device, err := parser.ParseQualifiedName(name)
	if err != nil {
		return fail("%v", err)
	}
	kind := vendor + "/" + class
	var best []File
	var found specs.Device
	var bad []string
	for _, f := range files {
		if f.Kind != kind {
			continue
		}
		if f.Err != nil {
			bad = append(bad, f.Err.Error())
			continue
		}
		i := slices.IndexFunc(f.Spec.Devices, func(d specs.Device) bool { return d.Name == device })
		if i < 0 || len(best) > 0 && f.Priority < best[0].Priority {
			continue
		}
		if len(best) > 0 && f.Priority > best[0].Priority {
			best = nil
		}
		best, found = append(best, f), f.Spec.Devices[i]
	}
	switch {
	case len(best) == 1:
		return best[0], found, nil
	case len(best) > 1:
		paths := make([]string, len(best))
		for i, f := range best {
			paths[i] = f.Path
		}
		_, _, err := fail("defined by %s: runtimes refuse a name that two files of one directory define", strings.Join(paths, " and "))
		return File{}, specs.Device{}, ambiguousError{err}
	case len(bad) > 0:
		return fail("%s", strings.Join(bad, "; "))
	}
	return fail("no specification of kind %s has it", kind)
}

// ambiguousError is ErrAmbiguous.
type ambiguousError struct{ error }

func (e ambiguousError) Unwrap() error      { return e.error }
func (ambiguousError) Is(target error) bool { return target == ErrAmbiguous }

// Check finds out whether a container with the device would start: its name
// resolves, and every device node, mount and hook that it needs is on the host.
// It returns ErrUnresolvable or ErrIncomplete, wrapped, with all that is missing.
func Check(root *host.Root, files []File, name string) error {
	return CheckVisible(root, files, name, func(string) bool { return true })
}

// CheckVisible is like Check for a process that sees only a part of the host. It assumes
// that paths for which seen returns false exist.
func CheckVisible(root *host.Root, files []File, name string, seen func(hostPath string) bool) error {
	file, device, err := Find(files, name)
	if err != nil {
		return err
	}
	missing := map[string]bool{}
	for _, e := range []specs.ContainerEdits{file.Spec.ContainerEdits, device.ContainerEdits} {
		for _, n := range e.DeviceNodes {
			p := n.HostPath
			if p == "" {
				p = n.Path
			}
			if !seen(p) {
				continue
			}
			if info, err := root.Stat(p); err != nil {
				missing["device node "+p] = true
			} else if _, _, ok := host.Device(info); !ok && n.Type != "b" && n.Type != "p" {
				missing["device node "+p+" (a file that is no device)"] = true
			}
		}
		for _, m := range e.Mounts {
			if _, err := root.Stat(m.HostPath); err != nil && seen(m.HostPath) {
				missing[m.HostPath] = true
			}
		}
		for _, h := range e.Hooks {
			if info, err := root.Stat(h.Path); seen(h.Path) && (err != nil || info.Mode()&0o111 == 0) {
				missing["hook "+h.Path] = true
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s (%s): %s", ErrIncomplete, name, file.Path, strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	return nil
}
