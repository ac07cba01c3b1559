package profile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
		if err := f.check(len(p.GPUs)); err != nil {
			return fmt.Errorf("nvlink[%d].%w", i, err)
		}
	}
	return nil
}

func (f *Fabric) check(gpus int) error {
	if _, err := parseCluster(f.Cluster); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	switch f.Kind {
	case "none":
		return nil
	case "mesh":
		if f.Pairs != nil {
			return f.checkPairs(gpus)
		}
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

// checkPairs checks that each two GPUs of the machine agree on the number of links between them.
func (f *Fabric) checkPairs(gpus int) error {
	if f.PerPair != 0 || len(f.Pairs) != gpus {
		return fmt.Errorf("pairs: %d rows for %d GPUs, and perPair is %d; only one of both can be", len(f.Pairs), gpus, f.PerPair)
	}
	for i, row := range f.Pairs {
		if len(row) != gpus {
			return fmt.Errorf("pairs[%d]: %d columns for %d GPUs", i, len(row), gpus)
		}
		sum := 0
		for j, n := range row {
			if n < 0 || n > state.MaxLinks || i == j && n != 0 || j < i && n != f.Pairs[j][i] {
				return fmt.Errorf("pairs[%d][%d]: %d links; the other way there must be as many, and to itself none", i, j, n)
			}
			sum += n
		}
		if sum > state.MaxLinks {
			return fmt.Errorf("pairs[%d]: %d links; a GPU has at most %d", i, sum, state.MaxLinks)
		}
	}
	return nil
}

var clusterForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// parseCluster reads the UUID of a fabric's cluster; "" is that of a fabric of one machine.
func parseCluster(text string) (id [16]byte, err error) {
	if text == "" {
		return id, nil
	}
	if !clusterForm.MatchString(text) {
		return id, fmt.Errorf("%q does not have the form 8-4-4-4-12", text)
	}
	_, err = hex.Decode(id[:], []byte(strings.ReplaceAll(text, "-", "")))
	return id, err
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
	fabric := Fabric{Kind: "none"}
	if i := slices.IndexFunc(p.NVLink, func(f Fabric) bool { return len(chosen) <= f.GPUs }); i >= 0 {
		fabric = p.NVLink[i]
	}
	recorded := slices.ContainsFunc(p.GPUs, func(g GPU) bool { return len(g.Links) > 0 })
	if recorded {
		return p.recordedLinks(s, chosen, fabric)
	}
	for index, position := range chosen {
		g, model := &s.Gpu[index], p.Models[p.GPUs[position].Model]
		g.Nlinks = model.NVLink.Links
		for l := range g.Link[:g.Nlinks] {
			g.Link[l].Version, g.Link[l].SpeedMbps = model.NVLink.Version, model.NVLink.Speed
		}
		switch fabric.Kind {
		case "mesh":
			fabric.mesh(g, index, chosen)
		case "switch":
			if err := behindSwitches(g, fabric.switchesOf(p.GPUs[position]), fabric.SwitchID); err != nil {
				return err
			}
			if err := fabric.register(g, model); err != nil {
				return err
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

// register registers the GPU with the fabric manager.
func (f *Fabric) register(g *state.GPU, model Model) error {
	if !model.NVLink.Fabric {
		return nil
	}
	cluster, err := parseCluster(f.Cluster)
	g.FabricSupported, g.FabricState, g.FabricCluster, g.FabricClique = 1, fabricCompleted, cluster, f.Clique
	return err
}

// mesh joins the GPU with the other chosen ones. The links of a GPU lead to its peers in their order; those to
// peers that are not chosen are inactive.
func (f *Fabric) mesh(g *state.GPU, index int, chosen []int) {
	for peer, position := range chosen {
		near, far := f.firstLink(chosen, index, position), f.firstLink(chosen, peer, chosen[index])
		for k := range f.between(chosen[index], position) {
			if near+k >= int(g.Nlinks) || far+k >= int(g.Nlinks) {
				continue
			}
			link := &g.Link[near+k]
			link.Active, link.RemoteType = 1, state.RemoteGPU
			link.RemoteGpu, link.RemoteLink = uint32(peer), uint32(far+k)
		}
	}
}

// between returns the number of links between the GPUs at two positions in Profile.GPUs.
func (f *Fabric) between(a, b int) int {
	switch {
	case a == b:
		return 0
	case f.Pairs != nil:
		return f.Pairs[a][b]
	}
	return f.PerPair
}

// firstLink returns the number of the first link of a chosen GPU to the one at a position. Where the links of each
// pair are given, they have the numbers that they have in the whole machine.
func (f *Fabric) firstLink(chosen []int, index, position int) int {
	peers := chosen
	if f.Pairs != nil {
		peers = make([]int, len(f.Pairs))
		for i := range peers {
			peers[i] = i
		}
	}
	first := 0
	for _, peer := range peers {
		if peer < position {
			first += f.between(chosen[index], peer)
		}
	}
	return first
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

// recordedLinks uses the links as they were recorded, and of the fabric only what is not a link. A link to a GPU that
// was not chosen is inactive.
func (p *Profile) recordedLinks(s *state.State, chosen []int, fabric Fabric) error {
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
		if err := fabric.register(g, p.Models[p.GPUs[position].Model]); err != nil {
			return err
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
