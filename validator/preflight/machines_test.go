package preflight

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/validator/probe"
)

// machine is an entry of testdata/machines.yaml, which describes the fields.
type machine struct {
	Machine, Source, Product, Capability, Assumed string

	GPUs    int
	Link    gpu.PCIe
	Links   map[int]gpu.PCIe
	Port    *Port
	Ports   map[int]*Port
	C2C     int
	Figures map[string]perGPU
	Peak    float64
	Paths   struct {
		Lanes  int
		Values perGPU
		Pairs  [][2]int
	}
	Up, Down map[int]int
	Want     map[int][]gpu.Reason
}

// perGPU is a list, or one number for all.
type perGPU []float64

func (p *perGPU) UnmarshalJSON(data []byte) error {
	var one float64
	if json.Unmarshal(data, &one) == nil {
		*p = perGPU{one}
		return nil
	}
	return json.Unmarshal(data, (*[]float64)(p))
}

func (p perGPU) of(i int) float64 { return p[i%len(p)] }

// observed returns what a preflight observes on the machine, and a result that lists its GPUs.
func (m machine) observed() (Observations, Result) {
	var s Observations
	var r Result
	for i := range m.GPUs {
		address := gpu.PCIAddress(fmt.Sprintf("0000:%02x:00.0", i+1))
		s.Snapshot.Devices = append(s.Snapshot.Devices, gpu.Device{Index: i, UUID: gputest.GPU(i), Product: m.Product, PCI: address})
		one := GPU{Index: fmt.Sprint(i), UUID: gputest.GPU(i), Product: m.Product, PCI: address, Compute: m.Capability, Port: m.Port}
		if own, ok := m.Ports[i]; ok {
			one.Port = own
		}
		r.GPUs = append(r.GPUs, one)
	}
	for at := range 6 {
		reading := Reading{Loaded: at > 0 && at < 5, Conditions: map[gpu.UUID]gpu.Condition{}}
		for i := range m.GPUs {
			c := gpu.Condition{PCIe: m.Link, C2CLinks: m.C2C}
			if own, ok := m.Links[i]; ok {
				c.PCIe = own
			}
			if !reading.Loaded {
				c.PCIe.Generation = min(c.PCIe.Generation, 1)
			}
			for n := range m.Up[i] {
				c.NVLinks.Up = append(c.NVLinks.Up, n)
			}
			for n := range m.Down[i] {
				c.NVLinks.Down = append(c.NVLinks.Down, m.Up[i]+n)
			}
			reading.Conditions[gputest.GPU(i)] = c
		}
		s.Readings = append(s.Readings, reading)
	}
	for name, values := range m.Figures {
		for i := range m.GPUs {
			f := probe.Figure{Name: name, Unit: "B/s", Value: values.of(i) * 1e9}
			switch name {
			case figureFP32, figureBF16:
				f.Unit, f.Value = "FLOP/s", values.of(i)*1e12
			case figureCopy, figureTriad:
				f.Peak = m.Peak * 1e9
			}
			s.Runs = append(s.Runs, passedRun("bandwidth", gputest.GPU(i), f))
		}
	}
	ways := passedRun("bandwidth", "")
	for a := range m.GPUs {
		for b := range m.GPUs {
			if a < b && m.Paths.Lanes > 0 && m.joins(a, b) {
				s.Snapshot.Links = append(s.Snapshot.Links, gpu.Link{A: gputest.GPU(a), B: gputest.GPU(b), Kind: gpu.LinkNVLink, Lanes: m.Paths.Lanes})
			}
			if a != b && len(m.Paths.Values) > 0 {
				ways.Answer.Peers = append(ways.Answer.Peers,
					probe.Peer{From: gputest.GPU(a), To: gputest.GPU(b), Access: true, Unit: "B/s", Value: m.Paths.Values.of(a) * 1e9})
			}
		}
	}
	if len(ways.Answer.Peers) > 0 {
		s.Runs = append(s.Runs, ways)
	}
	return s, r
}

// joins reports whether NVLinks join two GPUs: all, or those in Pairs.
func (m machine) joins(a, b int) bool {
	return len(m.Paths.Pairs) == 0 || slices.Contains(m.Paths.Pairs, [2]int{a, b})
}

func TestPublishedMachinesAreJudgedRight(t *testing.T) {
	data, err := os.ReadFile("testdata/machines.yaml")
	require.NoError(t, err)
	var all []machine
	require.NoError(t, yaml.UnmarshalStrict(data, &all))
	healthy, faulty := 0, 0
	for _, m := range all {
		require.NotEmpty(t, m.Source, m.Machine)
		if len(m.Want) == 0 {
			healthy++
		} else {
			faulty++
		}
		t.Run(m.Machine, func(t *testing.T) {
			s, r := m.observed()
			Judge(&r, s, table(t))
			require.Empty(t, r.Findings)
			for i, g := range r.GPUs {
				require.Equal(t, m.Want[i], reasons(g.Findings), "GPU %d: %+v", i, g.Findings)
			}
		})
	}
	require.GreaterOrEqual(t, healthy, 45)
	require.GreaterOrEqual(t, faulty, 10)
}
