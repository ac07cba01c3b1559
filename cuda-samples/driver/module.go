package driver

import (
	"errors"
	"fmt"
	"unsafe"
)

// Module is a set of kernels compiled for a device and loaded on it.
type Module struct {
	device *Device
	handle uintptr
}

// LoadModule compiles PTX for the device and loads it. If that fails, the *Error's Log has the
// compiler's messages.
func (d *Device) LoadModule(ptx string) (*Module, error) {
	const errorLog, errorLogSize = 5, 6 // CU_JIT_ERROR_LOG_BUFFER and its _SIZE_BYTES
	image := append([]byte(ptx), 0)     // a C string
	log := make([]byte, 8192)
	options := []int32{errorLog, errorLogSize}
	values := []uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}
	// The driver writes to log. Go does not see that values has its address: keep log in place.
	pin := pinned(&log[0])
	defer pin.Unpin()
	m := &Module{device: d}
	err := d.check(compileCall, d.driver.moduleLoad(&m.handle, &image[0], uint32(len(options)), &options[0], &values[0]))
	if e, ok := errors.AsType[*Error](err); ok {
		e.Log = text(log)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close unloads the module.
func (m *Module) Close() error {
	return m.device.check("cuModuleUnload", m.device.driver.moduleUnload(m.handle))
}

// Kernel returns the kernel with a name, one of the module's functions.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k := &Kernel{device: m.device}
	cname := append([]byte(name), 0) // a C string
	if err := m.device.check("cuModuleGetFunction "+name, m.device.driver.moduleGetFunction(&k.handle, m.handle, &cname[0])); err != nil {
		return nil, err
	}
	return k, nil
}

// Kernel is a function that runs on the device.
type Kernel struct {
	device *Device
	handle uintptr
}

// Dim holds a number of blocks or threads in each dimension. 0 counts as 1.
type Dim struct{ X, Y, Z uint32 }

// Shape is the launch configuration of a kernel.
type Shape struct {
	Grid, Block Dim
	Shared      uint32  // bytes of dynamic shared memory for each block
	Stream      *Stream // nil: the default one
}

// ResidentBlocks returns how many blocks of that many threads, without dynamic shared memory,
// a multiprocessor holds at once.
func (k *Kernel) ResidentBlocks(threads int) (int, error) {
	var blocks int32
	err := k.device.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", k.device.driver.occupancy(&blocks, k.handle, int32(threads), 0))
	return int(blocks), err
}

// Launch starts the kernel and does not wait for it. An argument is a *Memory or *Host,
// whose address the kernel receives, or an int32, uint32, int64, uint64 or float32; the
// types must be those of the kernel's parameters.
func (k *Kernel) Launch(s Shape, arguments ...any) error {
	// One more than needed, so that &values[0] exists for a kernel without parameters.
	values := make([]uint64, len(arguments)+1)
	params := make([]unsafe.Pointer, len(arguments)+1)
	for i, argument := range arguments {
		params[i] = unsafe.Pointer(&values[i])
		switch a := argument.(type) {
		case *Memory:
			values[i] = a.Address
		case *Host: // one address for host and device (unified addressing)
			values[i] = uint64(uintptr(a.p))
		case uint64:
			values[i] = a
		case int64:
			*(*int64)(params[i]) = a
		case uint32:
			*(*uint32)(params[i]) = a
		case int32:
			*(*int32)(params[i]) = a
		case float32:
			*(*float32)(params[i]) = a
		default:
			return fmt.Errorf("kernel argument %d has type %T, which is not supported", i, a)
		}
	}
	// The driver reads values through the pointers in params.
	pin := pinned(&values[0], &params[0])
	defer pin.Unpin()
	g, b := s.Grid, s.Block
	return k.device.check("cuLaunchKernel", k.device.driver.launch(k.handle,
		max(g.X, 1), max(g.Y, 1), max(g.Z, 1), max(b.X, 1), max(b.Y, 1), max(b.Z, 1),
		s.Shared, s.Stream.id(), &params[0], 0 /* extra: none */))
}
