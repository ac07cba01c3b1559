package driver

import "unsafe"

// Host is pinned (page-locked) memory of the host. A device's copy engines reach it
// directly.
type Host struct {
	Size uint64 // bytes

	device *Device
	p      unsafe.Pointer
}

// AllocHost allocates pinned memory of the host.
func (d *Device) AllocHost(size uint64) (*Host, error) {
	h := &Host{Size: size, device: d}
	if err := d.check("cuMemAllocHost", d.driver.memAllocHost(&h.p, size)); err != nil {
		return nil, err
	}
	return h, nil
}

// Bytes returns the memory itself, which is valid until Free.
func (h *Host) Bytes() []byte { return unsafe.Slice((*byte)(h.p), h.Size) }

// Free frees the memory.
func (h *Host) Free() error { return h.device.check("cuMemFreeHost", h.device.driver.memFreeHost(h.p)) }

// CopyToDeviceAsync starts a copy of the first n bytes to the start of a device's memory. Both must stay as
// they are until the stream has finished it; nil is the default stream.
func CopyToDeviceAsync(to *Memory, from *Host, n uint64, s *Stream) error {
	if err := fit(n, to.Size, from.Size); err != nil {
		return err
	}
	return to.device.check("cuMemcpyHtoDAsync", to.device.driver.copyToDeviceAsync(to.Address, from.p, n, s.id()))
}

// CopyToHostAsync starts a copy of the first n bytes of a device's memory to the start of pinned memory. It
// is otherwise like CopyToDeviceAsync.
func CopyToHostAsync(to *Host, from *Memory, n uint64, s *Stream) error {
	if err := fit(n, to.Size, from.Size); err != nil {
		return err
	}
	return to.device.check("cuMemcpyDtoHAsync", to.device.driver.copyToHostAsync(to.p, from.Address, n, s.id()))
}
