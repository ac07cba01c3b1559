package preflight

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// In some virtual machines the NUMA node of a GPU is -1. What is far from one node is near another.
func TestALinkOfAnUnknownNUMANodeIsMeasuredFromEach(t *testing.T) {
	var allowed unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	var cpus []int
	for i := range 1024 {
		if allowed.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) < 2 {
		t.Skip("it needs two processors")
	}
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	}
	last := cpus[len(cpus)-1]
	write("sys/devices/system/node/node0/cpulist", strconv.Itoa(cpus[0])+"\n")
	write("sys/devices/system/node/node1/cpulist", "\n") // memory only
	write("sys/devices/system/node/node2/cpulist", strconv.Itoa(last)+"\n")
	write("sys/devices/system/node/possible", "0-2\n")
	write("bandwidth", `#!/bin/sh
rate=12e9
grep -q "^Cpus_allowed_list:[[:space:]]*`+strconv.Itoa(last)+`$" /proc/self/status && rate=26e9
echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\", \"figures\": [{\"name\": \"hostToDevice\", \"unit\": \"B/s\", \"value\": $rate}]}"`)
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()

	for node, want := range map[int]float64{-1: 26e9, 0: 12e9} {
		device := gpu.Device{UUID: gputest.GPU(0), Product: "NVIDIA A100-SXM4-80GB", PCI: "0000:01:00.0", NUMANode: node}
		driver := check.Driver{GPUs: []gpu.Device{device}}
		link := gpu.Condition{PCIe: gpu.PCIe{Generation: 4, MaxGeneration: 4, Width: 16, MaxWidth: 16}}
		reading := Reading{Loaded: true, Conditions: map[gpu.UUID]gpu.Condition{device.UUID: link}}
		b := bench{
			o:      Options{Node: check.Node{Root: root}, Table: table(t), Find: func(name string) string { return filepath.Join(dir, name) }},
			driver: driver, watch: &nvmlWatch{readings: []Reading{reading}}, nearCPUs: nearCPUs(root, driver.Units()), nodes: nodeCPUs(root),
		}
		require.Len(t, b.nodes, 2)
		all := [][]SampleRun{{passedRun("bandwidth", device.UUID, probe.Figure{Name: figureHostToDevice, Unit: "B/s", Value: 12e9})}}
		b.remeasureLinks(t.Context(), phase{samples: []string{"bandwidth"}}, driver.Units(), all, time.Now().Add(time.Minute))
		require.InDelta(t, want, all[0][0].Answer.Figures[0].Value, 1, "NUMA node %d", node)
	}
}
