package preflight

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// hostLink is the PCIe link of a GPU, as the readings show it.
type hostLink struct {
	generation    int // the highest under load: an idle GPU lowers it
	width         int // the least
	maxGeneration int // NVML's
	maxWidth      int // the GPU's own
	loaded        int // readings under load
}

// hostLinkOf returns the link of a GPU. What NVML failed to read in all readings is 0.
func hostLinkOf(readings []Reading, id gpu.UUID) hostLink {
	var l hostLink
	for _, r := range readings {
		c, ok := r.Conditions[id]
		if !ok {
			continue
		}
		p := c.PCIe
		if p.Width > 0 && (l.width == 0 || p.Width < l.width) {
			l.width = p.Width
		}
		l.maxGeneration = max(l.maxGeneration, p.MaxGeneration)
		l.maxWidth = max(l.maxWidth, p.MaxWidth)
		if r.Loaded {
			l.generation = max(l.generation, p.Generation)
			l.loaded++
		}
	}
	return l
}

// possible returns what GPU and port support together, 0 where that is not known: without a visible
// port, only the GPU's half is.
func (l hostLink) possible(port *Port, want Topology) Link {
	if port == nil {
		return Link{Generation: want.PCIeGeneration, Width: want.PCIeWidth}
	}
	p := Link{Generation: l.maxGeneration, Width: port.MaxWidth}
	if port.MaxGeneration > 0 {
		p.Generation = min(p.Generation, port.MaxGeneration)
	}
	if l.maxWidth > 0 {
		p.Width = min(p.Width, l.maxWidth)
	}
	if want.PCIeGeneration > 0 {
		p.Generation = want.PCIeGeneration
	}
	if want.PCIeWidth > 0 {
		p.Width = want.PCIeWidth
	}
	return p
}

// minLoadedReadings is the number of readings under load needed to judge the link's generation: one
// may have been taken before the GPU raised it.
const minLoadedReadings = 3

// judgeLink judges width and generation of the PCIe link: by what GPU and slot support, or, where the slot is
// not visible, by what most of the node's GPUs of the product have.
func judgeLink(g *GPU, all []GPU, t Thresholds) {
	if g.Condition.C2CLinks > 0 || t.c2cRate(g) > 0 {
		return // data goes over NVLink-C2C, and the PCIe link may be a narrow one
	}
	l := g.link
	if l.loaded < minLoadedReadings {
		l.generation = 0
	}
	why := "GPU and slot support"
	want := l.possible(g.Port, t.topology(g))
	if g.Port == nil {
		if want != (Link{}) {
			why = "the thresholds expect"
		} else {
			why = "most GPUs of its product here have"
			want = usualLink(g, all)
		}
	}
	const action = "reseat the GPU, look at riser and cable, and compare lspci -vv (LnkSta, LnkCap) with its neighbours"
	narrow, old := l.width > 0 && l.width < want.Width, l.generation > 0 && l.generation < want.Generation
	if narrow {
		addFinding(g, Unhealthy, ReasonPCIe, fmt.Sprintf("the PCIe link is ×%d, and %s ×%d", l.width, why, want.Width), action)
	}
	if old {
		addFinding(g, Unhealthy, ReasonPCIe, fmt.Sprintf("the PCIe link is of generation %d under load, and %s %d", l.generation, why, want.Generation), action)
	}
	if g.Port != nil {
		if above := g.Port.Above; above != nil && above.rate() < (Link{Generation: l.generation, Width: l.width}).rate() {
			g.Notes = append(g.Notes, fmt.Sprintf("the PCIe link between switch and CPU is of generation %d ×%d, less than the GPU's: see that it is meant to be", above.Generation, above.Width))
		}
		return
	}
	if narrow || old {
		return
	}
	var less []string
	if l.generation > 0 && l.generation < l.maxGeneration && want.Generation == 0 {
		less = append(less, fmt.Sprintf("generation %d of the GPU's %d", l.generation, l.maxGeneration))
	}
	if l.width > 0 && l.width < l.maxWidth && want.Width == 0 {
		less = append(less, fmt.Sprintf("×%d of the GPU's ×%d", l.width, l.maxWidth))
	}
	if len(less) > 0 {
		g.Notes = append(g.Notes, "the PCIe link has "+strings.Join(less, " and ")+": the slot is not visible, as in a virtual machine, so this is not judged")
	}
}

// usualLink returns the generation and the width that more than half of the GPUs of a product have at
// least, 0 where g has it, too, or where there are too few to tell.
func usualLink(g *GPU, all []GPU) Link {
	var equals []hostLink
	for _, other := range all {
		if other.Product == g.Product && other.Parent == "" {
			equals = append(equals, other.link)
		}
	}
	if len(equals) < minEqual {
		return Link{}
	}
	usual := func(own int, of func(l hostLink) int) int {
		var more []float64
		for _, l := range equals {
			if of(l) > own {
				more = append(more, float64(of(l)))
			}
		}
		if own == 0 || 2*len(more) <= len(equals) {
			return 0
		}
		return int(median(more))
	}
	return Link{
		Generation: usual(g.link.generation, func(l hostLink) int { return l.generation }),
		Width:      usual(g.link.width, func(l hostLink) int { return l.width }),
	}
}

// keyC2C is the key of limits for figures that go over NVLink-C2C.
const keyC2C = "c2c"

// expectedHostRate returns the rate of the link to the host, where it is from, and the key of its limits; 0 if
// it is not known.
func expectedHostRate(g *GPU, t Thresholds) (rate float64, source, key string) {
	if rate := t.c2cRate(g); rate > 0 {
		return rate, "NVLink-C2C, datasheet", keyC2C
	}
	if g.Condition == nil || g.Condition.C2CLinks > 0 {
		return 0, "", ""
	}
	possible := g.link.possible(g.Port, t.topology(g))
	link := Link{Generation: max(g.link.generation, possible.Generation), Width: max(g.link.width, possible.Width)}
	where := ""
	if g.Port != nil && g.Port.Above != nil && g.Port.Above.rate() < link.rate() {
		link, where = *g.Port.Above, " above the switch"
	}
	if link.rate() == 0 {
		return 0, "", ""
	}
	return link.rate(), fmt.Sprintf("PCIe generation %d ×%d%s", link.Generation, link.Width, where), "pcie" + strconv.Itoa(link.Generation)
}

// c2cRate returns the rate of NVLink-C2C between the GPU and its CPU in one direction; 0 if none is known.
func (t Thresholds) c2cRate(g *GPU) float64 {
	product, _ := t.Product(g.Product)
	return product.C2CRate * 1e9
}
