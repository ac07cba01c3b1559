package plugin

import (
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// sharing describes how claims share a GPU or MIG device.
type sharing struct {
	nodestate.Sharing
	unserved nodestate.Condition // why no MPS control daemon serves it; zero: one does, or none is needed
}

// claimShares returns how claims share the GPUs and MIG devices: as often as the configuration would
// advertise each to the kubelet. Names of resources do not matter to claims. While gpu-dra-driver has not
// released all devices to the device plugin, claims for shares are still prepared.
func (s state) claimShares(at time.Time) (map[gpu.UUID]sharing, allocate.Unallocatable) {
	strategy, _ := s.settings.Sharing.Active()
	offered := s.serve.Current == nodestate.ServeDRA
	if !offered && len(s.withheld) == 0 || strategy == "none" {
		return nil, nil
	}
	resources := plan.Compute(s.settings, s.snapshot, s.health).Resources
	var unserved allocate.Unallocatable
	if offered { // otherwise the fault is that of the kubelet's device
		unserved = s.unserved.MarkUnserved(resources, allocate.Node{Config: s.settings, MPS: s.mps}, at)
	}
	shares := map[gpu.UUID]sharing{}
	for _, r := range resources {
		for d := range r.Parts() {
			if d.Replicas == 0 {
				continue
			}
			one := sharing{Sharing: nodestate.Sharing{Shares: d.Replicas}}
			if strategy == config.SharingMPS {
				one.MPS = r.Name
			}
			if d.Fault.Reason == allocate.ReasonMPS {
				one.unserved = nodestate.Condition{Health: nodestate.Unhealthy, Reason: d.Fault.Reason, Message: d.Fault.Message, Action: d.Fault.NextAction(d.UUID()), Since: d.Since.UTC()}
			}
			shares[d.UUID()] = one
		}
	}
	return shares, unserved
}

// sharing returns how claims share a GPU or MIG device; nil: they do not.
func (s state) sharing(id gpu.UUID) *nodestate.Sharing {
	if one, shared := s.shares[id]; shared {
		return &one.Sharing
	}
	return nil
}

// condition returns the health of a GPU or MIG device.
func (s state) condition(id gpu.UUID) nodestate.Condition {
	fault, since := s.health.Verdict(id)
	if unserved := s.shares[id].unserved; fault.Reason == "" && unserved.Reason != "" {
		return unserved
	}
	return conditionOf(id, fault, since)
}

// conditionOf returns the health of a GPU or a part of it with a fault; the zero Fault: healthy.
func conditionOf(id gpu.UUID, fault gpu.Fault, since time.Time) nodestate.Condition {
	if fault.Reason == "" {
		return nodestate.Condition{Health: nodestate.Healthy}
	}
	return nodestate.Condition{Health: nodestate.Unhealthy, Reason: fault.Reason, Message: fault.Message, Action: fault.NextAction(id), Since: since.UTC()}
}
