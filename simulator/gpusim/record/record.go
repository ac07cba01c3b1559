// Package record describes the machine that it runs on as a profile, with data from
// NVML. It is the only part of gpusim that needs a driver.
package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// Options configure a recording.
type Options struct {
	Name    string // of the profile
	Library string // path of libnvidia-ml
	Sys     string // where sysfs is
}

// Machine reads the whole machine. notes are sentences about data that NVML does not
// report, and its source instead.
func Machine(o Options) (p *profile.Profile, notes []string, err error) {
	lib := nvml.New(nvml.WithLibraryPath(o.Library))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("NVML of %s does not start: %w; is the driver loaded and are its device nodes accessible?", o.Library, ret)
	}
	defer func() { err = errors.Join(err, asError("end NVML", lib.Shutdown())) }()
	r := &recorder{lib: lib, options: o, models: map[profile.ID]*profile.Model{}, profile: &profile.Profile{
		Version: 1, Name: o.Name, Description: "recorded from a machine", Models: map[string]profile.Model{},
	}}
	if err := r.machine(); err != nil {
		return nil, nil, err
	}
	return r.profile, r.notes, nil
}

type recorder struct {
	lib     nvml.Interface
	options Options
	profile *profile.Profile
	devices []nvml.Device
	places  []state.PCI
	models  map[profile.ID]*profile.Model // this program's own, as far as asked for
	notes   []string
}

// asError names the call that failed; nil for success.
func asError(what string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %w", what, ret)
}

// optional is like asError, but ignores calls that the model or driver does not
// support, or that this user may not make.
func optional(what string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND:
		return nil
	}
	return asError(what, ret)
}

func (r *recorder) note(format string, a ...any) {
	if note := fmt.Sprintf(format, a...); !slices.Contains(r.notes, note) {
		r.notes = append(r.notes, note)
	}
}

func (r *recorder) machine() error {
	version, ret := r.lib.SystemGetDriverVersion()
	cuda, ret2 := r.lib.SystemGetCudaDriverVersion_v2()
	count, ret3 := r.lib.DeviceGetCount()
	if err := errors.Join(asError("driver version", ret), asError("CUDA version", ret2), asError("count of GPUs", ret3)); err != nil {
		return err
	}
	if count == 0 || count > state.MaxGPUs {
		return fmt.Errorf("the machine has %d GPUs; 1 to %d can be recorded", count, state.MaxGPUs)
	}
	r.profile.Driver = profile.Driver{Version: version, CUDA: fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)}
	for i := range count {
		device, ret := r.lib.DeviceGetHandleByIndex(i)
		if err := asError(fmt.Sprintf("GPU %d", i), ret); err != nil {
			return err
		}
		r.devices = append(r.devices, device)
		place, err := address(device)
		if err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
		r.places = append(r.places, place)
	}
	for i := range r.devices {
		if err := r.gpu(i); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
	}
	return r.topology()
}

// address returns the PCI location of a GPU.
func address(device nvml.Device) (state.PCI, error) {
	info, ret := device.GetPciInfo()
	return location(info), asError("PCI location", ret)
}

func location(info nvml.PciInfo) state.PCI {
	return state.PCI{
		Domain: info.Domain, Bus: info.Bus, Device: info.Device,
		DeviceId: info.PciDeviceId, SubsystemId: info.PciSubSystemId,
	}
}

func (r *recorder) gpu(i int) error {
	device := r.devices[i]
	uuid, ret := device.GetUUID()
	minor, ret2 := device.GetMinorNumber()
	serial, ret3 := device.GetSerial()
	if err := errors.Join(asError("UUID", ret), asError("minor number", ret2), optional("serial number", ret3)); err != nil {
		return err
	}
	g := profile.GPU{PCI: r.places[i].Address(), UUID: uuid, Serial: serial, Minor: &minor}
	var err error
	if g.NUMA, err = r.numa(i); err != nil {
		return err
	}
	if g.Links, err = r.links(i); err != nil {
		return err
	}
	model, err := r.model(i)
	if err != nil {
		return err
	}
	if model.NVLink.Fabric {
		r.cluster(i)
	}
	g.Model = r.addModel(model)
	r.profile.GPUs = append(r.profile.GPUs, g)
	return nil
}

// addModel returns the name under which the profile lists the model.
func (r *recorder) addModel(m profile.Model) string {
	for name, known := range r.profile.Models {
		if same(known, m) {
			return name
		}
	}
	name := fmt.Sprintf("model-%d", len(r.profile.Models)+1)
	r.profile.Models[name] = m
	return name
}

func same(a, b profile.Model) bool {
	x, err1 := (&profile.Profile{Models: map[string]profile.Model{"": a}}).Encode()
	y, err2 := (&profile.Profile{Models: map[string]profile.Model{"": b}}).Encode()
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// numa finds the GPU's NUMA node in sysfs, and that node's CPUs from NVML.
func (r *recorder) numa(i int) (*int, error) {
	path := filepath.Join(r.options.Sys, "bus/pci/devices", r.places[i].Address(), "numa_node")
	text, err := os.ReadFile(path)
	if err != nil {
		r.note("%s has no NUMA node: %v", r.places[i].Address(), err)
		return nil, nil //nolint:nilerr // a machine without NUMA is one to record, too
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if node < 0 {
		return nil, nil
	}
	words, ret := r.devices[i].GetCpuAffinity(256)
	if err := asError("CPU affinity", ret); err != nil {
		return nil, err
	}
	var mask [4]uint64
	for w := range min(len(words), len(mask)) {
		mask[w] = uint64(words[w])
	}
	for len(r.profile.NUMA) <= node {
		r.profile.NUMA = append(r.profile.NUMA, "0")
	}
	r.profile.NUMA[node] = profile.CPUs(mask)
	return &node, nil
}

// topology reads the PCIe levels between each two GPUs.
func (r *recorder) topology() error {
	for i, a := range r.devices {
		row := make([]string, len(r.devices))
		for j, b := range r.devices {
			if i == j {
				row[j] = "X"
				continue
			}
			level, ret := r.lib.DeviceGetTopologyCommonAncestor(a, b)
			if err := asError(fmt.Sprintf("PCIe path from GPU %d to GPU %d", i, j), ret); err != nil {
				return err
			}
			if row[j] = profile.LevelName(uint32(level)); row[j] == "" {
				return fmt.Errorf("PCIe path from GPU %d to GPU %d: level %d is not known", i, j, level)
			}
		}
		r.profile.Topology = append(r.profile.Topology, row)
	}
	return nil
}
