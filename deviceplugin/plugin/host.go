package plugin

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/internal/gpu"
)

// maxProc bounds what is read of /proc/driver/nvidia-caps/mig-minors, as
// nobody's list of MIG's capabilities is longer.
const maxProc = 1 << 20

// readHost looks for what containers are given besides CDI names, as far as the
// configuration asks for it: with CDI names alone nothing is looked at.
func (p *Plugin) readHost(snap gpu.Snapshot) allocate.Host {
	f := p.cfg.Settings.Flags
	h := allocate.Host{DevRoot: p.devRoot()}
	if on(f.Plugin.PassDeviceSpecs) {
		for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"} {
			h.Control = append(h.Control, p.nodes(h.DevRoot, node)...)
		}
		h.GPUs = deviceNodes(snap, p.migMinors())
	}
	// The nodes are those that the reference's CDI specifications have
	// (github.com/NVIDIA/nvidia-container-toolkit, internal/discover).
	var lacking []string
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
			*extra.into = append(*extra.into, p.nodes(h.DevRoot, pattern)...)
		}
		if len(*extra.into) == 0 && f.Plugin.CDI() { // the NVIDIA container runtime looks for itself
			lacking = append(lacking, fmt.Sprintf("%s: no %s", extra.setting, strings.Join(extra.patterns, " and no ")))
		}
	}
	for _, channel := range p.cfg.Settings.Imex.ChannelIDs {
		if len(p.nodes(h.DevRoot, allocate.ImexPath(channel))) > 0 {
			h.Imex = append(h.Imex, channel)
		} else {
			lacking = append(lacking, "imex.channelIDs: no "+allocate.ImexPath(channel))
		}
	}
	if now := strings.Join(lacking, "; "); now != p.lacking {
		p.lacking = now
		if now != "" {
			p.cfg.Log.Warn("containers do not get all that is configured", "reason", "DeviceNodesMissing", "path", filepath.Join("/", p.cfg.HostRoot, h.DevRoot), "message", now)
		}
	}
	return h
}

// devRoot is the host path below which the device nodes are: what is configured,
// else the driver's root where it has them, as that of a driver container does.
func (p *Plugin) devRoot() string {
	if root := p.cfg.Settings.Flags.NvidiaDevRoot; root != nil && *root != "" {
		return *root
	}
	if p.root != "" && len(p.nodes(p.root, "/dev/nvidiactl")) > 0 {
		return p.root
	}
	return "/"
}

// nodes are the device nodes that match, as a container has them.
func (p *Plugin) nodes(devRoot, pattern string) []string {
	root := filepath.Join("/", p.cfg.HostRoot, devRoot)
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

// deviceNodes are the nodes of each GPU and MIG device. A GPU in MIG mode has those
// of all its parts: with its own alone a container could do nothing with it. What
// could not be read is left out, as its minor number may be another GPU's.
func deviceNodes(snap gpu.Snapshot, minors map[string]int) map[gpu.UUID][]string {
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

// migMinors reads the minor numbers of MIG's capabilities by their names
// ("gpu0/gi1/access"). Without such a file no GPU can do MIG.
func (p *Plugin) migMinors() map[string]int {
	minors := map[string]int{}
	for _, root := range []string{p.root, "/"} {
		data, err := os.ReadFile(filepath.Join("/", p.cfg.HostRoot, root, "proc/driver/nvidia-caps/mig-minors"))
		if err != nil || len(data) > maxProc {
			continue
		}
		for lines := bufio.NewScanner(strings.NewReader(string(data))); lines.Scan(); {
			name, number, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
			if n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 20); err == nil { // minors have 20 bits
				minors[name] = int(n)
			}
		}
		return minors
	}
	return minors
}

func on(b *bool) bool { return b != nil && *b }
