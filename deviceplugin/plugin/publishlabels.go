package plugin

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// labelPublisher computes the node's labels and writes them to Node Feature Discovery's
// feature file. Without its folder, gpu-validator publishes them: they then go into the
// state file. It runs when the state is written, so that no allocation and no device list
// waits for it. It is for use by one goroutine.
type labelPublisher struct {
	HostRoot string
	NFDDir   string    // host path of the folder of the feature file; "": gpu-validator publishes the labels
	Started  time.Time // of the process
	Log      *slog.Logger
	Labels   map[string]string // the current ones; nil: not known yet in this boot

	machine    plan.Machine
	machineKey string            // identifies the inputs for which machine was read
	written    map[string]string // content of the feature file; nil: not written by this process
	err        string            // last error of writing it
}

// Publish updates the labels, unless the node is not known yet. It returns the labels for the
// state file, or nil if they are in the feature file.
func (p *labelPublisher) Publish(n plan.LabelInput, known bool) map[string]string {
	if known {
		n.Machine = p.readMachine(n.Config, n.Snapshot)
		n.Machine.Started = p.Started
		p.Labels = plan.Labels(n)
	}
	if p.NFDDir == "" {
		return p.Labels
	}
	p.writeFile()
	return nil
}

// writeFile writes the feature file if its content changed.
func (p *labelPublisher) writeFile() {
	if p.Labels == nil || p.written != nil && maps.Equal(p.Labels, p.written) {
		return
	}
	dir := filepath.Join("/", p.HostRoot, p.NFDDir)
	if err := writeFeatureFile(dir, p.Labels); err != nil {
		if p.err != err.Error() {
			p.err = err.Error()
			p.Log.Error("the feature file for Node Feature Discovery cannot be written; make the folder writable for this process", "path", dir, "message", p.err)
		}
		return
	}
	p.written, p.err = p.Labels, ""
	p.Log.Info("wrote the feature file", "path", filepath.Join(dir, FeatureFile), "labels", len(p.Labels))
}

// readMachine reads the data of the machine, such as its type. It reads them again only when
// the GPUs change.
func (p *labelPublisher) readMachine(c *config.Config, s gpu.Snapshot) plan.Machine {
	key := ""
	if file := c.Flags.GFD.MachineTypeFile; file != nil {
		key = "file " + *file
	}
	for _, d := range s.Devices {
		key += fmt.Sprintf(" %s", d.PCI)
	}
	if key == p.machineKey {
		return p.machine
	}
	r, err := host.Open(filepath.Join("/", p.HostRoot))
	if err != nil {
		return plan.Machine{} // labels without the machine's data
	}
	defer func() { _ = r.Close() }()
	p.machine, p.machineKey = plan.ReadMachine(r, c, s), key
	return p.machine
}
