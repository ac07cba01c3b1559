package allocate

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Roots holds the folders in which to look for device nodes. DriverRoot is a host path, found
// below HostRoot.
type Roots struct {
	HostRoot   string // the host's root as this process sees it
	DriverRoot string // "": not known
}

// maxProc bounds the size of mig-minors: no list of MIG capabilities is longer.
const maxProc = 1 << 20

// FindDeviceNodes finds the device nodes that containers get in addition to CDI devices:
// those of GPUs and MIG devices, and of related devices. It looks only for what the
// configuration asks for, which is nothing with CDI names alone. missing lists those that
// are configured but do not exist, each with its setting.
func FindDeviceNodes(p Roots, c *config.Config, snap gpu.Snapshot) (h DeviceNodes, missing []string) {
	f := c.Flags
	h.DevRoot = p.devRoot(f.NvidiaDevRoot)
	if isTrue(f.Plugin.PassDeviceSpecs) {
		for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"} {
			h.Control = append(h.Control, p.glob(h.DevRoot, node)...)
		}
		h.GPUs = deviceNodes(snap, p.migMinors())
	}
	// The nodes are those of NVIDIA's CDI specifications
	// (github.com/NVIDIA/nvidia-container-toolkit, internal/discover).
	for _, optional := range []struct {
		setting  string
		wanted   *bool
		into     *[]string
		patterns []string
	}{
		{"flags.gdrcopyEnabled", f.GDRCopyEnabled, &h.GDRCopy, []string{"/dev/gdrdrv"}},
		{"flags.gdsEnabled", f.GDSEnabled, &h.GDS, []string{"/dev/nvidia-fs*"}},
		{"flags.mofedEnabled", f.MOFEDEnabled, &h.MOFED, []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"}},
	} {
		if !isTrue(optional.wanted) {
			continue
		}
		for _, pattern := range optional.patterns {
			*optional.into = append(*optional.into, p.glob(h.DevRoot, pattern)...)
		}
		if len(*optional.into) == 0 && f.Plugin.CDI() { // the NVIDIA container runtime finds them itself
			missing = append(missing, fmt.Sprintf("%s: no %s", optional.setting, strings.Join(optional.patterns, " and no ")))
		}
	}
	for _, channel := range c.Imex.ChannelIDs {
		if len(p.glob(h.DevRoot, ImexPath(channel))) > 0 {
			h.Imex = append(h.Imex, channel)
		} else {
			missing = append(missing, "imex.channelIDs: no "+ImexPath(channel))
		}
	}
	return h, missing
}

// devRoot returns the host path below which the device nodes are: the configured one,
// else the driver's root if it has them, as that of a driver container does.
func (p Roots) devRoot(configured *string) string {
	if configured != nil && *configured != "" {
		return *configured
	}
	if p.DriverRoot != "" && len(p.glob(p.DriverRoot, "/dev/nvidiactl")) > 0 {
		return p.DriverRoot
	}
	return "/"
}

// glob returns the paths of the device nodes below devRoot that match, as a container has them.
func (p Roots) glob(devRoot, pattern string) []string {
	root := filepath.Join("/", p.HostRoot, devRoot)
	found, err := filepath.Glob(filepath.Join(escapeGlob(root), pattern))
	if err != nil {
		return nil // only for an invalid pattern
	}
	var nodes []string
	for _, node := range found {
		if info, err := os.Stat(node); err == nil && !info.IsDir() {
			nodes = append(nodes, filepath.Join("/", strings.TrimPrefix(node, root)))
		}
	}
	return nodes
}

// escapeGlob escapes a path so that it is not taken for a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// deviceNodes returns the nodes of each GPU and MIG device. A GPU in MIG mode has those
// of all its parts: its own node alone would be of no use to a container. Unreadable
// GPUs are left out, since their minor number may belong to another GPU, and those whose minor number is not known.
func deviceNodes(snap gpu.Snapshot, minors map[string]int) map[gpu.UUID][]string {
	all := map[gpu.UUID][]string{}
	for _, d := range snap.Devices {
		if d.UUID == "" || d.Fault.Reason != "" || d.Minor < 0 {
			continue
		}
		whole := []string{fmt.Sprintf("/dev/nvidia%d", d.Minor)}
		for _, m := range d.MIG {
			instance := fmt.Sprintf("gpu%d/gi%d", d.Minor, m.GPUInstance)
			gi, hasGI := minors[instance+"/access"]
			ci, hasCI := minors[fmt.Sprintf("%s/ci%d/access", instance, m.ComputeInstance)]
			if !hasGI || !hasCI {
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

// migMinors reads the minor numbers of MIG capabilities, preferring the driver's root to the
// host's. It returns nil if there is no list: then no GPU supports MIG.
func (p Roots) migMinors() map[string]int {
	for _, root := range []string{p.DriverRoot, "/"} {
		data, err := os.ReadFile(filepath.Join("/", p.HostRoot, root, "proc/driver/nvidia-caps/mig-minors"))
		if err == nil && len(data) <= maxProc {
			return parseMinors(string(data))
		}
	}
	return nil
}

// parseMinors reads lines of a capability's name and its minor number, "gpu0/gi1/access
// 12". It skips other lines.
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
