// Package plan says what follows from a node's GPUs and their health: which
// devices the kubelet is told of. It is pure.
package plan

import (
	"time"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Device is one device as the kubelet counts them.
type Device struct {
	ID       string // the GPU's UUID
	GPU      gpu.UUID
	Product  string
	PCI      gpu.PCIAddress
	Index    int
	NUMANode int       // -1: unknown, or the machine has none
	Fault    gpu.Fault // why it is unhealthy; zero: it is healthy
	Since    time.Time // of Fault
}

// Healthy says that the device may be given away.
func (d Device) Healthy() bool { return d.Fault.Reason == "" }

// Devices returns the devices of a node: one for each GPU that was there in
// this boot. One that is gone stays listed, unhealthy, so that people see it.
func Devices(s health.State) []Device {
	var devices []Device
	for _, g := range s.GPUs() {
		fault, since := s.Verdict(g.Device.UUID)
		devices = append(devices, Device{
			ID:       string(g.Device.UUID),
			GPU:      g.Device.UUID,
			Product:  g.Device.Product,
			PCI:      g.Device.PCI,
			Index:    g.Device.Index,
			NUMANode: g.Device.NUMANode,
			Fault:    fault,
			Since:    since,
		})
	}
	return devices
}
