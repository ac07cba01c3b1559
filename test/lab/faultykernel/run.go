// Package faultykernel makes the driver of this machine's first GPU report an XID.
package faultykernel

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	cuda "github.com/gpuready/gpuready/cuda-samples/driver"
)

// Run launches a kernel that stores to address 0, for which the driver reports XID 31.
// It prints the time of the launch, in nanoseconds since 1970.
func Run() error {
	runtime.LockOSThread() // a context belongs to a thread
	const kernel = `.version 4.0
.target sm_50
.address_size 64
.visible .entry store()
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<2>;
	mov.u64 %rd1, 0;
	mov.u32 %r1, 1;
	st.global.u32 [%rd1], %r1;
	ret;
}
`
	libcuda, err := cuda.Open()
	if err != nil {
		return err
	}
	device, err := libcuda.Find("0")
	if err != nil {
		return err
	}
	release, err := device.Use()
	if err != nil {
		return err
	}
	module, err := device.LoadModule(kernel)
	if err != nil {
		return errors.Join(err, release())
	}
	store, err := module.Kernel("store")
	if err != nil {
		return errors.Join(err, release())
	}
	fmt.Println(time.Now().UnixNano())
	one := cuda.Dim{X: 1}
	if err := store.Launch(cuda.Shape{Grid: one, Block: one}); err != nil {
		return errors.Join(err, release())
	}
	if err := device.Synchronize(); err == nil {
		return errors.New("the kernel that stores to address 0 passed")
	}
	return nil // the context is lost with the process
}
