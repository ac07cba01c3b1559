package plugin

import (
	"fmt"
	"maps"
	"path/filepath"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/labels"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// features are what the node says about its GPUs: labels, for one publisher. They are
// made where the state is written: no allocation and no device list waits for them.
// Who writes states owns it, but for what it takes from the Plugin.
type features struct {
	labels map[string]string // nil: not known yet in this boot
	host   labels.Host
	of     string            // what host was read for
	filed  map[string]string // what the feature file says; nil: not written by this process
	err    string            // why not
}

// node is what labels are made of now. known says that a driver has told, and how it
// is configured; until then the labels are those that were.
func (p *Plugin) node() (n labels.Node, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = labels.Node{Snapshot: p.snapshot, Health: p.health, Config: p.settings, Plan: p.plan}
	idle := p.absent != nil && p.absent.idle && len(p.health.GPUs()) == 0 // there never was one
	return n, p.chosen() && (p.snapshot.Driver.Version != "" || idle)
}

// label makes the labels anew and returns those for the state; nil where the feature
// file has them.
func (p *Plugin) label() map[string]string {
	if n, known := p.node(); known {
		n.Host = p.features.read(p.cfg.HostRoot, n.Config, n.Snapshot)
		n.Host.Start = p.cfg.Started
		p.features.labels = labels.For(n)
	}
	if p.cfg.NFDDir == "" {
		return p.features.labels
	}
	p.file()
	return nil
}

// file writes the feature file where it is to say something else.
func (p *Plugin) file() {
	f := &p.features
	if f.labels == nil || f.filed != nil && maps.Equal(f.labels, f.filed) {
		return
	}
	dir := filepath.Join("/", p.cfg.HostRoot, p.cfg.NFDDir)
	if err := labels.Write(dir, f.labels); err != nil {
		if f.err != err.Error() {
			f.err = err.Error()
			p.cfg.Log.Error("the GPUs' labels cannot be left for Node Feature Discovery; let this process write to the folder", "path", dir, "message", f.err)
		}
		return
	}
	f.filed, f.err = f.labels, ""
	p.cfg.Log.Info("wrote the feature file", "path", filepath.Join(dir, labels.FileName), "labels", len(f.labels))
}

// read reads what the machine tells of itself, once for the same GPUs.
func (f *features) read(root string, c *config.Config, s gpu.Snapshot) labels.Host {
	of := ""
	if file := c.Flags.GFD.MachineTypeFile; file != nil {
		of = "file " + *file
	}
	for _, d := range s.Devices {
		of += fmt.Sprintf(" %s", d.PCI)
	}
	if of == f.of {
		return f.host
	}
	r, err := host.Open(filepath.Join("/", root))
	if err != nil {
		return labels.Host{} // labels without what only it tells
	}
	defer func() { _ = r.Close() }()
	f.host, f.of = labels.ReadHost(r, c, s), of
	return f.host
}
