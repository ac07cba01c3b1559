package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// Device is a GPU or MIG device, and work on it.
type Device struct {
	Name, UUID string // "NVIDIA H100 80GB HBM3", "GPU-…" or "MIG-…"
	Capability string // "9.0"

	driver  *Driver
	ordinal int32
}

func (d *Driver) device(ordinal int32) (*Device, error) {
	device := &Device{driver: d}
	if err := d.check("cuDeviceGet", d.deviceGet(&device.ordinal, ordinal)); err != nil {
		return nil, err
	}
	name := make([]byte, 256)
	if err := d.check("cuDeviceGetName", d.deviceGetName(&name[0], int32(len(name)), device.ordinal)); err != nil {
		return nil, err
	}
	var whole, own [16]byte
	if err := d.check("cuDeviceGetUuid", d.deviceGetUUID(&whole, device.ordinal)); err != nil {
		return nil, err
	}
	own = whole
	if d.deviceGetUUIDOwn != nil {
		if err := d.check("cuDeviceGetUuid_v2", d.deviceGetUUIDOwn(&own, device.ordinal)); err != nil {
			return nil, err
		}
	}
	prefix := "GPU"
	if own != whole {
		prefix = "MIG"
	}
	var major, minor int32
	for attribute, value := range map[int32]*int32{75: &major, 76: &minor} {
		if err := d.check("cuDeviceGetAttribute", d.deviceGetAttribute(value, attribute, device.ordinal)); err != nil {
			return nil, err
		}
	}
	device.Name = text(name)
	device.UUID = fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, own[:4], own[4:6], own[6:8], own[8:10], own[10:])
	device.Capability = fmt.Sprintf("%d.%d", major, minor)
	return device, nil
}

// Use makes the device's primary context the calling thread's; the function
// returned gives it back.
func (d *Device) Use() (release func() error, err error) {
	var context uintptr
	if err := d.check("cuDevicePrimaryCtxRetain", d.driver.primaryRetain(&context, d.ordinal)); err != nil {
		return nil, err
	}
	release = func() error {
		return d.check("cuDevicePrimaryCtxRelease", d.driver.primaryRelease(d.ordinal))
	}
	if err := d.check("cuCtxSetCurrent", d.driver.setCurrent(context)); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// Load compiles PTX for the device.
func (d *Device) Load(ptx string) (*Module, error) {
	const errorLog, errorLogSize = 5, 6 // CUjit_option
	image := append([]byte(ptx), 0)
	log := make([]byte, 8192)
	options := []int32{errorLog, errorLogSize}
	values := []uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}
	pin := pinned(&log[0])
	defer pin.Unpin()
	m := &Module{device: d}
	err := d.check("cuModuleLoadDataEx", d.driver.moduleLoad(&m.handle, &image[0], uint32(len(options)), &options[0], &values[0]))
	if e, ok := errors.AsType[*Error](err); ok {
		e.Log = text(log)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Synchronize waits for all work; what a kernel did wrong shows here.
func (d *Device) Synchronize() error { return d.check("cuCtxSynchronize", d.driver.synchronize()) }

func (d *Device) check(call string, code int32) error { return d.driver.check(call, code) }

// Module is compiled code.
type Module struct {
	device *Device
	handle uintptr
}

// Close unloads the code.
func (m *Module) Close() error {
	return m.device.check("cuModuleUnload", m.device.driver.moduleUnload(m.handle))
}

// Kernel finds a function by its name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k := &Kernel{device: m.device}
	cname := append([]byte(name), 0)
	if err := m.device.check("cuModuleGetFunction "+name, m.device.driver.moduleGetFunction(&k.handle, m.handle, &cname[0])); err != nil {
		return nil, err
	}
	return k, nil
}

// Kernel is a function of a module.
type Kernel struct {
	device *Device
	handle uintptr
}

// Launch starts blocks × threads of the kernel. Each argument is a pointer to
// what the kernel receives: *uint64 for a device address, *int32 for an int.
func (k *Kernel) Launch(blocks, threads uint32, arguments ...any) error {
	pin := pinned(arguments...)
	defer pin.Unpin()
	params := make([]unsafe.Pointer, len(arguments))
	for i, a := range arguments {
		switch a := a.(type) {
		case *uint64:
			params[i] = unsafe.Pointer(a)
		case *int32:
			params[i] = unsafe.Pointer(a)
		case *float32:
			params[i] = unsafe.Pointer(a)
		default:
			return fmt.Errorf("kernel argument %d is a %T", i, a)
		}
	}
	pin.Pin(&params[0])
	return k.device.check("cuLaunchKernel", k.device.driver.launch(k.handle, blocks, 1, 1, threads, 1, 1, 0, 0, &params[0], 0))
}

// Memory is device memory of n float32.
type Memory struct {
	Address uint64
	device  *Device
	n       int
}

// Alloc takes memory for n float32.
func (d *Device) Alloc(n int) (*Memory, error) {
	m := &Memory{device: d, n: n}
	if err := d.check("cuMemAlloc", d.driver.memAlloc(&m.Address, uint64(n)*4)); err != nil {
		return nil, err
	}
	return m, nil
}

// Write copies from the host; there must be as many numbers as were asked for.
func (m *Memory) Write(from []float32) error {
	if len(from) != m.n {
		return fmt.Errorf("%d numbers for memory of %d", len(from), m.n)
	}
	return m.device.check("cuMemcpyHtoD", m.device.driver.copyToDevice(m.Address, unsafe.Pointer(unsafe.SliceData(from)), uint64(m.n)*4))
}

// Read copies to the host.
func (m *Memory) Read(to []float32) error {
	if len(to) != m.n {
		return fmt.Errorf("%d numbers for memory of %d", len(to), m.n)
	}
	return m.device.check("cuMemcpyDtoH", m.device.driver.copyToHost(unsafe.Pointer(unsafe.SliceData(to)), m.Address, uint64(m.n)*4))
}

// Free gives the memory back.
func (m *Memory) Free() error { return m.device.check("cuMemFree", m.device.driver.memFree(m.Address)) }
