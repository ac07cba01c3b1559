package profile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/simulator/state"
)

// PCIe levels between two GPUs, nvmlGpuTopologyLevel_t, with their names in nvidia-smi
// topo.
var levels = map[string]uint32{"BOARD": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}

// LevelName returns the name of a PCIe level; "" if there is none.
func LevelName(level uint32) string {
	for name, l := range levels {
		if l == level {
			return name
		}
	}
	return ""
}

// fabricCompleted is NVML_GPU_FABRIC_STATE_COMPLETED.
const fabricCompleted = 3

func (p *Profile) checkNVLink() error {
	for i, f := range p.NVLink {
		if err := f.check(); err != nil {
			return fmt.Errorf("nvlink[%d].%w", i, err)
		}
	}
	return nil
}

func (f *Fabric) check() error {
	switch f.Kind {
	case "none":
		return nil
	case "mesh":
		if f.GPUs < 2 || f.GPUs > state.MaxGPUs || f.PerPair < 1 || f.PerPair > state.MaxLinks/(f.GPUs-1) {
			return fmt.Errorf("perPair: %d links between each two of %d GPUs; a GPU has at most %d", f.PerPair, f.GPUs, state.MaxLinks)
		}
		return nil
	case "switch":
		boards := append([]Board{{Switches: f.Switches}}, f.Boards...)
		for _, b := range boards {
			if len(b.Switches) == 0 {
				return errors.New("switches: there are none")
			}
			for _, address := range b.Switches {
				if _, err := parsePCI(address); err != nil {
					return fmt.Errorf("switches: %w", err)
				}
			}
		}
		return nil
	}
	return fmt.Errorf("kind: %q is not one of none, mesh, switch", f.Kind)
}

// switchesOf returns the switches that g's links lead to.
func (f *Fabric) switchesOf(g GPU) []string {
	for _, b := range f.Boards {
		if g.NUMA != nil && *g.NUMA == b.NUMA {
			return b.Switches
		}
	}
	return f.Switches
}

// links creates the NVLinks between the chosen GPUs.
func (p *Profile) links(s *state.State, chosen []int) error {
	recorded := slices.ContainsFunc(p.GPUs, func(g GPU) bool { return len(g.Links) > 0 })
	if recorded {
		return p.recordedLinks(s, chosen)
	}
	fabric := Fabric{Kind: "none"}
	if i := slices.IndexFunc(p.NVLink, func(f Fabric) bool { return len(chosen) <= f.GPUs }); i >= 0 {
		fabric = p.NVLink[i]
	}
	for index, position := range chosen {
		g, model := &s.Gpu[index], p.Models[p.GPUs[position].Model]
		g.Nlinks = model.NVLink.Links
		for l := range g.Link[:g.Nlinks] {
			g.Link[l].Version, g.Link[l].SpeedMbps = model.NVLink.Version, model.NVLink.Speed
		}
		switch fabric.Kind {
		case "mesh":
			mesh(g, index, len(chosen), fabric.PerPair)
		case "switch":
			if err := behindSwitches(g, fabric.switchesOf(p.GPUs[position]), fabric.SwitchID); err != nil {
				return err
			}
			if model.NVLink.Fabric {
				g.FabricSupported, g.FabricState = 1, fabricCompleted
			}
		}
	}
	// The far end's address is known only now that all GPUs are placed.
	for _, g := range s.GPUs() {
		for l := range g.Link[:g.Nlinks] {
			if link := &g.Link[l]; link.RemoteType == state.RemoteGPU {
				link.Remote = s.Gpu[link.RemoteGpu].Pci
			}
		}
	}
	return nil
}

// mesh joins the GPU with each other one by perPair links. Link i*perPair+k of
// a GPU leads to the i-th of its peers.
func mesh(g *state.GPU, index, gpus, perPair int) {
	for peer := range gpus {
		if peer == index {
			continue
		}
		for k := range perPair {
			near, far := rank(index, peer)*perPair+k, rank(peer, index)*perPair+k
			if near >= int(g.Nlinks) || far >= int(g.Nlinks) {
				continue
			}
			link := &g.Link[near]
			link.Active, link.RemoteType = 1, state.RemoteGPU
			link.RemoteGpu, link.RemoteLink = uint32(peer), uint32(far)
		}
	}
}

// rank returns the position of peer among the GPUs other than index.
func rank(index, peer int) int {
	if peer > index {
		return peer - 1
	}
	return peer
}

// behindSwitches spreads the links evenly over the switches.
func behindSwitches(g *state.GPU, switches []string, device ID) error {
	for l := range g.Link[:g.Nlinks] {
		address, err := parsePCI(switches[l*len(switches)/int(g.Nlinks)])
		if err != nil {
			return err
		}
		address.DeviceId = uint32(device)
		link := &g.Link[l]
		link.Active, link.RemoteType, link.Remote = 1, state.RemoteSwitch, address
	}
	return nil
}

// recordedLinks uses the links as they were recorded. A link to a GPU that was not
// chosen is inactive.
func (p *Profile) recordedLinks(s *state.State, chosen []int) error {
	for index, position := range chosen {
		g := &s.Gpu[index]
		g.Nlinks = uint32(len(p.GPUs[position].Links))
		for l, seen := range p.GPUs[position].Links {
			link := &g.Link[l]
			link.Version, link.SpeedMbps = seen.Version, seen.Speed
			switch {
			case seen.GPU != nil:
				peer := slices.Index(chosen, *seen.GPU)
				if peer < 0 {
					continue
				}
				link.RemoteType, link.RemoteGpu, link.RemoteLink = state.RemoteGPU, uint32(peer), uint32(seen.RemoteLink)
				link.Remote = s.Gpu[peer].Pci
			case seen.Switch != "":
				address, err := parsePCI(seen.Switch)
				if err != nil {
					return fmt.Errorf("gpus[%d].links[%d].switch: %w", position, l, err)
				}
				address.DeviceId = uint32(seen.SwitchID)
				link.RemoteType, link.Remote = state.RemoteSwitch, address
			}
			link.Active = asFlag(seen.Active)
		}
		if model := p.Models[p.GPUs[position].Model]; model.NVLink.Fabric {
			g.FabricSupported, g.FabricState = 1, fabricCompleted
		}
	}
	return nil
}

func (p *Profile) checkTopology() error {
	if p.Topology == nil {
		return nil
	}
	if len(p.Topology) != len(p.GPUs) {
		return fmt.Errorf("topology: %d rows for %d GPUs", len(p.Topology), len(p.GPUs))
	}
	for i, row := range p.Topology {
		if len(row) != len(p.GPUs) {
			return fmt.Errorf("topology[%d]: %d columns for %d GPUs", i, len(row), len(p.GPUs))
		}
		for j, name := range row {
			if _, ok := levels[name]; !ok && i != j {
				return fmt.Errorf("topology[%d][%d]: %q is not BOARD, PIX, PXB, PHB, NODE or SYS", i, j, name)
			}
			if j < i && i < len(p.Topology) && p.Topology[j][i] != name {
				return fmt.Errorf("topology[%d][%d]: %q, but the other way it is %q", i, j, name, p.Topology[j][i])
			}
		}
	}
	return nil
}

func (p *Profile) topology(s *state.State, chosen []int) {
	for i, a := range chosen {
		for j, b := range chosen {
			switch {
			case i == j:
			case p.Topology != nil:
				s.Topology[i][j] = levels[p.Topology[a][b]]
			default:
				s.Topology[i][j] = level(p.GPUs[a], p.GPUs[b])
			}
		}
	}
}

// level returns the level of the PCIe path between two GPUs.
func level(a, b GPU) uint32 {
	node := func(g GPU) int {
		if g.NUMA == nil {
			return -1
		}
		return *g.NUMA
	}
	switch {
	case node(a) != node(b):
		return levels["SYS"]
	case a.Bridge != b.Bridge:
		return levels["NODE"]
	case a.Switch == 0 || b.Switch == 0:
		return levels["PHB"]
	case a.Switch != b.Switch:
		return levels["PXB"]
	}
	return levels["PIX"]
}
