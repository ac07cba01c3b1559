// Package state is the Go side of the simulated driver's state. It creates the file
// that libnvidia-ml and libcuda map, and changes it in place: it breaks and repairs GPUs,
// slows them down and sets their load. state.h describes the layout and the protocol; the
// types here are generated from it.
package state

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// None in Event.Gi, Event.Ci, Proc.Gi and Proc.Ci means the whole GPU.
const None = math.MaxUint32

// GPUs returns the GPUs of the machine, as pointers into s.
func (s *State) GPUs() []*GPU {
	gpus := make([]*GPU, min(s.Ngpus, MaxGPUs))
	for i := range gpus {
		gpus[i] = &s.Gpu[i]
	}
	return gpus
}

// Text reads a NUL-terminated string.
func Text(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

// SetText writes a NUL-terminated string, followed by zeroes.
func SetText(b []byte, text string) error {
	if len(text) >= len(b) {
		return fmt.Errorf("%q is %d bytes long; the simulated driver has room for %d", text, len(text), len(b)-1)
	}
	clear(b)
	copy(b, text)
	return nil
}

// Address returns the PCI address as sysfs spells it, "0000:3b:00.0".
func (p PCI) Address() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Device, p.Function)
}

// Validate finds errors that would break a reader: counts beyond their arrays and
// strings without an end.
func (s *State) Validate() error {
	if s.Ngpus > MaxGPUs {
		return fmt.Errorf("%d GPUs; at most %d fit", s.Ngpus, MaxGPUs)
	}
	if s.InitCostNs > MaxInitCost || s.CallCostNs > MaxCallCost {
		return fmt.Errorf("nvmlInit takes %v and a call %v; at most %v and %v are simulated",
			time.Duration(s.InitCostNs), time.Duration(s.CallCostNs), time.Duration(MaxInitCost), time.Duration(MaxCallCost))
	}
	if s.Nrules > MaxRules {
		return fmt.Errorf("%d rules of calls; at most %d fit", s.Nrules, MaxRules)
	}
	for name, text := range map[string][]byte{"profile": s.Profile[:], "module_version": s.ModuleVersion[:]} {
		if err := ended(name, text); err != nil {
			return err
		}
	}
	for i, g := range s.GPUs() {
		if err := g.validate(); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
	}
	return nil
}

func (g *GPU) validate() error {
	for name, text := range map[string][]byte{
		"uuid": g.Uuid[:], "name": g.Name[:], "serial": g.Serial[:], "board_part": g.BoardPart[:], "vbios": g.Vbios[:],
	} {
		if err := ended(name, text); err != nil {
			return err
		}
	}
	if g.Nlinks > MaxLinks {
		return fmt.Errorf("%d NVLinks; at most %d fit", g.Nlinks, MaxLinks)
	}
	for i, l := range g.Link[:g.Nlinks] {
		if l.RemoteType == RemoteGPU && (l.RemoteGpu >= MaxGPUs || l.RemoteLink >= MaxLinks) {
			return fmt.Errorf("NVLink %d leads to link %d of GPU %d; neither can be", i, l.RemoteLink, l.RemoteGpu)
		}
	}
	return g.validateMIG()
}

func (g *GPU) validateMIG() error {
	if g.NGiProfiles > MaxGIProfiles {
		return fmt.Errorf("%d GPU instance profiles; at most %d fit", g.NGiProfiles, MaxGIProfiles)
	}
	for i := range g.GiProfile[:g.NGiProfiles] {
		p := &g.GiProfile[i]
		if p.Nplacements > MaxPlacements {
			return fmt.Errorf("GPU instance profile %d: %d placements; at most %d fit", i, p.Nplacements, MaxPlacements)
		}
		if err := ended("name", p.Name[:]); err != nil {
			return fmt.Errorf("GPU instance profile %d: %w", i, err)
		}
	}
	for i, gi := range g.Gi {
		if gi.Used != 0 && gi.Profile >= g.NGiProfiles {
			return fmt.Errorf("GPU instance entry %d has profile %d of %d", i, gi.Profile, g.NGiProfiles)
		}
	}
	for i := range g.Ci {
		if err := ended("uuid", g.Ci[i].Uuid[:]); err != nil {
			return fmt.Errorf("compute instance entry %d: %w", i, err)
		}
		if err := ended("name", g.Ci[i].Name[:]); err != nil {
			return fmt.Errorf("compute instance entry %d: %w", i, err)
		}
	}
	for i := range g.Proc {
		if err := ended("name", g.Proc[i].Name[:]); err != nil {
			return fmt.Errorf("process entry %d: %w", i, err)
		}
	}
	return nil
}

func ended(name string, text []byte) error {
	if bytes.IndexByte(text, 0) < 0 {
		return fmt.Errorf("%s has no end", name)
	}
	return nil
}
