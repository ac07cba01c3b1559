package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Devices selects the devices to advertise.
type Devices struct {
	Include []Selector `json:"include,omitempty" doc:"Only these. Default: all."`
	Exclude []Selector `json:"exclude,omitempty" doc:"Not these, whatever include says."`
}

// Selector selects devices: by a UUID of a GPU or MIG device, an index (3) or MIG index
// (3:0), a PCI address (0000:3b:00.0), or a product, in which * stands for any text. A
// selector of a GPU selects its MIG devices too.
type Selector string

// MatchesGPU reports whether s selects the GPU.
func (s Selector) MatchesGPU(d gpu.Device) bool {
	text := string(s)
	if uuid, err := gpu.ParseUUID(text); err == nil {
		return uuid == d.UUID
	}
	if indexPattern().MatchString(text) {
		n, err := strconv.Atoi(text)
		return err == nil && n == d.Index
	}
	if address, err := gpu.ParsePCIAddress(text); err == nil {
		return address == d.PCI
	}
	return Pattern(text).Matches(d.Product)
}

// MatchesMIG reports whether s selects the MIG device by itself, not because of its
// GPU.
func (s Selector) MatchesMIG(d gpu.Device, m gpu.MIGDevice) bool {
	if uuid, err := gpu.ParseUUID(string(s)); err == nil {
		return uuid == m.UUID
	}
	gpuIndex, index, ok := strings.Cut(string(s), ":")
	return ok && gpuIndex == strconv.Itoa(d.Index) && index == strconv.Itoa(m.Index)
}

// addressPattern and numberPattern match texts that were probably meant as a PCI address or an
// index, valid or not.
var (
	addressPattern = compileOnce(`^[0-9a-fA-F]*:[0-9a-fA-F:.]*$`)
	numberPattern  = compileOnce(`^[-+]?[0-9]+$`)
)

// checkDevices checks the section devices.
func (p *problems) checkDevices(d Devices) {
	for _, list := range []struct {
		path      string
		selectors []Selector
	}{{"devices.include", d.Include}, {"devices.exclude", d.Exclude}} {
		for i, s := range list.selectors {
			p.checkSelector(itemPath(list.path, i), s)
			if slices.Contains(list.selectors[:i], s) {
				p.add(itemPath(list.path, i), "%q is listed twice; remove one", s)
			}
		}
	}
	for i, s := range d.Exclude {
		if slices.Contains(d.Include, s) {
			p.add(itemPath("devices.exclude", i), "%q is included too; remove it from one of the lists", s)
		}
	}
}

func (p *problems) checkSelector(path string, s Selector) {
	text := string(s)
	switch {
	case indexPattern().MatchString(text):
	case text == "":
		p.add(path, "empty; write a UUID, an index, a PCI address or a product")
	case strings.TrimSpace(text) != text:
		p.add(path, "%q begins or ends with a space, so it names nothing; remove it", text)
	case strings.HasPrefix(text, "GPU-"), strings.HasPrefix(text, "MIG-"):
		if _, err := gpu.ParseUUID(text); err != nil {
			p.add(path, "%w", err)
		}
	case addressPattern().MatchString(text):
		if _, err := gpu.ParsePCIAddress(text); err != nil {
			p.add(path, "%w", err)
		}
	case numberPattern().MatchString(text):
		p.add(path, "%s is not an index; write 0 or more", text)
	}
}
