package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
)

// clientsBeforeVolta is the maximum number of MPS clients of a GPU before Volta (CUDA
// Multi-Process Service, "Client-Server Connection Limits"). Later GPUs have the limit
// that the configuration enforces.
const clientsBeforeVolta = 16

// addResources adds the resources with their devices, sorted. A shared part becomes several
// devices.
func (p *Plan) addResources(sharing config.Sharing, groups []resourceGroup, h health.State) {
	devices := map[string][]Device{}
	strategy, replicated := sharing.Active()
	for _, g := range groups {
		for n, one := range g.parts {
			i := slices.IndexFunc(replicated.Resources, func(r config.ReplicatedResource) bool {
				return r.Name == g.name && isReplicated(r.Devices, one, n)
			})
			if i < 0 {
				devices[g.name] = append(devices[g.name], newDevice(one, h))
				continue
			}
			r := replicated.Resources[i]
			if why := mpsObstacle(strategy, r, one); why != "" {
				p.LeftOut = append(p.LeftOut, one.leftOut(ReasonMPS, "%s", why))
				continue
			}
			name := cmp.Or(r.Rename, r.Name)
			if devices[name] == nil {
				devices[name] = make([]Device, 0, r.Replicas*(len(g.parts)-n)) // usually the final size
			}
			devices[name] = appendReplicas(devices[name], newDevice(one, h), r.Replicas)
		}
	}
	for name, list := range devices {
		if len(list) > config.MaxDevices {
			p.dropTooLong(name, list)
			continue
		}
		slices.SortFunc(list, func(a, b Device) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.MIG.Index, b.MIG.Index), cmp.Compare(a.Replica, b.Replica))
		})
		p.Resources = append(p.Resources, Resource{Name: name, Devices: list})
	}
	slices.SortFunc(p.Resources, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
}

// dropTooLong leaves out the devices of a list that the kubelet would refuse.
func (p *Plan) dropTooLong(name string, list []Device) {
	for _, d := range list {
		if d.Replica > 0 {
			continue
		}
		p.LeftOut = append(p.LeftOut, LeftOut{
			GPU: d.GPU, PCI: d.PCI, Index: d.Index, Product: d.Product, MIG: d.MIG, Reason: ReasonTooMany,
			Message: fmt.Sprintf("%s would have %d devices, but the kubelet refuses a list of more than %d; write fewer replicas", name, len(list), config.MaxDevices),
		})
	}
}

// isReplicated reports whether the n-th device of a resource is to be shared.
func isReplicated(d config.Replicable, one part, n int) bool {
	switch {
	case d.Count > 0:
		return n < d.Count
	case d.List == nil:
		return true
	}
	whole := Device{GPU: one.gpu.UUID, Index: one.gpu.Index, MIG: one.mig}
	return slices.Contains(d.List, string(whole.UUID())) || slices.Contains(d.List, whole.IndexID())
}

// mpsObstacle returns why MPS cannot share a part, or "" if it can or need not.
func mpsObstacle(strategy string, r config.ReplicatedResource, one part) string {
	compute := one.gpu.Compute
	switch {
	case strategy != config.SharingMPS:
	case one.isMIG():
		return "MPS cannot share MIG devices; use timeSlicing, or take its resource out of sharing.mps"
	case compute != (gpu.Compute{}) && compute.Major < 7 && r.Replicas > clientsBeforeVolta:
		return "MPS supports no more than " + strconv.Itoa(clientsBeforeVolta) + " clients on a GPU before Volta; write fewer replicas"
	}
	return ""
}

// appendReplicas adds n replicas of a device. Their IDs have the form of NVIDIA's device plugin:
// the device's ID, "::" and a number.
func appendReplicas(all []Device, d Device, n int) []Device {
	id := d.ID
	for i := range n {
		d.ID, d.Replica, d.Replicas = id+"::"+strconv.Itoa(i), i, n
		all = append(all, d)
	}
	return all
}

// newDevice returns the device of a part, with its health.
func newDevice(one part, h health.State) Device {
	d := Device{
		GPU:      one.gpu.UUID,
		Product:  one.gpu.Product,
		PCI:      one.gpu.PCI,
		Index:    one.gpu.Index,
		NUMANode: one.gpu.NUMANode,
		MIG:      one.mig,
	}
	d.ID = string(d.UUID())
	d.Fault, d.Since = h.Verdict(d.UUID())
	return d
}
