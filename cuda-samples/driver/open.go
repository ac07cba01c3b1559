// Package driver is the part of the CUDA driver API that the samples use, without
// cgo: libcuda is opened by its soname when the program runs, as libcuda itself
// expects (by an absolute path it would not find its PTX compiler).
//
// Open returns the Driver, which lists Devices. Device.Use makes its context the calling
// thread's current one. Then LoadModule compiles PTX to a Module of Kernels, Alloc and AllocHost
// return Memory and Host memory, and NewStream and NewEvent order and time the work.
// Write and Read copy whole slices and wait; the …Async functions put a copy into a
// stream. An Error names the call, the code and the next action.
//
// A context belongs to the thread that makes it current. Callers lock their goroutine to
// its thread before they use a Device. All work on a Device, or on anything made by it,
// happens while its context is current on that thread (Use, MakeCurrent). A nil *Stream
// is the context's default stream. Sizes and offsets are in bytes.
package driver

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

// ErrNoLibrary is returned, wrapped, by Open where the driver's library is missing.
var ErrNoLibrary = errors.New("no CUDA driver library")

// Driver is libcuda, initialised.
type Driver struct {
	simulated bool
	api
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

// Simulated reports whether the driver is a simulator without a GPU.
func (d *Driver) Simulated() bool { return d.simulated }

// Version returns the newest CUDA version that the driver supports: "13.0".
func (d *Driver) Version() (string, error) {
	var v int32
	if err := d.check("cuDriverGetVersion", d.driverGetVersion(&v)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10), nil
}

// Devices lists the devices that CUDA_VISIBLE_DEVICES allows, in its order.
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

// Find returns the device with an index or a UUID; "" is the first device.
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

// text returns the string before the first NUL.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// pinned pins Go memory that C reads through pointers, until the caller unpins it.
func pinned(pointers ...any) *runtime.Pinner {
	p := new(runtime.Pinner)
	for _, pointer := range pointers {
		p.Pin(pointer)
	}
	return p
}
