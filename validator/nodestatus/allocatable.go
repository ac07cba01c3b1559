package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
)

// allocatable returns the devices that the kubelet can allocate, by resource; nil where
// that is not known or in doubt.
func (f Facts) allocatable() map[string]int {
	for _, o := range f.Outcomes {
		if o.Layer == readiness.Plugin {
			return o.Allocatable
		}
	}
	return nil
}

// writeAllocatable writes the kubelet's allocatable devices into the Node's status, where the
// status has none yet. The kubelet writes the same with its next status, up to ten seconds
// later, and until then no pod would be scheduled. A value in the status is never changed:
// from then on it is the kubelet's.
func (p *Publisher) writeAllocatable(ctx context.Context, want map[string]int) error {
	if len(want) == 0 {
		p.reported = nil
		return nil
	}
	node, err := p.Client.Node(ctx, p.Node)
	if err != nil {
		return fmt.Errorf("read Node %s: %w", p.Node, err)
	}
	capacity, allocatable := map[string]string{}, map[string]string{}
	for name, devices := range want {
		if is := node.Status.Allocatable[corev1.ResourceName(name)]; devices <= 0 || is.Sign() > 0 {
			continue
		}
		allocatable[name] = strconv.Itoa(devices)
		if is := node.Status.Capacity[corev1.ResourceName(name)]; is.Value() < int64(devices) {
			capacity[name] = strconv.Itoa(devices)
		}
	}
	if len(allocatable) > 0 {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": capacity, "allocatable": allocatable}})
		if err != nil {
			return err
		}
		if err := p.Client.PatchNodeStatus(ctx, p.Node, patch); err != nil {
			return fmt.Errorf("set allocatable of Node %s (the kubelet does so within ten seconds): %w", p.Node, err)
		}
		p.Log.Info("wrote the allocatable devices into the Node's status, ahead of the kubelet", "resources", fmt.Sprint(want))
	}
	p.reported = want
	return nil
}
