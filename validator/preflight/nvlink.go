package preflight

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const noteNoBridge = "no NVLink is up: there is no bridge, or nothing at the other end"

// wholeBoard is the number of GPUs from which on a node has a whole baseboard. With fewer, the others may be in
// another virtual machine, and links to them down.
const wholeBoard = 4

// volta is the compute capability of V100, whose links no switch joins. Machines connect them in several meshes.
const volta = "7.0"

// judgeNVLinks judges how many links are up: by the expected topology, by the node's other GPUs of the
// product, or by its baseboard. NVML does not report how many a board connects.
func judgeNVLinks(g *GPU, s Observations, all []GPU, t Thresholds) {
	links := g.Condition.NVLinks
	up := len(links.Up)
	most, siblings := mostNVLinks(g, s.Readings, all)
	told := t.topology(g).NVLinks
	switch product, _ := t.Product(g.Product); {
	case told != nil:
		most, g.linksTold = *told, true
	case siblings >= wholeBoard && !strings.HasPrefix(g.Compute, volta):
		most = max(most, min(product.NVLinks, up+len(links.Down))) // a switch that fails takes links of all
	}
	switch {
	case up == 0 && len(links.Down) > 0 && (most == 0 || told == nil && siblings%2 == 0 && joinedByBridges(g, s, all, t)):
		if told == nil {
			g.Notes = append(g.Notes, noteNoBridge)
		}
	case up < most && len(links.Down) > 0: // a link whose state cannot be read is no fault
		addNVLinkFinding(g, fmt.Sprintf("%d of %d NVLinks are up; down: %s", up, most, numbers(links.Down)),
			"; if there never was a bridge, say so in the topology of --thresholds")
	}
}

// mostNVLinks returns the most links that are up on a GPU of the product of g, and how many of its GPUs have some.
func mostNVLinks(g *GPU, readings []Reading, all []GPU) (most, siblings int) {
	if len(readings) == 0 {
		return 0, 0
	}
	for _, other := range all { // of which MIG devices have a parent
		if other.Product != g.Product || other.Parent != "" {
			continue
		}
		first, last := readings[0].Conditions[other.UUID], readings[len(readings)-1].Conditions[other.UUID]
		most = max(most, len(first.NVLinks.Up), len(last.NVLinks.Up))
		if len(last.NVLinks.Up) > 0 {
			siblings++
		}
	}
	return most, siblings
}

// joinedByBridges reports whether NVLinks join the GPUs of the product of g in pairs, as bridges between boards
// do. A board without a bridge then is no fault.
func joinedByBridges(g *GPU, s Observations, all []GPU, t Thresholds) bool {
	if product, _ := t.Product(g.Product); product.NVLinks > 0 {
		return false // the baseboard connects all
	}
	for _, other := range all {
		peers := 0
		for _, l := range s.Snapshot.Links {
			if l.Lanes > 0 && (l.A == other.UUID || l.B == other.UUID) {
				peers++
			}
		}
		if other.Product == g.Product && other.Parent == "" && peers > 1 {
			return false
		}
	}
	return true
}

func addNVLinkFinding(g *GPU, message, more string) {
	addFinding(g, Unhealthy, ReasonNVLink, message,
		"see nvidia-smi nvlink -s -i "+string(g.UUID)+" and the fabric manager's log; reset the GPU; if it stays so, look at bridge or baseboard"+more)
}

func numbers(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = fmt.Sprint(n)
	}
	if len(texts) > 18 { // NVML_NVLINK_MAX_LINKS
		texts = append(texts[:18], "…")
	}
	return strings.Join(texts, ", ")
}

// compareNVLinks adds a finding if NVLinks of the GPU are down that were up in a past result, the GPU being
// where it is now.
func compareNVLinks(g *GPU, past []Result) {
	if g.Parent != "" || g.Condition == nil || g.linksTold || g.migMode {
		return
	}
	if slices.ContainsFunc(g.Findings, func(f Finding) bool { return f.Reason == ReasonNVLink }) {
		return
	}
	var lost []int
	var since time.Time // when one of them was up for the last time
	for _, p := range past {
		i := slices.IndexFunc(p.GPUs, func(o GPU) bool { return o.UUID == g.UUID && o.PCI == g.PCI && o.Parent == "" })
		if i < 0 || p.GPUs[i].Condition == nil {
			continue
		}
		for _, link := range g.Condition.NVLinks.Down {
			if slices.Contains(p.GPUs[i].Condition.NVLinks.Up, link) {
				since = p.Time
				if !slices.Contains(lost, link) {
					lost = append(lost, link)
				}
			}
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		g.Notes = slices.DeleteFunc(g.Notes, func(note string) bool { return note == noteNoBridge })
		addNVLinkFinding(g, fmt.Sprintf("NVLinks that were up at %s are down: %s", since.Format(time.RFC3339), numbers(lost)),
			"; if the bridge was removed on purpose, say so in the topology of --thresholds")
	}
}
