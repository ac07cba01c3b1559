package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// throttles maps names to reasons why a GPU's clocks are reduced
// (nvmlClocksEventReason…).
var throttles = map[string]uint64{
	"applications-clocks": 0x2, "sw-power-cap": 0x4, "hw-slowdown": 0x8, "sync-boost": 0x10, "sw-thermal": 0x20,
	"hw-thermal": 0x40, "hw-power-brake": 0x80, "display-clocks": 0x100,
}

// ThrottleReasons returns the names of the throttle reasons, sorted.
func ThrottleReasons() []string { return slices.Sorted(maps.Keys(throttles)) }

// ThrottleNames returns the names of the reasons in a value of GPU.Throttle, sorted.
func ThrottleNames(reasons uint64) []string {
	var names []string
	for _, name := range ThrottleReasons() {
		if reasons&throttles[name] != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Degradation describes how to make a GPU slower than it should be; a nil field leaves
// that part unchanged.
type Degradation struct {
	PCIeGen, PCIeWidth *uint32   // what the link has fallen to; 0: what it was
	Throttle           *[]string // what holds the clocks down; "none" or nothing: nothing does
	LinksDown          *[]string // the numbers of the NVLinks that are down, "none" or nothing; the others are up again
}

// Degrade makes the GPU slower than it should be, or ends that.
func (s *State) Degrade(index int, d Degradation) error {
	g := &s.Gpu[index]
	if d.PCIeGen != nil {
		if *d.PCIeGen > g.PcieGenMax {
			return fmt.Errorf("pcie-gen: the link of %s has no generation above %d", Text(g.Name[:]), g.PcieGenMax)
		}
		g.PcieGenLimit = *d.PCIeGen
	}
	if w := d.PCIeWidth; w != nil {
		if *w > g.PcieWidthMax || *w&(*w-1) != 0 {
			return fmt.Errorf("pcie-width: %d is neither 0 nor 1, 2, 4, … %d lanes", *w, g.PcieWidthMax)
		}
		g.PcieWidthLimit = *w
	}
	if d.Throttle != nil {
		reasons, err := reasonsOf(*d.Throttle)
		if err != nil {
			return err
		}
		g.Throttle = reasons
	}
	if d.LinksDown != nil {
		return s.setLinksDown(index, *d.LinksDown)
	}
	return nil
}

func reasonsOf(names []string) (reasons uint64, err error) {
	for _, name := range names {
		bit, ok := throttles[name]
		if !ok && name != "none" {
			return 0, fmt.Errorf("throttle: %q is neither none nor one of %s", name, strings.Join(ThrottleReasons(), ", "))
		}
		reasons |= bit
	}
	return reasons, nil
}

// setLinksDown brings down exactly these NVLinks of the GPU.
func (s *State) setLinksDown(index int, names []string) error {
	g := &s.Gpu[index]
	var down uint64
	for _, name := range names {
		if name == "none" {
			continue
		}
		l, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return fmt.Errorf("links-down: %q is neither none nor the number of an NVLink", name)
		}
		if l >= uint64(g.Nlinks) || (g.Link[l].Active == 0 && g.LinksDown>>l&1 == 0) {
			return fmt.Errorf("links-down: %s has no NVLink %d in use, of %d", Text(g.Name[:]), l, g.Nlinks)
		}
		down |= 1 << l
	}
	for l := range g.Nlinks {
		s.switchLink(index, l, down>>l&1 == 0)
	}
	return nil
}

// switchLink brings an NVLink of the GPU down, or up again, at both ends.
func (s *State) switchLink(index int, l uint32, up bool) {
	g := &s.Gpu[index]
	if up == (g.LinksDown>>l&1 == 0) {
		return // as it was, and links that were never in use stay so
	}
	switchEnd(g, l, up)
	if far := g.Link[l]; far.RemoteType == RemoteGPU {
		switchEnd(&s.Gpu[far.RemoteGpu], far.RemoteLink, up)
	}
}

func switchEnd(g *GPU, l uint32, up bool) {
	if up {
		g.LinksDown &^= 1 << l
		g.Link[l].Active = 1
		return
	}
	g.LinksDown |= 1 << l
	g.Link[l].Active = 0
}

// Miscompute makes libcuda invert a bit in every n-th floating-point result on the GPU, where
// n is every; 0 ends it. The bit is counted in the upper 32 bits of the result.
func (s *State) Miscompute(index int, every uint64, bit uint32) error {
	if bit > 31 {
		return fmt.Errorf("bit: %d is not 0 to 31", bit)
	}
	g := &s.Gpu[index]
	g.WrongEvery, g.WrongBit = every, bit
	return nil
}
