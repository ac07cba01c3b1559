package driver

import (
	"errors"
	"fmt"
	"strings"
)

// Device is a GPU or MIG device.
type Device struct {
	Name, UUID   string // "NVIDIA H100 80GB HBM3", "GPU-…" or "MIG-…"
	PCI          string // "0000:3b:00.0"; a MIG device's is its GPU's
	Major, Minor int    // compute capability

	driver  *Driver
	ordinal int32
	context uintptr // 0 before Use
}

// Attribute is a CUdevice_attribute (cuda.h).
type Attribute int32

// The attributes that samples ask for.
const (
	SharedMemoryPerBlock     Attribute = 8  // bytes, without opting in for more
	ClockRate                Attribute = 13 // kHz, the highest of the multiprocessors
	Multiprocessors          Attribute = 16
	ECCEnabled               Attribute = 32 // 0 or 1
	MemoryClockRate          Attribute = 36 // kHz, the highest; memory moves data twice a clock
	MemoryBusWidth           Attribute = 37 // bits
	L2CacheSize              Attribute = 38 // bytes
	ThreadsPerMultiprocessor Attribute = 39 // the most that are resident on a multiprocessor
	CapabilityMajor          Attribute = 75
	CapabilityMinor          Attribute = 76
	HostPageTables           Attribute = 100 // 1: the device uses the host's page tables, over NVLink-C2C
)

// device returns the device with an ordinal: its properties, without a context.
func (d *Driver) device(ordinal int32) (*Device, error) {
	device := &Device{driver: d}
	if err := d.check("cuDeviceGet", d.deviceGet(&device.ordinal, ordinal)); err != nil {
		return nil, err
	}
	name, pci := make([]byte, 256), make([]byte, 32)
	if err := d.check("cuDeviceGetName", d.deviceGetName(&name[0], int32(len(name)), device.ordinal)); err != nil {
		return nil, err
	}
	if err := d.check("cuDeviceGetPCIBusId", d.deviceGetPCIBusID(&pci[0], int32(len(pci)), device.ordinal)); err != nil {
		return nil, err
	}
	device.Name, device.PCI = text(name), strings.ToLower(text(pci))
	for attribute, value := range map[Attribute]*int{CapabilityMajor: &device.Major, CapabilityMinor: &device.Minor} {
		var err error
		if *value, err = device.Attribute(attribute); err != nil {
			return nil, err
		}
	}
	return device, device.readUUID()
}

// readUUID sets UUID. Of a MIG device, cuDeviceGetUuid returns its GPU's UUID, and cuDeviceGetUuid_v2 its
// own; only then do they differ. Drivers before CUDA 11.4 have no v2, and say the GPU's.
func (d *Device) readUUID() error {
	var gpuUUID, deviceUUID [16]byte
	if err := d.check("cuDeviceGetUuid", d.driver.deviceGetUUID(&gpuUUID, d.ordinal)); err != nil {
		return err
	}
	deviceUUID = gpuUUID
	if d.driver.deviceGetUUIDv2 != nil {
		if err := d.check("cuDeviceGetUuid_v2", d.driver.deviceGetUUIDv2(&deviceUUID, d.ordinal)); err != nil {
			return err
		}
	}
	prefix := "GPU"
	if deviceUUID != gpuUUID {
		prefix = "MIG"
	}
	d.UUID = fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, deviceUUID[:4], deviceUUID[4:6], deviceUUID[6:8], deviceUUID[8:10], deviceUUID[10:])
	return nil
}

// Capability returns the compute capability as people write it: "9.0".
func (d *Device) Capability() string { return fmt.Sprintf("%d.%d", d.Major, d.Minor) }

// Attribute returns an attribute's value, in the unit that its constant documents.
func (d *Device) Attribute(which Attribute) (int, error) {
	var value int32
	err := d.check("cuDeviceGetAttribute", d.driver.deviceGetAttribute(&value, int32(which), d.ordinal))
	return int(value), err
}

// TotalMemory returns the size of the device's memory in bytes.
func (d *Device) TotalMemory() (uint64, error) {
	var size uint64
	err := d.check("cuDeviceTotalMem", d.driver.deviceTotalMem(&size, d.ordinal))
	return size, err
}

// Use retains the device's primary context and makes it the calling thread's current
// one; release releases it. Several devices may be in use at once, see MakeCurrent.
func (d *Device) Use() (release func() error, err error) {
	if err := d.check("cuDevicePrimaryCtxRetain", d.driver.primaryRetain(&d.context, d.ordinal)); err != nil {
		return nil, err
	}
	release = func() error {
		return d.check("cuDevicePrimaryCtxRelease", d.driver.primaryRelease(d.ordinal))
	}
	if err := d.MakeCurrent(); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// MakeCurrent makes the context of a device in use the calling thread's current one.
func (d *Device) MakeCurrent() error {
	return d.check("cuCtxSetCurrent", d.driver.setCurrent(d.context))
}

// Synchronize waits for all work in the calling thread's current context, which must be the device's (see
// MakeCurrent), and returns the errors of its kernels.
func (d *Device) Synchronize() error { return d.check("cuCtxSynchronize", d.driver.synchronize()) }

// CanAccess reports whether the device can reach the memory of another directly.
// Otherwise copies between them go through the host's memory.
func (d *Device) CanAccess(peer *Device) (bool, error) {
	var can int32
	err := d.check("cuDeviceCanAccessPeer", d.driver.canAccessPeer(&can, d.ordinal, peer.ordinal))
	return can != 0, err
}

// EnableAccess lets the device reach the peer's memory directly. Both must be in use,
// and the device's context current. Enabling access twice is no error.
func (d *Device) EnableAccess(peer *Device) error {
	const already = 704 // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	code := d.driver.enablePeer(peer.context, 0)
	if code == already {
		return nil
	}
	return d.check("cuCtxEnablePeerAccess", code)
}

func (d *Device) check(call string, code int32) error { return d.driver.check(call, code) }
