// Package cudatest tests the simulator's libcuda through its binary interface,
// as programs use it. simulator/cuda itself is C and cannot hold Go files.
package cudatest

//go:generate go test -tags grpcnotrace -run ^TestStubsAreCurrent$ . -update

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// result is a CUresult.
type result int32

func (r result) Error() string { return fmt.Sprintf("CUDA error %d", int32(r)) }

const (
	invalidValue    result = 1
	outOfMemory     result = 2
	notInitialized  result = 3
	noDevice        result = 100
	invalidImage    result = 200
	noBinary        result = 209
	invalidPTX      result = 218
	newerPTX        result = 222
	system          result = 304
	notFound        result = 500
	illegalAddress  result = 700
	timeout         result = 702
	assertion       result = 710
	stackError      result = 714
	illegalInstr    result = 715
	misaligned      result = 716
	launchFailed    result = 719
	notSupported    result = 801
	mismatch        result = 803
	unknown         result = 999
	invalidContext  result = 201
	outOfResources  result = 701
	contextIsGone   result = 709
	invalidHandle   result = 400
	peerNotEnabled  result = 705
	alreadyEnabled  result = 704
	peerUnsupported result = 217
	notRegistered   result = 713
	alreadyRegister result = 712
)

// check turns a CUresult into an error.
func check(code int32) error {
	if code == 0 {
		return nil
	}
	return result(code)
}

// lib is one loaded libcuda.
type lib struct {
	handle uintptr

	cuInit                func(uint32) int32
	cuDeviceGetCount      func(*int32) int32
	cuDeviceGetAttribute  func(*int32, int32, int32) int32
	cuDeviceTotalMem      func(*uint64, int32) int32
	cuCtxCreate           func(*uintptr, uint32, int32) int32
	cuCtxDestroy          func(uintptr) int32
	cuCtxSetCurrent       func(uintptr) int32
	cuCtxSynchronize      func() int32
	cuCtxEnablePeerAccess func(uintptr, uint32) int32
	cuMemAlloc            func(*uint64, uint64) int32
	cuMemFree             func(uint64) int32
	cuMemGetInfo          func(*uint64, *uint64) int32
	cuMemcpyHtoD          func(uint64, unsafe.Pointer, uint64) int32
	cuMemcpyDtoH          func(unsafe.Pointer, uint64, uint64) int32
	cuMemsetD32           func(uint64, uint32, uint64) int32
	cuModuleLoadDataEx    func(*uintptr, *byte, uint32, *int32, *uintptr) int32
	cuModuleUnload        func(uintptr) int32
	cuModuleGetFunction   func(*uintptr, uintptr, *byte) int32
	cuModuleGetGlobal     func(*uint64, *uint64, uintptr, *byte) int32
	cuLaunchKernel        func(uintptr, uint32, uint32, uint32, uint32, uint32, uint32, uint32, uintptr, *unsafe.Pointer, uintptr) int32
	instructions          func() uint64
}

// libraryOf is the path of the driver root's libcuda.
func libraryOf(t testing.TB, root string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// load opens a driver root's library without initialising it.
func load(t testing.TB, root string) *lib {
	t.Helper()
	handle, err := purego.Dlopen(libraryOf(t, root), purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	l := &lib{handle: handle}
	for name, fn := range map[string]any{
		"cuInit": &l.cuInit, "cuDeviceGetCount": &l.cuDeviceGetCount, "cuDeviceGetAttribute": &l.cuDeviceGetAttribute,
		"cuDeviceTotalMem_v2": &l.cuDeviceTotalMem, "cuCtxCreate_v2": &l.cuCtxCreate, "cuCtxDestroy_v2": &l.cuCtxDestroy,
		"cuCtxSetCurrent": &l.cuCtxSetCurrent, "cuCtxSynchronize": &l.cuCtxSynchronize,
		"cuCtxEnablePeerAccess": &l.cuCtxEnablePeerAccess, "cuMemAlloc_v2": &l.cuMemAlloc, "cuMemFree_v2": &l.cuMemFree,
		"cuMemGetInfo_v2": &l.cuMemGetInfo, "cuMemcpyHtoD_v2": &l.cuMemcpyHtoD, "cuMemcpyDtoH_v2": &l.cuMemcpyDtoH,
		"cuMemsetD32_v2": &l.cuMemsetD32, "cuModuleLoadDataEx": &l.cuModuleLoadDataEx, "cuModuleUnload": &l.cuModuleUnload,
		"cuModuleGetFunction": &l.cuModuleGetFunction, "cuModuleGetGlobal_v2": &l.cuModuleGetGlobal,
		"cuLaunchKernel": &l.cuLaunchKernel, "gpusim_instructions": &l.instructions,
	} {
		purego.RegisterLibFunc(fn, handle, name)
	}
	return l
}

// call binds a function that only one test needs.
func bind[F any](l *lib, name string) F {
	var f F
	purego.RegisterLibFunc(&f, l.handle, name)
	return f
}

// device is a context that is current in this test's thread.
type device struct {
	*lib
	t       testing.TB
	context uintptr
}

// open makes a driver root and a context on its first GPU.
func open(t testing.TB, profile string, args ...string) *device {
	t.Helper()
	l := load(t, built.DriverRoot(t, profile, args...))
	require.Zero(t, l.cuInit(0))
	return l.newContext(t, 0)
}

// newContext makes a context on a GPU that ends with the test.
func (l *lib) newContext(t testing.TB, ordinal int32) *device {
	t.Helper()
	runtime.LockOSThread()
	d := &device{lib: l, t: t}
	require.Zero(t, l.cuCtxCreate(&d.context, 0, ordinal))
	t.Cleanup(func() {
		require.Zero(t, l.cuCtxDestroy(d.context))
		runtime.UnlockOSThread()
	})
	return d
}

// in is the same context in a subtest, which is another thread.
func (d *device) in(t testing.TB) *device {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	require.Zero(t, d.cuCtxSetCurrent(d.context))
	return &device{lib: d.lib, t: t, context: d.context}
}

// compile loads PTX; the error's text is the compiler's log.
func (d *device) compile(ptx string) (module uintptr, log string, err error) {
	image, buffer := append([]byte(ptx), 0), make([]byte, 4096)
	options, values := []int32{5, 6}, []uintptr{uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer))}
	var pin runtime.Pinner
	pin.Pin(&buffer[0])
	defer pin.Unpin()
	err = check(d.cuModuleLoadDataEx(&module, &image[0], 2, &options[0], &values[0]))
	text, _, _ := bytes.Cut(buffer, []byte{0})
	return module, string(text), err
}

func (d *device) kernel(module uintptr, name string) (uintptr, error) {
	var f uintptr
	cname := append([]byte(name), 0)
	err := check(d.cuModuleGetFunction(&f, module, &cname[0]))
	return f, err
}

// mustKernel compiles PTX and finds a kernel in it.
func (d *device) mustKernel(ptx, name string) uintptr {
	d.t.Helper()
	module, log, err := d.compile(ptx)
	require.NoError(d.t, err, log)
	var f uintptr
	cname := append([]byte(name), 0)
	require.Zero(d.t, d.cuModuleGetFunction(&f, module, &cname[0]), name)
	return f
}

// shape is a grid of blocks: x and y of both, and dynamic shared memory.
type shape struct {
	gx, gy, bx, by uint32
	shared         uint32
}

// launch runs a kernel with arguments that are pointers to values, and waits.
func (d *device) launch(f uintptr, s shape, arguments ...any) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	params := make([]unsafe.Pointer, len(arguments)+1)
	for i, a := range arguments {
		pin.Pin(a)
		switch a := a.(type) {
		case *uint64:
			params[i] = unsafe.Pointer(a)
		case *int32:
			params[i] = unsafe.Pointer(a)
		case *uint32:
			params[i] = unsafe.Pointer(a)
		case *float32:
			params[i] = unsafe.Pointer(a)
		case *[8]uint64:
			params[i] = unsafe.Pointer(a)
		case *float64:
			params[i] = unsafe.Pointer(a)
		default:
			return fmt.Errorf("argument %d is a %T", i, a)
		}
	}
	pin.Pin(&params[0])
	if code := d.cuLaunchKernel(f, s.gx, max(s.gy, 1), 1, s.bx, max(s.by, 1), 1, s.shared, 0, &params[0], 0); code != 0 {
		return result(code)
	}
	return check(d.cuCtxSynchronize())
}

// put copies values to new device memory.
func put[T any](d *device, values []T) *uint64 {
	d.t.Helper()
	address := new(uint64)
	size := uint64(len(values)) * uint64(unsafe.Sizeof(values[0]))
	require.Zero(d.t, d.cuMemAlloc(address, size))
	require.Zero(d.t, d.cuMemcpyHtoD(*address, unsafe.Pointer(&values[0]), size))
	return address
}

// get copies n values from device memory.
func get[T any](d *device, address *uint64, n int) []T {
	d.t.Helper()
	values := make([]T, n)
	require.Zero(d.t, d.cuMemcpyDtoH(unsafe.Pointer(&values[0]), *address, uint64(n)*uint64(unsafe.Sizeof(values[0]))))
	return values
}
