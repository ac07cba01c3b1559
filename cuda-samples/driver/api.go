package driver

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// api holds the functions of libcuda (cuda.h). A handle is a uintptr, a device
// address a uint64, a result an int32.
type api struct {
	init               func(flags uint32) int32
	driverGetVersion   func(version *int32) int32
	getErrorName       func(code int32, name **byte) int32
	deviceGetCount     func(count *int32) int32
	deviceGet          func(device *int32, ordinal int32) int32
	deviceGetName      func(name *byte, size, device int32) int32
	deviceGetUUID      func(uuid *[16]byte, device int32) int32
	deviceGetUUIDv2    func(uuid *[16]byte, device int32) int32 // nil before CUDA 11.4
	deviceGetPCIBusID  func(id *byte, size, device int32) int32
	deviceGetAttribute func(value *int32, attribute, device int32) int32
	deviceTotalMem     func(size *uint64, device int32) int32
	canAccessPeer      func(can *int32, device, peer int32) int32

	primaryRetain  func(context *uintptr, device int32) int32
	primaryRelease func(device int32) int32
	setCurrent     func(context uintptr) int32
	synchronize    func() int32
	enablePeer     func(context uintptr, flags uint32) int32

	memGetInfo   func(free, total *uint64) int32
	memAlloc     func(address *uint64, size uint64) int32
	memFree      func(address uint64) int32
	memAllocHost func(p *unsafe.Pointer, size uint64) int32
	memFreeHost  func(p unsafe.Pointer) int32
	setBytes     func(to uint64, value uint8, n uint64) int32
	setWords     func(to uint64, value uint32, n uint64) int32

	copyToDevice      func(to uint64, from unsafe.Pointer, size uint64) int32
	copyToHost        func(to unsafe.Pointer, from, size uint64) int32
	copyToDeviceAsync func(to uint64, from unsafe.Pointer, size uint64, stream uintptr) int32
	copyToHostAsync   func(to unsafe.Pointer, from, size uint64, stream uintptr) int32
	copyAsync         func(to, from, size uint64, stream uintptr) int32
	copyPeerAsync     func(to uint64, toContext uintptr, from uint64, fromContext uintptr, size uint64, stream uintptr) int32

	streamCreate      func(stream *uintptr, flags uint32) int32
	streamDestroy     func(stream uintptr) int32
	streamSynchronize func(stream uintptr) int32
	eventCreate       func(event *uintptr, flags uint32) int32
	eventDestroy      func(event uintptr) int32
	eventRecord       func(event, stream uintptr) int32
	eventSynchronize  func(event uintptr) int32
	eventElapsed      func(milliseconds *float32, start, end uintptr) int32

	moduleLoad        func(module *uintptr, image *byte, n uint32, options *int32, values *uintptr) int32
	moduleUnload      func(module uintptr) int32
	moduleGetFunction func(function *uintptr, module uintptr, name *byte) int32
	occupancy         func(blocks *int32, function uintptr, threads int32, shared uint64) int32
	launch            func(function uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params *unsafe.Pointer, extra uintptr) int32
}

// bind looks up and registers every function. A missing one is an error, not a panic; only
// deviceGetUUIDv2 may be missing.
func (a *api) bind(handle uintptr) error {
	for _, f := range []struct {
		name string
		fn   any
	}{
		{"cuInit", &a.init}, {"cuDriverGetVersion", &a.driverGetVersion},
		{"cuGetErrorName", &a.getErrorName}, {"cuDeviceGetCount", &a.deviceGetCount},
		{"cuDeviceGet", &a.deviceGet}, {"cuDeviceGetName", &a.deviceGetName},
		{"cuDeviceGetUuid", &a.deviceGetUUID}, {"cuDeviceGetPCIBusId", &a.deviceGetPCIBusID},
		{"cuDeviceGetAttribute", &a.deviceGetAttribute}, {"cuDeviceTotalMem_v2", &a.deviceTotalMem},
		{"cuDeviceCanAccessPeer", &a.canAccessPeer},
		{"cuDevicePrimaryCtxRetain", &a.primaryRetain}, {"cuDevicePrimaryCtxRelease_v2", &a.primaryRelease},
		{"cuCtxSetCurrent", &a.setCurrent}, {"cuCtxSynchronize", &a.synchronize},
		{"cuCtxEnablePeerAccess", &a.enablePeer},
		{"cuMemGetInfo_v2", &a.memGetInfo}, {"cuMemAlloc_v2", &a.memAlloc}, {"cuMemFree_v2", &a.memFree},
		{"cuMemAllocHost_v2", &a.memAllocHost}, {"cuMemFreeHost", &a.memFreeHost},
		{"cuMemsetD8_v2", &a.setBytes}, {"cuMemsetD32_v2", &a.setWords},
		{"cuMemcpyHtoD_v2", &a.copyToDevice}, {"cuMemcpyDtoH_v2", &a.copyToHost},
		{"cuMemcpyHtoDAsync_v2", &a.copyToDeviceAsync}, {"cuMemcpyDtoHAsync_v2", &a.copyToHostAsync},
		{"cuMemcpyDtoDAsync_v2", &a.copyAsync}, {"cuMemcpyPeerAsync", &a.copyPeerAsync},
		{"cuStreamCreate", &a.streamCreate}, {"cuStreamDestroy_v2", &a.streamDestroy},
		{"cuStreamSynchronize", &a.streamSynchronize},
		{"cuEventCreate", &a.eventCreate}, {"cuEventDestroy_v2", &a.eventDestroy},
		{"cuEventRecord", &a.eventRecord}, {"cuEventSynchronize", &a.eventSynchronize},
		{"cuEventElapsedTime", &a.eventElapsed},
		{"cuModuleLoadDataEx", &a.moduleLoad}, {"cuModuleUnload", &a.moduleUnload},
		{"cuModuleGetFunction", &a.moduleGetFunction}, {"cuLaunchKernel", &a.launch},
		{"cuOccupancyMaxActiveBlocksPerMultiprocessor", &a.occupancy},
	} {
		symbol, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return fmt.Errorf("%s has no %s: is it a CUDA driver of 11.0 or newer?", Library, f.name)
		}
		purego.RegisterFunc(f.fn, symbol)
	}
	// Since CUDA 11.4. Before, MIG devices had the UUID of their GPU.
	if symbol, err := purego.Dlsym(handle, "cuDeviceGetUuid_v2"); err == nil {
		purego.RegisterFunc(&a.deviceGetUUIDv2, symbol)
	}
	return nil
}
