package nodestate

import (
	"fmt"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// MaxGPUs bounds DevicePluginInfo.Inventory, and MaxMIGDevices the MIG devices, profiles and GPU
// instances of one GPU. A GPU has at most MaxSlices memory slices and MaxNotes notes.
const (
	MaxGPUs       = 256
	MaxMIGDevices = 64
	MaxSlices     = 16
	MaxNotes      = 16
)

// LayoutName is the name of a file beside the device plugin's state that it replaces after it has
// changed the MIG layout of a GPU. Not every driver sends an event for that.
const LayoutName = "mig-layout-changed"

// GPU is a GPU that was present in this boot, whatever the configuration makes of it. One that is
// gone stays listed, unhealthy.
type GPU struct {
	UUID              gpu.UUID       `json:"uuid"`
	Index             int            `json:"index"` // NVML's
	Minor             int            `json:"minor"` // N of /dev/nvidiaN; -1: not known
	Product           string         `json:"product,omitempty"`
	Brand             string         `json:"brand,omitempty"`             // "Nvidia", "GeForce", as NVIDIA's DRA driver spells it
	Architecture      string         `json:"architecture,omitempty"`      // "Hopper"
	ComputeCapability string         `json:"computeCapability,omitempty"` // "9.0"
	PCI               gpu.PCIAddress `json:"pci,omitempty"`
	NUMANode          *int           `json:"numaNode,omitempty"`
	MemoryBytes       uint64         `json:"memoryBytes,omitempty"`
	ComputeMode       string         `json:"computeMode,omitempty"`   // when it was read last: "DEFAULT", "EXCLUSIVE_PROCESS"
	NVLinkDomain      gpu.UUID       `json:"nvlinkDomain,omitempty"`  // the same for GPUs that are linked, each with each
	NVLinkNearest     gpu.UUID       `json:"nvlinkNearest,omitempty"` // the same for those of a domain with the most links
	FabricClique      string         `json:"fabricClique,omitempty"`  // cluster's UUID and clique, as in the label gpu.clique
	MIGEnabled        bool           `json:"migEnabled,omitempty"`
	MIG               []MIGDevice    `json:"mig,omitempty"`
	Sharing           *Sharing       `json:"sharing,omitempty"` // nil: claims do not share it
	// Profiles lists what GPU instances can be created on a GPU in MIG mode, and Instances those that
	// exist, with or without MIG devices. They are there only with --mig=dynamic of the device plugin, which
	// then creates and destroys them on request: see package partition.
	Profiles  []MIGProfile  `json:"profiles,omitempty"`
	Instances []GPUInstance `json:"instances,omitempty"`
	Notes     []Note        `json:"notes,omitempty"` // at most MaxNotes
	// Missing reports that the driver no longer lists the GPU, whatever its condition says: the first fault is the reason
	// of that. Its index and minor may be another's.
	Missing bool `json:"missing,omitempty"`
	// AddressingMode says how the GPU reaches the CPU's memory: "HMM", "ATS" or "None". "": it is not known.
	AddressingMode string `json:"addressingMode,omitempty"`
	// Whole is the condition of what all parts of a GPU in MIG mode share, and so of a GPU instance that is
	// created next. Condition has the faults of single GPU instances besides. nil: it is the same.
	Whole *Condition `json:"whole,omitempty"`
	Condition
}

// Note is something that people should know about a GPU that may be allocated nevertheless.
type Note struct {
	Reason  gpu.Reason `json:"reason"`
	Message string     `json:"message"`
}

// Sharing describes how claims share a GPU or MIG device, by the device plugin's configuration.
type Sharing struct {
	Shares int    `json:"shares"`        // 2 or more
	MPS    string `json:"mps,omitempty"` // resource whose MPS control daemon serves it; "": time-slicing
}

// MIGProfile is a kind of GPU instance.
type MIGProfile struct {
	ID              int    `json:"id"`        // 19 of 1g.10gb, by which the driver knows it
	Name            string `json:"name"`      // "1g.10gb"
	Slices          int    `json:"slices"`    // compute slices
	Size            int    `json:"size"`      // memory slices
	Count           int    `json:"instances"` // how many of them may exist at once
	Starts          []int  `json:"starts"`    // the memory slices at which one may begin
	MemoryBytes     uint64 `json:"memoryBytes,omitempty"`
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	CopyEngines     int    `json:"copyEngines,omitempty"`
	Decoders        int    `json:"decoders,omitempty"`
	Encoders        int    `json:"encoders,omitempty"`
	JPEGEngines     int    `json:"jpegEngines,omitempty"`
	OFAEngines      int    `json:"ofaEngines,omitempty"`
}

// GPUInstance is a GPU instance that exists.
type GPUInstance struct {
	ID      int `json:"id"`
	Profile int `json:"profile"` // ID of its MIGProfile
	Start   int `json:"start"`   // its first memory slice
	Size    int `json:"size"`    // memory slices
	// Condition is the health of the instance; nil: it is the same as that of the whole GPU.
	Condition *Condition `json:"condition,omitempty"`
}

// WholeCondition returns the condition of what all parts of the GPU share.
func (g GPU) WholeCondition() Condition {
	if g.Whole != nil {
		return *g.Whole
	}
	return g.Condition
}

// ConditionAt returns the condition of a GPU instance of a profile at a memory slice, whether it exists or
// not: that of the whole GPU, or of the instance that is there.
func (g GPU) ConditionAt(profile, start, size int) Condition {
	for _, i := range g.Instances {
		if i.Profile == profile && i.Start == start && i.Size == size && i.Condition != nil {
			return *i.Condition
		}
	}
	return g.WholeCondition()
}

// MIGDevice is a MIG device of a GPU in the inventory.
type MIGDevice struct {
	UUID            gpu.UUID `json:"uuid"`
	Index           int      `json:"index"` // among the MIG devices of the GPU
	Profile         string   `json:"profile,omitempty"`
	GPUInstance     int      `json:"gpuInstance"`
	ComputeInstance int      `json:"computeInstance"`
	MemoryBytes     uint64   `json:"memoryBytes,omitempty"`
	Multiprocessors int      `json:"multiprocessors,omitempty"`
	CopyEngines     int      `json:"copyEngines,omitempty"`
	Decoders        int      `json:"decoders,omitempty"`
	Encoders        int      `json:"encoders,omitempty"`
	JPEGEngines     int      `json:"jpegEngines,omitempty"`
	OFAEngines      int      `json:"ofaEngines,omitempty"`
	Sharing         *Sharing `json:"sharing,omitempty"` // nil: claims do not share it
	Condition
}

// Condition is the health of a GPU or MIG device.
type Condition struct {
	Health  Health     `json:"health"`
	Reason  gpu.Reason `json:"reason,omitempty"`
	Message string     `json:"message,omitempty"`
	Action  string     `json:"action,omitempty"` // what a person should do; "": nothing, or the message has it
	Since   time.Time  `json:"since,omitzero"`   // of Reason
}

// Reasons of the device plugin for which the configuration leaves a device out on purpose.
const (
	reasonExcluded    = "Excluded"
	reasonNotIncluded = "NotIncluded"
)

// Excluded returns the GPUs and MIG devices that the configuration leaves out on purpose.
func (p DevicePluginInfo) Excluded() map[gpu.UUID]bool {
	excluded := map[gpu.UUID]bool{}
	for _, l := range p.LeftOut {
		if l.GPU != "" && (l.Reason == reasonExcluded || l.Reason == reasonNotIncluded) {
			excluded[l.GPU] = true
		}
	}
	return excluded
}

// Devices returns the devices that are offered to pods: those of the resources, or where
// gpu-dra-driver offers them those of the inventory that are not excluded.
func (p DevicePluginInfo) Devices() []Device {
	var all []Device
	if p.Serve != ServeDRA {
		for _, r := range p.Resources {
			all = append(all, r.Devices...)
		}
		return all
	}
	excluded := p.Excluded()
	add := func(id gpu.UUID, c Condition, m *MIG, numa *int) {
		if excluded[id] || m != nil && excluded[m.Parent] {
			return
		}
		all = append(all, Device{ID: string(id), GPU: id, Health: c.Health, Reason: c.Reason, Message: c.Message, Action: c.Action, Since: c.Since, NUMANode: numa, MIG: m})
	}
	for _, g := range p.Inventory {
		if !g.MIGEnabled {
			add(g.UUID, g.Condition, nil, g.NUMANode)
			continue
		}
		for _, m := range g.MIG {
			add(m.UUID, m.Condition, &MIG{Parent: g.UUID, Index: m.Index, Profile: m.Profile, GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance}, g.NUMANode)
		}
	}
	return all
}

// inventory checks the GPUs and MIG devices.
func (v *validation) inventory(all []GPU) {
	if len(all) > MaxGPUs {
		v.fail("devicePlugin.inventory", fmt.Sprintf("%d GPUs, at most %d are allowed", len(all), MaxGPUs))
		return
	}
	for i, g := range all {
		at := fmt.Sprintf("devicePlugin.inventory[%d]", i)
		v.name(at+".uuid", string(g.UUID))
		v.text(at+".product", g.Product, maxName)
		v.text(at+".brand", g.Brand, 64)
		v.text(at+".architecture", g.Architecture, 64)
		v.text(at+".computeCapability", g.ComputeCapability, 16)
		v.text(at+".pci", string(g.PCI), 64)
		v.text(at+".computeMode", g.ComputeMode, 64)
		v.text(at+".nvlinkDomain", string(g.NVLinkDomain), 64)
		v.text(at+".nvlinkNearest", string(g.NVLinkNearest), 64)
		v.text(at+".fabricClique", g.FabricClique, 64)
		v.sharing(at+".sharing", g.Sharing)
		v.text(at+".addressingMode", g.AddressingMode, 64)
		v.condition(at, g.Condition)
		if g.Whole != nil {
			v.condition(at+".whole", *g.Whole)
		}
		if len(g.MIG) > MaxMIGDevices {
			v.fail(at+".mig", fmt.Sprintf("%d MIG devices, at most %d are allowed", len(g.MIG), MaxMIGDevices))
			return
		}
		v.partitions(at, g)
		if len(g.Notes) > MaxNotes {
			v.fail(at+".notes", fmt.Sprintf("%d notes, at most %d are allowed", len(g.Notes), MaxNotes))
			return
		}
		for j, n := range g.Notes {
			at := fmt.Sprintf("%s.notes[%d]", at, j)
			v.name(at+".reason", string(n.Reason))
			v.reason(at+".reason", string(n.Reason))
			v.text(at+".message", n.Message, maxMessage)
		}
		for j, m := range g.MIG {
			at := fmt.Sprintf("%s.mig[%d]", at, j)
			v.name(at+".uuid", string(m.UUID))
			v.text(at+".profile", m.Profile, 64)
			v.instance(at+".index", m.Index)
			v.instance(at+".gpuInstance", m.GPUInstance)
			v.instance(at+".computeInstance", m.ComputeInstance)
			v.sharing(at+".sharing", m.Sharing)
			v.condition(at, m.Condition)
		}
	}
}

// partitions checks the profiles and GPU instances of a GPU.
func (v *validation) partitions(at string, g GPU) {
	if len(g.Profiles) > MaxMIGDevices || len(g.Instances) > MaxMIGDevices {
		v.fail(at+".profiles", fmt.Sprintf("%d profiles and %d instances, at most %d are allowed", len(g.Profiles), len(g.Instances), MaxMIGDevices))
		return
	}
	for j, p := range g.Profiles {
		v.profile(fmt.Sprintf("%s.profiles[%d]", at, j), p)
	}
	for j, i := range g.Instances {
		v.placedInstance(fmt.Sprintf("%s.instances[%d]", at, j), i)
	}
}

func (v *validation) profile(at string, p MIGProfile) {
	v.name(at+".name", p.Name)
	if p.ID < 0 || p.Slices <= 0 || p.Slices > MaxSlices || p.Count <= 0 || p.Count > MaxSlices || len(p.Starts) > MaxSlices {
		v.fail(at, fmt.Sprintf("id %d, slices %d, instances %d or %d starts are out of range", p.ID, p.Slices, p.Count, len(p.Starts)))
	}
	for _, start := range p.Starts {
		v.placement(at+".starts", start, p.Size)
	}
}

func (v *validation) placedInstance(at string, i GPUInstance) {
	v.instance(at+".id", i.ID)
	v.placement(at, i.Start, i.Size)
	if i.Condition != nil {
		v.condition(at+".condition", *i.Condition)
	}
}

func (v *validation) placement(at string, start, size int) {
	if start < 0 || size <= 0 || start+size > MaxSlices {
		v.fail(at, fmt.Sprintf("memory slices %d to %d are not among the first %d", start, start+size-1, MaxSlices))
	}
}

func (v *validation) sharing(at string, s *Sharing) {
	if s == nil {
		return
	}
	if s.Shares < 2 {
		v.fail(at+".shares", fmt.Sprintf("%d shares nothing, 2 or more do", s.Shares))
	}
	v.text(at+".mps", s.MPS, maxName)
}

func (v *validation) condition(at string, c Condition) {
	if c.Health != Healthy && c.Health != Unhealthy {
		v.fail(at+".health", fmt.Sprintf("%q is not a health value", string(c.Health)))
	}
	if c.Health == Unhealthy && c.Reason == "" {
		v.fail(at+".reason", "missing, though it is unhealthy")
	}
	v.reason(at+".reason", string(c.Reason))
	v.text(at+".message", c.Message, maxMessage)
	v.text(at+".action", c.Action, maxMessage)
}
