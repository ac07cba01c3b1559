package plugin

import (
	"context"
	"slices"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// watchToolkit follows the toolkit's state. Devices are handed out by their CDI
// names, which somebody must have written; where the toolkit says that it has
// not, people should know before a pod fails. A node whose toolkit says nothing
// may have its specs from elsewhere.
func (p *Plugin) watchToolkit(ctx context.Context) error {
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Toolkit), p.boot, func(s nodestate.State, err error) {
		why := toolkitTrouble(s, err)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.toolkit == why {
			return
		}
		p.toolkit = why
		if why == "" {
			p.cfg.Log.Info("the toolkit has made the devices' CDI names known")
		} else {
			p.cfg.Log.Warn("containers may not get the GPUs that they are allocated", "reason", string(reasonCDIMissing), "message", why)
		}
		p.write(p.view.Load().devices)
	})
}

// toolkitTrouble says why containers may not get what is allocated, as far as
// the toolkit knows.
func toolkitTrouble(s nodestate.State, err error) string {
	switch {
	case nodestate.IsAbsent(err):
		return ""
	case err != nil:
		return "the toolkit's state cannot be read: " + err.Error()
	case s.Reason == injection.ReasonNoGPU:
		return ""
	case s.Phase == nodestate.Waiting || s.Phase == nodestate.Failed:
		return "the toolkit is not ready: " + string(s.Phase) + ": " + s.Message
	case s.Toolkit == nil:
		return ""
	case !slices.ContainsFunc(s.Toolkit.Specs, func(spec nodestate.Spec) bool { return spec.Kind == cdi.KindGPU }):
		return "the toolkit has written no CDI spec of kind " + cdi.KindGPU + "; see the log of gpu-toolkit"
	case s.Toolkit.Runtime != nil && s.Toolkit.Runtime.Name != "": // of one that is silent nothing is known
		return s.Toolkit.Runtime.Message
	}
	return ""
}
