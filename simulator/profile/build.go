package profile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// mark is the prefix of the name of every simulated GPU.
const mark = "SIMULATED "

// Options select one of the machines that a profile describes.
type Options struct {
	GPUs          int    // 0: as many as the profile says
	Seed          string // other UUIDs and serial numbers for another seed
	DriverVersion string // "": the profile's
	ModuleVersion string // "": DriverVersion
}

// State returns the state of such a machine's driver right after its start.
func (p *Profile) State(o Options) (*state.State, error) {
	n := o.GPUs
	if n == 0 {
		n = p.Count
	}
	if n < 1 || n > len(p.GPUs) {
		return nil, fmt.Errorf("profile %s has 1 to %d GPUs, not %d", p.Name, len(p.GPUs), n)
	}
	if o.DriverVersion == "" {
		o.DriverVersion = p.Driver.Version
	}
	if o.ModuleVersion == "" {
		o.ModuleVersion = o.DriverVersion
	}
	cuda, err := parseCUDA(p.Driver.CUDA)
	if err != nil {
		return nil, err
	}
	s := &state.State{Ngpus: uint32(n), CudaVersion: cuda}
	errs := []error{
		state.SetText(s.Profile[:], fmt.Sprintf("%s-%d", p.Name, n)),
		state.SetText(s.ModuleVersion[:], o.ModuleVersion),
	}
	chosen := p.choose(n)
	for index, position := range chosen {
		errs = append(errs, p.gpu(&s.Gpu[index], index, position, o.Seed))
	}
	errs = append(errs, p.links(s, chosen))
	p.topology(s, chosen)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return s, s.Validate()
}

// choose picks n GPUs, spread evenly over the NUMA nodes as in machines with fewer GPUs,
// and returns their indexes in p.GPUs in order.
func (p *Profile) choose(n int) []int {
	byNode := make([][]int, len(p.NUMA)+1)
	for i, g := range p.GPUs {
		node := 0
		if g.NUMA != nil {
			node = *g.NUMA + 1
		}
		byNode[node] = append(byNode[node], i)
	}
	var chosen []int
	for len(chosen) < n {
		for node := range byNode {
			if len(byNode[node]) > 0 && len(chosen) < n {
				chosen = append(chosen, byNode[node][0])
				byNode[node] = byNode[node][1:]
			}
		}
	}
	slices.Sort(chosen)
	return chosen
}

func (p *Profile) gpu(g *state.GPU, index, position int, seed string) error {
	place := p.GPUs[position]
	model := p.Models[place.Model]
	uuid := place.UUID
	if uuid == "" || seed != "" {
		uuid = makeUUID("GPU-", seed, p.Name, place.PCI, strconv.Itoa(position))
	}
	serial := place.Serial
	if (serial == "" || seed != "") && model.Virtual != virtualGPU { // its board's is the host's
		serial = makeSerial(uuid)
	}
	pci, err := parsePCI(place.PCI)
	if err != nil {
		return err
	}
	pci.DeviceId, pci.SubsystemId = uint32(model.Device), uint32(model.Subsystem)
	g.Pci = pci
	g.Minor = uint32(index)
	if place.Minor != nil {
		g.Minor = uint32(*place.Minor)
	}
	g.NumaNode = -1
	if place.NUMA != nil {
		g.NumaNode = int32(*place.NUMA)
		if g.CpuAffinity, err = parseCPUs(p.NUMA[*place.NUMA]); err != nil {
			return err
		}
	}
	return errors.Join(
		state.SetText(g.Uuid[:], uuid),
		state.SetText(g.Serial[:], serial),
		model.apply(g),
	)
}

// apply fills in the common properties of all GPUs of a model.
func (m *Model) apply(g *state.GPU) error {
	var err error
	for _, e := range []error{
		state.SetText(g.Name[:], mark+strings.TrimPrefix(m.Name, mark)),
		state.SetText(g.BoardPart[:], m.BoardPart),
		state.SetText(g.Vbios[:], m.VBIOS),
	} {
		err = errors.Join(err, e)
	}
	major, minor, _ := strings.Cut(m.Compute, ".")
	cc, err1 := strconv.ParseUint(major, 10, 8)
	ccMinor, err2 := strconv.ParseUint(minor, 10, 8)
	g.CcMajor, g.CcMinor = uint32(cc), uint32(ccMinor)
	g.Brand, g.Architecture = m.Brand, m.Architecture
	g.SmCount, g.Cores, g.MultiGpuBoard = m.SMs, m.Cores, asFlag(m.MultiGPU)

	g.PowerMw, g.PowerLimitMw, g.PowerDefaultMw = milli(m.Power.Idle), milli(m.Power.Limit), milli(m.Power.Default)
	g.PowerMinMw, g.PowerMaxMw = milli(m.Power.Min), milli(m.Power.Max)
	g.Temperature, g.TempMax = m.Temperature.Idle, m.Temperature.Max
	g.TempSlowdown, g.TempShutdown = m.Temperature.Slowdown, m.Temperature.Shutdown
	g.Fan = state.None
	if m.Fan != nil {
		g.Fan = *m.Fan
	}
	g.Pstate, g.Clock, g.ClockMax = m.PState, m.Clocks.Idle, m.Clocks.Max
	g.PcieGen, g.PcieGenMax, g.PcieWidth, g.PcieWidthMax = m.PCIe.Gen, m.PCIe.Gen, m.PCIe.Width, m.PCIe.Width
	if m.PCIe.GenIdle != 0 {
		g.PcieGen = m.PCIe.GenIdle
	}
	if m.PCIe.WidthMax != 0 {
		g.PcieWidthMax = m.PCIe.WidthMax
	}
	g.C2cLinks, g.Virtualization, g.Addressing = m.C2CLinks, virtualizations[m.Virtual], addressings[m.Addressing]
	g.Unified = asFlag(m.Memory.Unified)
	g.Persistence = asFlag(m.Persistence)

	g.MemoryTotal, g.MemoryReserved = uint64(m.Memory.Total), uint64(m.Memory.Reserved)
	g.Bar1Total, g.L2Bytes, g.BusWidth = uint64(m.Memory.BAR1), uint32(m.Memory.L2), m.Memory.BusBits
	g.EccSupported, g.EccCurrent, g.EccPending = asFlag(m.ECC), asFlag(m.ECC), asFlag(m.ECC)
	if r := m.RowRemap; r != nil {
		g.RemapSupported, g.RemapMax, g.RemapHigh, g.RemapPartial, g.RemapLow, g.RemapNone = 1, r.Max, r.High, r.Partial, r.Low, r.None
	}
	return errors.Join(err, err1, err2, m.MIG.apply(g))
}

func (m *MIG) apply(g *state.GPU) error {
	if m == nil {
		return nil
	}
	g.MigSupported, g.MigSlices, g.MigMemorySlices = 1, m.Slices, m.MemorySlices
	g.NGiProfiles = uint32(len(m.Profiles))
	for i, p := range m.Profiles {
		gi := &g.GiProfile[i]
		*gi = state.GIProfile{
			Id: p.ID, Slices: p.Slices, Instances: p.Instances, SmCount: p.SMs, MemoryMb: p.MemoryMB, Size: p.Size,
			CopyEngines: p.CopyEngines, Decoders: p.Decoders, Encoders: p.Encoders, Jpegs: p.JPEGs, Ofas: p.OFAs,
			Nplacements: uint32(copy(gi.Start[:], p.Start)),
		}
		copy(gi.Start[:], p.Start)
		if err := state.SetText(gi.Name[:], p.Name); err != nil {
			return err
		}
	}
	return nil
}

func milli(watts float64) uint32 { return uint32(math.Round(watts * 1000)) }

func asFlag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// makeUUID derives a UUID from parts, the same on every machine.
func makeUUID(prefix string, parts ...string) string {
	h := hex.EncodeToString(digest(parts...))
	return prefix + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

// MIGUUID returns the UUID of a MIG device: the same each time it is created.
func MIGUUID(gpu string, gi, ci uint32) string {
	return makeUUID("MIG-", gpu, strconv.Itoa(int(gi)), strconv.Itoa(int(ci)))
}

// makeSerial derives a serial number of 13 digits, as on NVIDIA's boards.
func makeSerial(uuid string) string {
	return fmt.Sprintf("16%011d", binary.BigEndian.Uint64(digest(uuid, "serial"))%1e11)
}

func digest(parts ...string) []byte {
	sum := sha256.Sum256([]byte("gpusim\x00" + strings.Join(parts, "\x00")))
	return sum[:]
}
