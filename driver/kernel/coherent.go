package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
)

// coherent lists the device IDs of the GPUs whose memory a Grace CPU addresses as its own: GH200, GB200 and GB300
// (Linux, drivers/vfio/pci/nvgrace-gpu/main.c).
var coherent = []uint16{0x2342, 0x2345, 0x2348, 0x2941, 0x31c2}

// coherentMode is the parameter, from R580 on, by which the driver keeps that memory to itself ("driver"), or makes NUMA
// nodes of it ("numa"): the kubelet then counts it as the node's memory, and any process may get it.
const coherentMode = "NVreg_CoherentGPUMemoryMode"

// SetDefaults adds the parameters that a node's GPUs need, and that no file configures.
func (o *Options) SetDefaults(files Files, gpus []host.PCIGPU) {
	_, known := files["nvidia"].Params[coherentMode]
	needed := slices.ContainsFunc(gpus, func(g host.PCIGPU) bool { return slices.Contains(coherent, g.Device) })
	configured := slices.ContainsFunc(o.Params["nvidia"], func(p Param) bool { return strings.ReplaceAll(p.Name, "-", "_") == coherentMode })
	if known && needed && !configured {
		o.Params["nvidia"] = append(o.Params["nvidia"], Param{coherentMode, "driver", true, "gpu-driver's own"})
	}
}

// memoryTimeout bounds the questions to the driver about the memory of GPUs: it answers when it has initialised them.
const memoryTimeout = 10 * time.Second

// DescribeGPUMemory returns a note if memory of GPUs is the node's own, as NUMA nodes without CPUs; "" if not.
func (s System) DescribeGPUMemory(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- s.findGPUMemory() }() // it may wait in the kernel, and cannot be cancelled
	select {
	case nodes := <-found:
		if len(nodes) == 0 {
			return ""
		}
		return "GPU memory is online as NUMA nodes, which the kubelet counts as memory of the node: " + strings.Join(nodes, ", ") +
			"; set " + coherentMode + "=driver (drivers from R580 on), and restart the node"
	case <-ctx.Done():
		return ""
	}
}

// findGPUMemory describes the NUMA nodes that the driver has made of GPUs' memory:
// /proc/driver/nvidia/gpus/<address>/numa_status has a line "Node: <number>" (NVIDIA's nv-procfs.c).
func (s System) findGPUMemory() []string {
	var nodes []string
	files, _ := filepath.Glob(filepath.Join(s.Proc, "driver/nvidia/gpus/*/numa_status"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			rest, ok := strings.CutPrefix(line, "Node:")
			node, err := strconv.Atoi(strings.TrimSpace(rest))
			if !ok || err != nil || node < 0 {
				continue
			}
			if gib := s.memoryWithoutCPU(node); gib > 0 {
				nodes = append(nodes, fmt.Sprintf("node %d (%d GiB of GPU %s)", node, gib, filepath.Base(filepath.Dir(file))))
			}
		}
	}
	return nodes
}

// memoryWithoutCPU returns the memory of a NUMA node in GiB, rounded up; 0 if the node has CPUs.
func (s System) memoryWithoutCPU(node int) int64 {
	dir := filepath.Join(s.Sys, "devices/system/node", "node"+strconv.Itoa(node))
	cpus, err := os.ReadFile(filepath.Join(dir, "cpulist"))
	if err != nil || strings.TrimSpace(string(cpus)) != "" {
		return 0
	}
	memory, err := os.ReadFile(filepath.Join(dir, "meminfo"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(memory)) { // "Node 2 MemTotal:       100663296 kB"
		if f := strings.Fields(line); len(f) == 5 && f[2] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[3], 10, 64)
			return (kib + 1<<20 - 1) >> 20
		}
	}
	return 0
}
