package preflight

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
)

// bus is a sysfs with PCI devices.
type bus struct {
	t   *testing.T
	dir string
}

// add adds a device; at is its path below the root complex.
func (b bus) add(at string, files map[string]string) {
	dir := filepath.Join(b.dir, "sys/devices/pci0000:00", at)
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644))
	}
	devices := filepath.Join(b.dir, "sys/bus/pci/devices")
	require.NoError(b.t, os.MkdirAll(devices, 0o755))
	require.NoError(b.t, os.Symlink("../../../devices/pci0000:00/"+at, filepath.Join(devices, filepath.Base(at))))
}

func TestThePortOfAGPU(t *testing.T) {
	b := bus{t, t.TempDir()}
	nvidia := map[string]string{"vendor": "0x10de"}
	port := func(vendor, maxSpeed, maxWidth, speed, width string) map[string]string {
		return map[string]string{
			"vendor": vendor, "max_link_speed": maxSpeed, "max_link_width": maxWidth, "current_link_speed": speed, "current_link_width": width,
		}
	}
	b.add("0000:00:01.0", port("0x8086", "32.0 GT/s PCIe", "8", "2.5 GT/s PCIe", "8"))
	b.add("0000:00:01.0/0000:01:00.0", nvidia)
	// Behind a switch: the GPU's slot, the switch, the root port.
	b.add("0000:00:02.0", port("0x8086", "32.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "8"))
	b.add("0000:00:02.0/0000:02:00.0", port("0x1000", "32.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "8"))
	b.add("0000:00:02.0/0000:02:00.0/0000:03:01.0", port("0x1000", "32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16"))
	b.add("0000:00:02.0/0000:02:00.0/0000:03:01.0/0000:04:00.0", nvidia)
	// Bridges that a hypervisor made up, one that says nothing, and a device that is no GPU.
	b.add("0000:00:03.0", port("0x1b36", "16.0 GT/s PCIe", "32", "16.0 GT/s PCIe", "32"))
	b.add("0000:00:03.0/0000:05:00.0", nvidia)
	b.add("0000:00:04.0", port("0x8086", "Unknown", "255", "Unknown", "0"))
	b.add("0000:00:04.0/0000:06:00.0", nvidia)
	b.add("0000:00:05.0", nvidia)
	b.add("0000:00:01.1", port("0x8086", "32.0 GT/s PCIe", "8", "2.5 GT/s PCIe", "8"))
	b.add("0000:00:01.1/0000:07:00.0", map[string]string{"vendor": "0x144d"})
	root, err := host.Open(b.dir)
	require.NoError(t, err)
	defer root.Close()
	require.Equal(t, &Port{MaxGeneration: 5, MaxWidth: 8}, readPort(root, "0000:01:00.0"))
	require.Equal(t, &Port{MaxGeneration: 5, MaxWidth: 16, Above: &Link{Generation: 4, Width: 8}}, readPort(root, "0000:04:00.0"))
	for _, address := range []gpu.PCIAddress{"0000:05:00.0", "0000:06:00.0", "0000:00:05.0", "0000:07:00.0", "0000:99:00.0"} {
		require.Nil(t, readPort(root, address), address)
	}
}

// setLink sets the PCIe link of GPU 1 in all readings under load.
func (s Observations) setLink(generation, width int) {
	for _, reading := range s.Readings[1:5] {
		c := reading.Conditions[gputest.GPU(1)]
		c.PCIe.Generation, c.PCIe.Width = generation, width
		reading.Conditions[gputest.GPU(1)] = c
	}
}

func TestALinkIsJudgedByItsSlotOrByItsEquals(t *testing.T) {
	here := &Port{MaxGeneration: 5, MaxWidth: 16}
	for name, c := range map[string]struct {
		gpus, generation, width int
		port                    *Port
		topology                []Topology
		c2c                     int
		says                    []string
		note                    string
	}{
		"a slot with fewer lanes":    {gpus: 4, generation: 5, width: 8, port: &Port{MaxGeneration: 5, MaxWidth: 8}},
		"an older slot":              {gpus: 4, generation: 4, width: 16, port: &Port{MaxGeneration: 4, MaxWidth: 16}},
		"a slot of unknown speed":    {gpus: 4, generation: 5, width: 16, port: &Port{MaxWidth: 16}},
		"half of the slot's lanes":   {gpus: 4, generation: 5, width: 8, port: here, says: []string{"×8, and GPU and slot support ×16"}},
		"not the slot's generation":  {gpus: 4, generation: 3, width: 16, port: here, says: []string{"of generation 3 under load, and GPU and slot support 5"}},
		"a riser of eight lanes":     {gpus: 4, generation: 5, width: 8, port: here, topology: []Topology{{PCIeWidth: 8}}},
		"a slow link above":          {gpus: 4, generation: 5, width: 16, port: &Port{MaxGeneration: 5, MaxWidth: 16, Above: &Link{Generation: 4, Width: 8}}, note: "between switch and CPU is of generation 4 ×8"},
		"unlike its equals":          {gpus: 3, generation: 3, width: 8, says: []string{"×8, and most GPUs of its product here have ×16", "of generation 3 under load, and most"}},
		"hidden, and too few equals": {gpus: 2, generation: 4, width: 8, note: "the PCIe link has generation 4 of the GPU's 5 and ×8 of the GPU's ×16: the slot is not visible"},
		"hidden, and expected":       {gpus: 1, generation: 5, width: 8, topology: []Topology{{PCIeWidth: 16}}, says: []string{"×8, and the thresholds expect ×16"}},
		"of another GPU":             {gpus: 2, generation: 5, width: 16, topology: []Topology{{PCI: []gpu.PCIAddress{"0000:99:00.0"}, PCIeGeneration: 6}}},
		"NVLink-C2C":                 {gpus: 4, generation: 4, width: 1, port: here, c2c: 10},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := node("h100-sxm", max(2, c.gpus))
			s.setLink(c.generation, c.width)
			s.change(0, func(condition *gpu.Condition) { condition.C2CLinks = c.c2c })
			for i := range r.GPUs {
				r.GPUs[i].Port = c.port
			}
			limits := table(t)
			limits.Topology = c.topology
			Judge(&r, s, limits)
			require.Len(t, r.GPUs[1].Findings, len(c.says), "%+v", r.GPUs[1].Findings)
			for i, text := range c.says {
				require.Contains(t, r.GPUs[1].Findings[i].Message, text)
			}
			if c.note == "" {
				require.Empty(t, r.GPUs[1].Notes)
			} else {
				require.Contains(t, r.GPUs[1].Notes[0], c.note)
			}
		})
	}
}

func TestTheExpectedRateIsThatOfTheLinkInUse(t *testing.T) {
	five := hostLink{generation: 5, width: 16, maxGeneration: 5, maxWidth: 16}
	for name, c := range map[string]struct {
		g    GPU
		rate float64
		key  string
	}{
		"hidden":                     {GPU{link: hostLink{generation: 4, width: 8, maxGeneration: 4, maxWidth: 16}}, pcieRate(4, 8), "pcie4"},
		"a slot that supports more":  {GPU{link: hostLink{generation: 3, width: 8, maxGeneration: 5, maxWidth: 16}, Port: &Port{MaxGeneration: 5, MaxWidth: 16}}, pcieRate(5, 16), "pcie5"},
		"a slot with fewer lanes":    {GPU{link: hostLink{generation: 5, width: 8, maxGeneration: 5, maxWidth: 16}, Port: &Port{MaxGeneration: 5, MaxWidth: 8}}, pcieRate(5, 8), "pcie5"},
		"a narrow link above":        {GPU{link: five, Port: &Port{MaxGeneration: 5, MaxWidth: 16, Above: &Link{Generation: 4, Width: 8}}}, pcieRate(4, 8), "pcie4"},
		"a wide link above":          {GPU{link: five, Port: &Port{MaxGeneration: 5, MaxWidth: 16, Above: &Link{Generation: 5, Width: 16}}}, pcieRate(5, 16), "pcie5"},
		"nothing read":               {GPU{}, 0, ""},
		"NVLink-C2C":                 {GPU{Product: "NVIDIA GH200 480GB", link: five}, 450e9, "c2c"},
		"NVLink-C2C of unknown rate": {GPU{link: five, Condition: &gpu.Condition{C2CLinks: 10}}, 0, ""},
	} {
		if c.g.Condition == nil {
			c.g.Condition = &gpu.Condition{}
		}
		rate, _, key := expectedHostRate(&c.g, table(t))
		require.Equal(t, c.rate, rate, name)
		require.Equal(t, c.key, key, name)
	}
}
