/*
 * Names and texts of results. The names are those of CUresult in CUDA's driver API
 * (docs.nvidia.com/cuda/cuda-driver-api). The texts are quotations: what cuGetErrorString
 * of NVIDIA's libcuda answers, since programs, and people who search, compare them.
 */
#include "api.h"

#define ERRORS(X)                                                                     \
	X(0, SUCCESS, "no error")                                                         \
	X(1, ERROR_INVALID_VALUE, "invalid argument")                                     \
	X(2, ERROR_OUT_OF_MEMORY, "out of memory")                                        \
	X(3, ERROR_NOT_INITIALIZED, "initialization error")                               \
	X(4, ERROR_DEINITIALIZED, "driver shutting down")                                 \
	X(5, ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool") \
	X(34, ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                        \
	X(46, ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable") \
	X(100, ERROR_NO_DEVICE, "no CUDA-capable device is detected")                     \
	X(101, ERROR_INVALID_DEVICE, "invalid device ordinal")                            \
	X(200, ERROR_INVALID_IMAGE, "device kernel image is invalid")                     \
	X(201, ERROR_INVALID_CONTEXT, "invalid device context")                           \
	X(202, ERROR_CONTEXT_ALREADY_CURRENT, "context already current")                  \
	X(205, ERROR_MAP_FAILED, "mapping of buffer object failed")                       \
	X(209, ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device") \
	X(214, ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")            \
	X(215, ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture")    \
	X(216, ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread") \
	X(217, ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices") \
	X(218, ERROR_INVALID_PTX, "a PTX JIT compilation failed")                         \
	X(220, ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution") \
	X(221, ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found")        \
	X(222, ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.") \
	X(224, ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported") \
	X(300, ERROR_INVALID_SOURCE, "device kernel image is invalid")                    \
	X(301, ERROR_FILE_NOT_FOUND, "file not found")                                    \
	X(302, ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found")    \
	X(303, ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed")    \
	X(304, ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS") \
	X(400, ERROR_INVALID_HANDLE, "invalid resource handle")                           \
	X(401, ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state") \
	X(500, ERROR_NOT_FOUND, "named symbol not found")                                 \
	X(600, ERROR_NOT_READY, "device not ready")                                       \
	X(700, ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")         \
	X(701, ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")  \
	X(702, ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")           \
	X(704, ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")       \
	X(705, ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")         \
	X(708, ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process") \
	X(709, ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                        \
	X(710, ERROR_ASSERT, "device-side assert triggered")                              \
	X(712, ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped") \
	X(713, ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region") \
	X(714, ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                        \
	X(715, ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")       \
	X(716, ERROR_MISALIGNED_ADDRESS, "misaligned address")                            \
	X(717, ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space") \
	X(718, ERROR_INVALID_PC, "invalid program counter")                               \
	X(719, ERROR_LAUNCH_FAILED, "unspecified launch failure")                         \
	X(720, ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch") \
	X(800, ERROR_NOT_PERMITTED, "operation not permitted")                            \
	X(801, ERROR_NOT_SUPPORTED, "operation not supported")                            \
	X(802, ERROR_SYSTEM_NOT_READY, "system not yet initialized")                      \
	X(803, ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination") \
	X(804, ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW") \
	X(909, ERROR_TIMEOUT, "wait operation timed out")                                 \
	X(999, ERROR_UNKNOWN, "unknown error")

static const struct { int code; const char *name, *text; } errors[] = {
#define X(code, name, text) {code, "CUDA_" #name, text},
	ERRORS(X)
#undef X
};

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == error)
			*name = errors[i].name;
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == error)
			*text = errors[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
