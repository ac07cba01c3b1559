package plugin

import "github.com/gpuready/gpuready/deviceplugin/labels"

// node is what labels are made of now. known says that a driver has told, and how it
// is configured; until then the labels are those that were.
func (p *Plugin) node() (n labels.Node, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = labels.Node{Snapshot: p.snapshot, Health: p.health, Config: p.settings, Plan: p.plan}
	idle := p.absent != nil && p.absent.idle && len(p.health.GPUs()) == 0 // there never was one
	return n, p.chosen() && (p.snapshot.Driver.Version != "" || idle)
}
