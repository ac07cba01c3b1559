package driver

import (
	"fmt"
	"unsafe"
)

// Memory is memory of a device.
type Memory struct {
	Address uint64
	Size    uint64 // bytes

	device *Device
}

// Number is an element type of Write and Read.
type Number interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// MemoryInfo returns the free and total bytes of the current device's memory.
func (d *Device) MemoryInfo() (free, total uint64, err error) {
	err = d.check("cuMemGetInfo", d.driver.memGetInfo(&free, &total))
	return free, total, err
}

// Alloc allocates memory of the device. Its address is a multiple of 256.
func (d *Device) Alloc(size uint64) (*Memory, error) {
	m := &Memory{Size: size, device: d}
	if err := d.check(fmt.Sprintf("cuMemAlloc of %d bytes", size), d.driver.memAlloc(&m.Address, size)); err != nil {
		return nil, err
	}
	return m, nil
}

// Free frees the memory.
func (m *Memory) Free() error { return m.device.check("cuMemFree", m.device.driver.memFree(m.Address)) }

// SetBytes fills n bytes from the offset with a value.
func (m *Memory) SetBytes(offset uint64, value uint8, n uint64) error {
	if err := m.fits(offset, n); err != nil {
		return err
	}
	return m.device.check("cuMemsetD8", m.device.driver.setBytes(m.Address+offset, value, n))
}

// SetWords fills n words of 32 bits from the offset, a multiple of 4, with a value.
func (m *Memory) SetWords(offset uint64, value uint32, n uint64) error {
	if err := m.fits(offset, 4*n); err != nil {
		return err
	}
	return m.device.check("cuMemsetD32", m.device.driver.setWords(m.Address+offset, value, n))
}

// Write copies numbers from the host to the offset, and waits for the copy.
func Write[T Number](m *Memory, offset uint64, from []T) error {
	size := uint64(len(from)) * uint64(unsafe.Sizeof(*new(T)))
	if err := m.fits(offset, size); err != nil {
		return err
	}
	return m.device.check("cuMemcpyHtoD", m.device.driver.copyToDevice(m.Address+offset, unsafe.Pointer(unsafe.SliceData(from)), size))
}

// Read copies numbers from the offset to the host, and waits for the copy.
func Read[T Number](to []T, m *Memory, offset uint64) error {
	size := uint64(len(to)) * uint64(unsafe.Sizeof(*new(T)))
	if err := m.fits(offset, size); err != nil {
		return err
	}
	return m.device.check("cuMemcpyDtoH", m.device.driver.copyToHost(unsafe.Pointer(unsafe.SliceData(to)), m.Address+offset, size))
}

// CopyAsync starts a copy of n bytes within a device, from the start of one memory
// to that of the other.
func CopyAsync(to, from *Memory, n uint64, s *Stream) error {
	if err := fit(n, to.Size, from.Size); err != nil {
		return err
	}
	return to.device.check("cuMemcpyDtoDAsync", to.device.driver.copyAsync(to.Address, from.Address, n, s.id()))
}

// CopyPeerAsync starts a copy of n bytes between two devices in use. The stream belongs
// to the current device. The copy goes directly where EnableAccess succeeded, else
// through the host's memory.
func CopyPeerAsync(to, from *Memory, n uint64, s *Stream) error {
	if err := fit(n, to.Size, from.Size); err != nil {
		return err
	}
	return to.device.check("cuMemcpyPeerAsync",
		to.device.driver.copyPeerAsync(to.Address, to.device.context, from.Address, from.device.context, n, s.id()))
}

func (m *Memory) fits(offset, n uint64) error {
	if offset > m.Size || n > m.Size-offset {
		return fmt.Errorf("%d bytes at offset %d of memory of %d", n, offset, m.Size)
	}
	return nil
}

func fit(n uint64, sizes ...uint64) error {
	for _, size := range sizes {
		if n > size {
			return fmt.Errorf("%d bytes of memory of %d", n, size)
		}
	}
	return nil
}
