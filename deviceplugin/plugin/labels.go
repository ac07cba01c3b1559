package plugin

import "github.com/gpuready/gpuready/deviceplugin/labels"

// labelNode returns the inputs of the labels. known reports whether both the driver and
// the settings are known; until then the previous labels stay.
func (p *Plugin) labelNode() (n labels.Node, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = labels.Node{Snapshot: p.snapshot, Health: p.health, Config: p.settings, Plan: p.plan}
	idle := p.absent != nil && p.absent.idle && len(p.health.GPUs()) == 0 // no GPU in this boot
	return n, p.configured() && (p.snapshot.Driver.Version != "" || idle)
}
