// Package plan derives from a node's GPUs, their health and the configuration which
// devices are advertised to the kubelet, under which names, and why some are left out.
// It does no I/O.
package plan

import (
	"strconv"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Device is one device as the kubelet counts them: a GPU, a MIG device, or one
// of several replicas of either.
type Device struct {
	ID       string // UUID of the GPU or MIG device; for a replica followed by "::" and its number
	GPU      gpu.UUID
	Product  string
	PCI      gpu.PCIAddress
	Index    int           // of the GPU
	NUMANode int           // -1: unknown, or the machine has none
	MIG      gpu.MIGDevice // zero: the whole GPU
	Replica  int           // which one of Replicas, from 0
	Replicas int           // 0: the device is not shared
	Fault    gpu.Fault     // why it is unhealthy; zero: it is healthy
	Since    time.Time     // of Fault
}

// Healthy reports whether the device may be allocated.
func (d Device) Healthy() bool { return d.Fault.Reason == "" }

// UUID returns the UUID of the MIG device, or of the GPU if it is a whole one. All
// replicas of a device have the same.
func (d Device) UUID() gpu.UUID {
	if d.MIG.UUID != "" {
		return d.MIG.UUID
	}
	return d.GPU
}

// IndexID returns the index by which the container runtime knows the device: "3", or
// "3:0" for a MIG device.
func (d Device) IndexID() string {
	if d.MIG.UUID != "" {
		return strconv.Itoa(d.Index) + ":" + strconv.Itoa(d.MIG.Index)
	}
	return strconv.Itoa(d.Index)
}

// Devices returns one device for each GPU that was present in this boot. A missing GPU
// stays listed, unhealthy, so that people notice it.
func Devices(s health.State) []Device {
	var devices []Device
	for _, g := range s.GPUs() {
		devices = append(devices, newDevice(part{gpu: g.Device}, s))
	}
	return devices
}
