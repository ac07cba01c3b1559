package profile

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/gpuready/gpuready/simulator/state"
)

// Model is one kind of GPU. Units are in the names of the fields or beside
// them; the numbers are those of an idle GPU. NVML answers "not supported" for a clock, a
// temperature, a power, a BAR1 or a PCIe link that is absent or 0.
type Model struct {
	Name         string  `json:"name"`         // as NVML says it, with or without "SIMULATED " before it
	Brand        uint32  `json:"brand"`        // nvmlBrandType_t
	Architecture uint32  `json:"architecture"` // nvmlDeviceArchitecture_t
	Compute      string  `json:"compute"`      // "9.0"
	SMs          uint32  `json:"sms"`
	Cores        uint32  `json:"cores"`
	Device       ID      `json:"device"`    // PCI device and vendor, 0x233010de
	Subsystem    ID      `json:"subsystem"` // likewise
	BoardPart    string  `json:"boardPart,omitempty"`
	VBIOS        string  `json:"vbios,omitempty"`
	MultiGPU     bool    `json:"multiGPUBoard,omitempty"`
	Memory       Memory  `json:"memory"`
	Clocks       Clocks  `json:"clocks"`
	Power        Power   `json:"power"` // W
	Temperature  Celsius `json:"temperature"`
	PCIe         PCIe    `json:"pcie"`
	Fan          *uint32 `json:"fan,omitempty"` // %; absent: it has none
	PState       uint32  `json:"pstate,omitempty"`
	Persistence  bool    `json:"persistence,omitempty"`
	ECC          bool    `json:"ecc,omitempty"`
	RowRemap     *Remap  `json:"rowRemap,omitempty"` // absent: not supported
	NVLink       NVLink  `json:"nvlink,omitzero"`
	C2CLinks     uint32  `json:"c2cLinks,omitempty"`   // NVLink-C2C to the CPU of its module
	Addressing   string  `json:"addressing,omitempty"` // how it reaches the CPU's memory: HMM, ATS; absent: not at all
	Virtual      string  `json:"virtual,omitempty"`    // in a virtual machine: passthrough or vgpu
	MIG          *MIG    `json:"mig,omitempty"`        // absent: not supported
}

// Memory describes the device memory.
type Memory struct {
	Total    Bytes  `json:"total"`
	Reserved Bytes  `json:"reserved"`
	BAR1     Bytes  `json:"bar1,omitempty"`
	L2       Bytes  `json:"l2,omitempty"`
	BusBits  uint32 `json:"busBits,omitempty"`
	Unified  bool   `json:"unified,omitempty"` // it is the CPU's, and NVML has no numbers of it
}

// Clocks in MHz: graphics, SM, memory, video.
type Clocks struct {
	Idle [4]uint32 `json:"idle"`
	Max  [4]uint32 `json:"max"`
}

// Power in W.
type Power struct {
	Idle    float64 `json:"idle"`
	Limit   float64 `json:"limit"`
	Default float64 `json:"default"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

// Celsius are temperatures in degrees.
type Celsius struct {
	Idle     uint32 `json:"idle"`
	Max      uint32 `json:"max"`
	Slowdown uint32 `json:"slowdown"`
	Shutdown uint32 `json:"shutdown"`
}

// PCIe is the link to the host; the generation falls while a GPU is idle.
type PCIe struct {
	Gen      uint32 `json:"gen"`
	GenIdle  uint32 `json:"genIdle,omitempty"` // absent: Gen
	Width    uint32 `json:"width"`
	WidthMax uint32 `json:"widthMax,omitempty"` // the GPU's, where the slot has fewer lanes; absent: Width
}

// Remap is the histogram of memory banks by how many rows they can still remap.
type Remap struct {
	Max     uint32 `json:"max"`
	High    uint32 `json:"high,omitempty"`
	Partial uint32 `json:"partial,omitempty"`
	Low     uint32 `json:"low,omitempty"`
	None    uint32 `json:"none,omitempty"`
}

// NVLink describes the links of the GPU; the machine defines their remote ends.
type NVLink struct {
	Links   uint32 `json:"links,omitempty"`
	Version uint32 `json:"version,omitempty"` // nvmlNvlinkVersion_t
	Speed   uint32 `json:"speed,omitempty"`   // MB/s, one direction
	Fabric  bool   `json:"fabric,omitempty"`  // it registers with the fabric manager
}

// MIG describes the ways to partition the GPU.
type MIG struct {
	Slices       uint32      `json:"slices"`       // of compute
	MemorySlices uint32      `json:"memorySlices"` // units of Size and Start
	Profiles     []GIProfile `json:"profiles"`
}

// GIProfile is one kind of GPU instance.
type GIProfile struct {
	ID          uint32   `json:"id"`   // NVML_GPU_INSTANCE_PROFILE_…
	Name        string   `json:"name"` // "1g.10gb+me"
	Slices      uint32   `json:"slices"`
	Instances   uint32   `json:"instances"` // most that fit
	SMs         uint32   `json:"sms"`
	MemoryMB    uint64   `json:"memoryMB"`
	Size        uint32   `json:"size"`  // memory slices
	Start       []uint32 `json:"start"` // where it may begin
	CopyEngines uint32   `json:"copyEngines,omitempty"`
	Decoders    uint32   `json:"decoders,omitempty"`
	Encoders    uint32   `json:"encoders,omitempty"`
	JPEGs       uint32   `json:"jpegs,omitempty"`
	OFAs        uint32   `json:"ofas,omitempty"`
}

// maxMemorySlices is the number of memory slices of an RTX PRO 6000 Blackwell, which has the most.
const maxMemorySlices = 12

// What a GPU is in a virtual machine, nvmlGpuVirtualizationMode_t, and how it reaches the CPU's memory,
// nvmlDeviceAddressingModeType_t.
var (
	virtualizations = map[string]uint32{"": 0, "passthrough": 1, virtualGPU: 2}
	addressings     = map[string]uint32{"": 0, "HMM": 1, "ATS": 2}
)

const virtualGPU = "vgpu"

var computeForm = regexp.MustCompile(`^[0-9]{1,2}\.[0-9]$`)

func (m *Model) check() error {
	switch {
	case m.Name == "":
		return errors.New("name: is missing")
	case !computeForm.MatchString(m.Compute):
		return fmt.Errorf("compute: %q is no compute capability such as 9.0", m.Compute)
	case m.Memory.Total == 0 || m.Memory.Reserved > m.Memory.Total:
		return fmt.Errorf("memory: of %d bytes %d are reserved", m.Memory.Total, m.Memory.Reserved)
	case virtualizations[m.Virtual] == 0 && m.Virtual != "":
		return fmt.Errorf("virtual: %q is not passthrough or vgpu", m.Virtual)
	case addressings[m.Addressing] == 0 && m.Addressing != "":
		return fmt.Errorf("addressing: %q is not HMM or ATS", m.Addressing)
	case m.NVLink.Links > state.MaxLinks:
		return fmt.Errorf("nvlink.links: %d; a GPU has at most %d", m.NVLink.Links, state.MaxLinks)
	}
	if m.MIG != nil {
		return m.MIG.check()
	}
	return nil
}

func (m *MIG) check() error {
	if m.Slices == 0 || m.Slices > state.MaxGIs || m.MemorySlices == 0 || m.MemorySlices > maxMemorySlices {
		return fmt.Errorf("mig: %d compute and %d memory slices; there can be 1 to %d and 1 to %d",
			m.Slices, m.MemorySlices, state.MaxGIs, maxMemorySlices)
	}
	if len(m.Profiles) > state.MaxGIProfiles {
		return fmt.Errorf("mig.profiles: %d; at most %d fit", len(m.Profiles), state.MaxGIProfiles)
	}
	names := map[string]bool{}
	for i, p := range m.Profiles {
		field := fmt.Sprintf("mig.profiles[%d]", i)
		switch {
		case p.Name == "" || names[p.Name]:
			return fmt.Errorf("%s.name: %q is missing or not the only one", field, p.Name)
		case p.Slices == 0 || p.Slices > m.Slices:
			return fmt.Errorf("%s.slices: %d of %d", field, p.Slices, m.Slices)
		case p.Size == 0 || len(p.Start) == 0 || len(p.Start) > state.MaxPlacements:
			return fmt.Errorf("%s: size %d with %d places to start; at most %d fit", field, p.Size, len(p.Start), state.MaxPlacements)
		}
		names[p.Name] = true
		for _, start := range p.Start {
			if start > m.MemorySlices || p.Size > m.MemorySlices-start {
				return fmt.Errorf("%s: from %d, %d slices reach beyond the %d there are", field, start, p.Size, m.MemorySlices)
			}
		}
	}
	return nil
}
