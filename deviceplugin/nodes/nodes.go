// Package nodes finds what containers are given besides CDI names: the device
// nodes of GPUs and MIG devices, and of what goes with them. It looks for what the
// configuration asks for, and with CDI names alone that is nothing.
package nodes

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Place is where to look. Paths are host paths; HostRoot is where they are seen.
type Place struct {
	HostRoot   string
	DriverRoot string
}

// maxProc bounds what is read of mig-minors: nobody's list of MIG's capabilities
// is longer.
const maxProc = 1 << 20

// Find looks for the nodes. lacking names what the configuration asks for and is
// not there, each with its setting.
func Find(p Place, c *config.Config, snap gpu.Snapshot) (h allocate.Host, lacking []string) {
	f := c.Flags
	h.DevRoot = p.devRoot(f.NvidiaDevRoot)
	if on(f.Plugin.PassDeviceSpecs) {
		for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"} {
			h.Control = append(h.Control, p.glob(h.DevRoot, node)...)
		}
		h.GPUs = devices(snap, p.migMinors())
	}
	// The nodes are those that the reference's CDI specifications have
	// (github.com/NVIDIA/nvidia-container-toolkit, internal/discover).
	for _, extra := range []struct {
		setting  string
		wanted   *bool
		into     *[]string
		patterns []string
	}{
		{"flags.gdrcopyEnabled", f.GDRCopyEnabled, &h.GDRCopy, []string{"/dev/gdrdrv"}},
		{"flags.gdsEnabled", f.GDSEnabled, &h.GDS, []string{"/dev/nvidia-fs*"}},
		{"flags.mofedEnabled", f.MOFEDEnabled, &h.MOFED, []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"}},
	} {
		if !on(extra.wanted) {
			continue
		}
		for _, pattern := range extra.patterns {
			*extra.into = append(*extra.into, p.glob(h.DevRoot, pattern)...)
		}
		if len(*extra.into) == 0 && f.Plugin.CDI() { // the NVIDIA container runtime looks for itself
			lacking = append(lacking, fmt.Sprintf("%s: no %s", extra.setting, strings.Join(extra.patterns, " and no ")))
		}
	}
	for _, channel := range c.Imex.ChannelIDs {
		if len(p.glob(h.DevRoot, allocate.ImexPath(channel))) > 0 {
			h.Imex = append(h.Imex, channel)
		} else {
			lacking = append(lacking, "imex.channelIDs: no "+allocate.ImexPath(channel))
		}
	}
	return h, lacking
}

// devRoot is the host path below which the device nodes are: what is configured,
// else the driver's root where it has them, as that of a driver container does.
func (p Place) devRoot(configured *string) string {
	if configured != nil && *configured != "" {
		return *configured
	}
	if p.DriverRoot != "" && len(p.glob(p.DriverRoot, "/dev/nvidiactl")) > 0 {
		return p.DriverRoot
	}
	return "/"
}

// glob returns the device nodes that match, as a container has them.
func (p Place) glob(devRoot, pattern string) []string {
	root := filepath.Join("/", p.HostRoot, devRoot)
	found, err := filepath.Glob(filepath.Join(escape(root), pattern))
	if err != nil {
		return nil // of a pattern, which is ours
	}
	var nodes []string
	for _, node := range found {
		if info, err := os.Stat(node); err == nil && !info.IsDir() {
			nodes = append(nodes, filepath.Join("/", strings.TrimPrefix(node, root)))
		}
	}
	return nodes
}

// escape keeps a path from being taken for a pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// devices are the nodes of each GPU and MIG device. A GPU in MIG mode has those of
// all its parts: with its own alone a container could do nothing with it. What
// could not be read is left out, as its minor number may be another GPU's.
func devices(snap gpu.Snapshot, minors map[string]int) map[gpu.UUID][]string {
	all := map[gpu.UUID][]string{}
	for _, d := range snap.Devices {
		if d.UUID == "" || d.Fault.Reason != "" {
			continue
		}
		whole := []string{fmt.Sprintf("/dev/nvidia%d", d.Minor)}
		for _, m := range d.MIG {
			instance := fmt.Sprintf("gpu%d/gi%d", d.Minor, m.GPUInstance)
			gi, a := minors[instance+"/access"]
			ci, b := minors[fmt.Sprintf("%s/ci%d/access", instance, m.ComputeInstance)]
			if !a || !b {
				continue
			}
			caps := []string{fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", ci)}
			all[m.UUID] = append([]string{whole[0]}, caps...)
			whole = append(whole, caps...)
		}
		all[d.UUID] = whole
	}
	return all
}

// migMinors reads the list of MIG's capabilities, that of the driver's root before
// the host's. Without one no GPU can do MIG.
func (p Place) migMinors() map[string]int {
	for _, root := range []string{p.DriverRoot, "/"} {
		data, err := os.ReadFile(filepath.Join("/", p.HostRoot, root, "proc/driver/nvidia-caps/mig-minors"))
		if err == nil && len(data) <= maxProc {
			return parseMinors(string(data))
		}
	}
	return nil
}

// parseMinors reads lines of a capability's name and its minor number,
// "gpu0/gi1/access 12". It passes over what is none.
func parseMinors(text string) map[string]int {
	minors := map[string]int{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 20); err == nil { // minors have 20 bits
			minors[fields[0]] = int(n)
		}
	}
	return minors
}

func on(b *bool) bool { return b != nil && *b }
