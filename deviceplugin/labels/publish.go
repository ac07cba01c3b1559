package labels

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Publisher is what the node says about its GPUs: labels, for one publisher. They are
// made where the state is written: no allocation and no device list waits for them.
// It is used by one goroutine.
type Publisher struct {
	HostRoot string
	NFDDir   string    // of the host, for the feature file; "": there is another publisher
	Started  time.Time // of the process
	Log      *slog.Logger
	Labels   map[string]string // nil: not known yet in this boot

	host  Host
	of    string            // what host was read for
	filed map[string]string // what the feature file says; nil: not written by this process
	err   string            // why not
}

// Publish makes the labels anew where the node is known, and returns those for
// another publisher; nil where the feature file has them.
func (p *Publisher) Publish(n Node, known bool) map[string]string {
	if known {
		n.Host = p.read(n.Config, n.Snapshot)
		n.Host.Start = p.Started
		p.Labels = For(n)
	}
	if p.NFDDir == "" {
		return p.Labels
	}
	p.file()
	return nil
}

// file writes the feature file where it is to say something else.
func (p *Publisher) file() {
	if p.Labels == nil || p.filed != nil && maps.Equal(p.Labels, p.filed) {
		return
	}
	dir := filepath.Join("/", p.HostRoot, p.NFDDir)
	if err := Write(dir, p.Labels); err != nil {
		if p.err != err.Error() {
			p.err = err.Error()
			p.Log.Error("the GPUs' labels cannot be left for Node Feature Discovery; let this process write to the folder", "path", dir, "message", p.err)
		}
		return
	}
	p.filed, p.err = p.Labels, ""
	p.Log.Info("wrote the feature file", "path", filepath.Join(dir, FileName), "labels", len(p.Labels))
}

// read reads what the machine tells of itself, once for the same GPUs.
func (p *Publisher) read(c *config.Config, s gpu.Snapshot) Host {
	of := ""
	if file := c.Flags.GFD.MachineTypeFile; file != nil {
		of = "file " + *file
	}
	for _, d := range s.Devices {
		of += fmt.Sprintf(" %s", d.PCI)
	}
	if of == p.of {
		return p.host
	}
	r, err := host.Open(filepath.Join("/", p.HostRoot))
	if err != nil {
		return Host{} // labels without what only it tells
	}
	defer func() { _ = r.Close() }()
	p.host, p.of = ReadHost(r, c, s), of
	return p.host
}
