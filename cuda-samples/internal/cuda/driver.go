// Package cuda is the part of the CUDA driver API that the samples use, without
// cgo: libcuda is opened by its soname when the program runs, as libcuda itself
// expects (by an absolute path it would not find its PTX compiler).
//
// A context belongs to the thread that makes it current: callers lock their
// goroutine to its thread before they use a Device.
package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is the name by which the dynamic loader knows the driver.
const Library = "libcuda.so.1"

// ErrNoLibrary is in the errors of Open where the driver's library is missing.
var ErrNoLibrary = errors.New("no CUDA driver library")

// Driver is libcuda, initialised.
type Driver struct {
	simulated bool

	init               func(flags uint32) int32
	driverGetVersion   func(version *int32) int32
	getErrorName       func(code int32, name **byte) int32
	deviceGetCount     func(count *int32) int32
	deviceGet          func(device *int32, ordinal int32) int32
	deviceGetName      func(name *byte, size, device int32) int32
	deviceGetUUID      func(uuid *[16]byte, device int32) int32
	deviceGetUUIDOwn   func(uuid *[16]byte, device int32) int32
	deviceGetAttribute func(value *int32, attribute, device int32) int32
	primaryRetain      func(context *uintptr, device int32) int32
	primaryRelease     func(device int32) int32
	setCurrent         func(context uintptr) int32
	synchronize        func() int32
	memAlloc           func(address *uint64, size uint64) int32
	memFree            func(address uint64) int32
	copyToDevice       func(to uint64, from unsafe.Pointer, size uint64) int32
	copyToHost         func(to unsafe.Pointer, from, size uint64) int32
	moduleLoad         func(module *uintptr, image *byte, n uint32, options *int32, values *uintptr) int32
	moduleUnload       func(module uintptr) int32
	moduleGetFunction  func(function *uintptr, module uintptr, name *byte) int32
	launch             func(function uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params *unsafe.Pointer, extra uintptr) int32
}

// Open loads and initialises the driver.
func Open() (*Driver, error) {
	handle, err := purego.Dlopen(Library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; is a driver installed on the host, and is the container given a GPU?", ErrNoLibrary, err)
	}
	d := new(Driver)
	if err := d.bind(handle); err != nil {
		return nil, err
	}
	if _, err := purego.Dlsym(handle, "gpusim_simulated"); err == nil {
		d.simulated = true
	}
	err = d.check("cuInit", d.init(0))
	if failed, ok := errors.AsType[*Error](err); ok {
		failed.Refused = refusedNodes()
	}
	return d, err
}

// bind looks up every function first: a missing one is an error, not a panic.
func (d *Driver) bind(handle uintptr) error {
	for _, f := range []struct {
		name string
		fn   any
	}{
		{"cuInit", &d.init}, {"cuDriverGetVersion", &d.driverGetVersion},
		{"cuGetErrorName", &d.getErrorName}, {"cuDeviceGetCount", &d.deviceGetCount},
		{"cuDeviceGet", &d.deviceGet}, {"cuDeviceGetName", &d.deviceGetName},
		{"cuDeviceGetUuid", &d.deviceGetUUID}, {"cuDeviceGetAttribute", &d.deviceGetAttribute},
		{"cuDevicePrimaryCtxRetain", &d.primaryRetain}, {"cuDevicePrimaryCtxRelease_v2", &d.primaryRelease},
		{"cuCtxSetCurrent", &d.setCurrent}, {"cuCtxSynchronize", &d.synchronize},
		{"cuMemAlloc_v2", &d.memAlloc}, {"cuMemFree_v2", &d.memFree},
		{"cuMemcpyHtoD_v2", &d.copyToDevice}, {"cuMemcpyDtoH_v2", &d.copyToHost},
		{"cuModuleLoadDataEx", &d.moduleLoad}, {"cuModuleUnload", &d.moduleUnload},
		{"cuModuleGetFunction", &d.moduleGetFunction}, {"cuLaunchKernel", &d.launch},
	} {
		symbol, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return fmt.Errorf("%s has no %s: is it a CUDA driver of 11.0 or newer?", Library, f.name)
		}
		purego.RegisterFunc(f.fn, symbol)
	}
	// Since CUDA 11.4; before, MIG devices went by the UUID of their GPU.
	if symbol, err := purego.Dlsym(handle, "cuDeviceGetUuid_v2"); err == nil {
		purego.RegisterFunc(&d.deviceGetUUIDOwn, symbol)
	}
	return nil
}

// Simulated tells whether there is no GPU behind this driver.
func (d *Driver) Simulated() bool { return d.simulated }

// Version is the newest CUDA that the driver serves: "13.0".
func (d *Driver) Version() (string, error) {
	var v int32
	if err := d.check("cuDriverGetVersion", d.driverGetVersion(&v)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10), nil
}

// Devices lists what CUDA_VISIBLE_DEVICES leaves, in its order.
func (d *Driver) Devices() ([]*Device, error) {
	var n int32
	if err := d.check("cuDeviceGetCount", d.deviceGetCount(&n)); err != nil {
		return nil, err
	}
	devices := make([]*Device, 0, n)
	for i := range n {
		device, err := d.device(i)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// Find returns the device of an index or a UUID; "" is the first one.
func (d *Driver) Find(spec string) (*Device, error) {
	devices, err := d.Devices()
	if err != nil {
		return nil, err
	}
	if spec == "" {
		spec = "0"
	}
	var known []string
	for i, device := range devices {
		if spec == strconv.Itoa(i) || strings.EqualFold(spec, device.UUID) {
			return device, nil
		}
		known = append(known, fmt.Sprintf("%d (%s)", i, device.UUID))
	}
	return nil, fmt.Errorf("device %q is not visible here; visible: %s", spec, strings.Join(known, ", "))
}

func (d *Driver) check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	e := &Error{Call: call, Code: int(code)}
	var name *byte
	if d.getErrorName(code, &name) == 0 && name != nil {
		e.Name = text(unsafe.Slice(name, 64))
	}
	return e
}

// text is the string before the first NUL.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// pinned passes C what Go memory points to for as long as the call takes.
func pinned(pointers ...any) *runtime.Pinner {
	p := new(runtime.Pinner)
	for _, pointer := range pointers {
		p.Pin(pointer)
	}
	return p
}
