package preflight

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Topology describes how the machine connects some GPUs, where neither driver nor kernel knows.
type Topology struct {
	Names          []string         `json:"names,omitempty"`   // products; none: all
	PCI            []gpu.PCIAddress `json:"pci,omitempty"`     // none: all
	NVLinks        *int             `json:"nvlinks,omitempty"` // that are up on each, 0 without a bridge
	PCIeGeneration int              `json:"pcieGeneration,omitempty"`
	PCIeWidth      int              `json:"pcieWidth,omitempty"`
}

// topology returns the first entry that is about a GPU, an empty one if none is.
func (t Thresholds) topology(g *GPU) Topology {
	for _, e := range t.Topology {
		if (len(e.Names) == 0 || slices.Contains(e.Names, productName(g.Product))) && (len(e.PCI) == 0 || slices.Contains(e.PCI, g.PCI)) {
			return e
		}
	}
	return Topology{}
}

func (e *Topology) verify() *config.Error {
	for i, at := range e.PCI {
		address, err := gpu.ParsePCIAddress(string(at))
		if err != nil {
			return &config.Error{Path: fmt.Sprintf("pci[%d]", i), Err: err}
		}
		e.PCI[i] = address
	}
	switch {
	case e.NVLinks != nil && *e.NVLinks < 0:
		return &config.Error{Path: "nvlinks", Err: fmt.Errorf("want no negative number, have %d", *e.NVLinks)}
	case e.PCIeGeneration < 0 || e.PCIeGeneration >= len(laneRates):
		return &config.Error{Path: "pcieGeneration", Err: fmt.Errorf("want 1 to %d, have %d", len(laneRates)-1, e.PCIeGeneration)}
	case e.PCIeWidth < 0 || e.PCIeWidth > 32:
		return &config.Error{Path: "pcieWidth", Err: fmt.Errorf("want 1 to 32, have %d", e.PCIeWidth)}
	case e.NVLinks == nil && e.PCIeGeneration == 0 && e.PCIeWidth == 0:
		return &config.Error{Path: "nvlinks", Err: errors.New("want nvlinks, pcieGeneration or pcieWidth")}
	}
	return nil
}
