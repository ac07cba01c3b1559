package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
)

// allocatable returns how many devices of each resource the kubelet can allocate, nil if the check of
// the device plugin does not say so.
func (f Facts) allocatable() map[string]int {
	for _, o := range f.Outcomes {
		if o.Layer == readiness.Plugin {
			return o.Allocatable
		}
	}
	return nil
}

// writeAllocatable writes the numbers of the kubelet's allocatable devices into the Node's status, for
// resources of which the status has none or 0, and raises capacity to match. The kubelet writes the same with its next status, up
// to ten seconds later, and until then no pod would be scheduled. A number above 0 is never changed:
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
		if current := node.Status.Allocatable[corev1.ResourceName(name)]; devices <= 0 || current.Sign() > 0 {
			continue
		}
		allocatable[name] = strconv.Itoa(devices)
		if current := node.Status.Capacity[corev1.ResourceName(name)]; current.Value() < int64(devices) {
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
		p.Log.Info("wrote the allocatable devices into the Node's status, ahead of the kubelet", "resources", fmt.Sprint(allocatable))
	}
	p.reported = want
	return nil
}
