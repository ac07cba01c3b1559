package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/pattern"
)

// Devices says which devices are advertised.
type Devices struct {
	Include []Selector `json:"include,omitempty" doc:"Only these. Default: all."`
	Exclude []Selector `json:"exclude,omitempty" doc:"Not these, whatever include says."`
}

// Selector names devices: a UUID of a GPU or MIG device, an index (3) or MIG
// index (3:0), a PCI address (0000:3b:00.0), or a product, in which * stands for
// any text. What names a GPU names its MIG devices too.
type Selector string

// MatchesGPU says whether the GPU is meant.
func (s Selector) MatchesGPU(d gpu.Device) bool {
	text := string(s)
	if uuid, err := gpu.ParseUUID(text); err == nil {
		return uuid == d.UUID
	}
	if indexes.Matches(text) {
		n, err := strconv.Atoi(text)
		return err == nil && n == d.Index
	}
	if address, err := gpu.ParsePCIAddress(text); err == nil {
		return address == d.PCI
	}
	return Pattern(text).Matches(d.Product)
}

// MatchesMIG says whether the MIG device of the GPU is meant, by itself and not
// because its GPU is.
func (s Selector) MatchesMIG(d gpu.Device, m gpu.MIGDevice) bool {
	if uuid, err := gpu.ParseUUID(string(s)); err == nil {
		return uuid == m.UUID
	}
	of, index, ok := strings.Cut(string(s), ":")
	return ok && of == strconv.Itoa(d.Index) && index == strconv.Itoa(m.Index)
}

var (
	like      = pattern.New(`^[0-9a-fA-F]*:[0-9a-fA-F:.]*$`)
	likeIndex = pattern.New(`^[-+]?[0-9]+$`)
)

func (p *problems) devices(d Devices) {
	for _, list := range []struct {
		path      string
		selectors []Selector
	}{{"devices.include", d.Include}, {"devices.exclude", d.Exclude}} {
		for i, s := range list.selectors {
			p.selector(at(list.path, i), s)
			if slices.Contains(list.selectors[:i], s) {
				p.add(at(list.path, i), "%q stands there twice; remove one", s)
			}
		}
	}
	for i, s := range d.Exclude {
		if slices.Contains(d.Include, s) {
			p.add(at("devices.exclude", i), "%q is included too; remove it from one of the lists", s)
		}
	}
}

func (p *problems) selector(path string, s Selector) {
	text := string(s)
	switch {
	case indexes.Matches(text):
	case text == "":
		p.add(path, "empty; write a UUID, an index, a PCI address or a product")
	case strings.TrimSpace(text) != text:
		p.add(path, "%q begins or ends with a space, and so names nothing; remove it", text)
	case strings.HasPrefix(text, "GPU-"), strings.HasPrefix(text, "MIG-"):
		if _, err := gpu.ParseUUID(text); err != nil {
			p.add(path, "%w", err)
		}
	case like.Matches(text):
		if _, err := gpu.ParsePCIAddress(text); err != nil {
			p.add(path, "%w", err)
		}
	case likeIndex.Matches(text):
		p.add(path, "%s is no index; write 0 or more", text)
	}
}
