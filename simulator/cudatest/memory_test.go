package cudatest

import (
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

func TestMemoryIsAsLargeAsTheGPUs(t *testing.T) {
	d := open(t, "t4")
	var free, total, device uint64
	require.Zero(t, d.cuMemGetInfo(&free, &total))
	require.Zero(t, d.cuDeviceTotalMem(&device, 0))
	require.Equal(t, device, total)
	require.LessOrEqual(t, free, total)

	require.Equal(t, outOfMemory, check(d.cuMemAlloc(new(uint64), free+1)))
	var all uint64
	require.Zero(t, d.cuMemAlloc(&all, free&^511), "memory of the host is taken when it is touched")
	require.Equal(t, outOfMemory, check(d.cuMemAlloc(new(uint64), 512)))
	var left uint64
	require.Zero(t, d.cuMemGetInfo(&left, &total))
	require.Less(t, left, uint64(512))
	require.Zero(t, d.cuMemFree(all))
	require.Zero(t, d.cuMemAlloc(&all, 512))
	require.Zero(t, d.cuMemFree(all))
	require.Equal(t, invalidValue, check(d.cuMemFree(all)), "freed twice")
	require.Equal(t, invalidValue, check(d.cuMemAlloc(&all, 0)))
	require.Zero(t, d.cuMemFree(0))

	managed := bind[func(*uint64, uint64, uint32) int32](d.lib, "cuMemAllocManaged")
	require.Equal(t, outOfMemory, check(managed(&all, 1<<46, 1)), "it is the host's memory, and that is no larger")
}

func TestCopiesStayWithinAllocations(t *testing.T) {
	d := open(t, "t4")
	p := *put(d, make([]uint32, 64))
	q := *put(d, make([]uint32, 64))
	host := make([]byte, 1024)
	at := unsafe.Pointer(&host[0])
	require.Equal(t, invalidValue, check(d.cuMemcpyHtoD(p, at, 257)))
	require.Equal(t, invalidValue, check(d.cuMemcpyHtoD(p+1, at, 256)))
	require.Equal(t, invalidValue, check(d.cuMemcpyDtoH(at, p+256, 1)))
	require.Equal(t, invalidValue, check(d.cuMemcpyDtoH(at, 4096, 1)))
	require.Equal(t, invalidValue, check(d.cuMemsetD32(p, 0, 65)))
	require.Equal(t, invalidValue, check(d.cuMemsetD32(p+2, 0, 1)), "misaligned")
	require.Zero(t, d.cuMemsetD32(p, 0x01020304, 64))
	dtod := bind[func(uint64, uint64, uint64) int32](d.lib, "cuMemcpyDtoD_v2")
	require.Zero(t, dtod(q, p, 256))
	require.Equal(t, uint32(0x01020304), get[uint32](d, &q, 64)[63])
	// Unified addresses: the driver finds out what each end is.
	unified := bind[func(uint64, uint64, uint64) int32](d.lib, "cuMemcpy")
	require.Zero(t, unified(uint64(uintptr(at)), q+4, 4))
	require.Equal(t, []byte{4, 3, 2, 1, 0}, host[:5])
	require.Equal(t, invalidValue, check(unified(uint64(uintptr(at)), q+253, 4)))
}

func TestPitchedCopiesMoveRectangles(t *testing.T) {
	d := open(t, "t4")
	pitched := bind[func(*uint64, *uint64, uint64, uint64, uint32) int32](d.lib, "cuMemAllocPitch_v2")
	var p, pitch uint64
	require.Zero(t, pitched(&p, &pitch, 100, 10, 4))
	require.Zero(t, pitch%512)
	host, back := make1(1000, func(i int) byte { return byte(i % 251) }), make([]byte, 60)
	type end struct {
		x, y   uint64
		kind   int32
		host   unsafe.Pointer
		device uint64
		array  uintptr
		pitch  uint64
	}
	copy2d := bind[func(*[2]end) int32](d.lib, "cuMemcpy2D_v2")
	type rectangle struct {
		from, to      end
		width, height uint64
	}
	move := func(r rectangle) int32 { return copy2d((*[2]end)(unsafe.Pointer(&r))) }
	require.Zero(t, move(rectangle{end{kind: 1, host: unsafe.Pointer(&host[0]), pitch: 100}, end{kind: 2, device: p, pitch: pitch}, 100, 10}))
	require.Zero(t, move(rectangle{end{x: 10, y: 4, kind: 2, device: p, pitch: pitch}, end{kind: 1, host: unsafe.Pointer(&back[0]), pitch: 20}, 20, 3}))
	require.Equal(t, make1(60, func(i int) byte { return host[(4+i/20)*100+10+i%20] }), back)
	require.NotZero(t, move(rectangle{end{kind: 2, device: p, pitch: pitch}, end{kind: 2, device: p, pitch: 8}, 100, 10}), "a pitch below the width")
}

func TestPinnedAndManagedMemoryIsOneForHostAndGPU(t *testing.T) {
	d := open(t, "t4")
	f := d.mustKernel(entry("\tld.global.u32 %r1, [%rd0];\n\tadd.u32 %r1, %r1, 1;\n\tst.global.u32 [%rd0], %r1;"), "k")
	hostAlloc := bind[func(*unsafe.Pointer, uint64, uint32) int32](d.lib, "cuMemHostAlloc")
	hostFree := bind[func(unsafe.Pointer) int32](d.lib, "cuMemFreeHost")
	var pinned unsafe.Pointer
	require.Zero(t, hostAlloc(&pinned, 64, 2))
	*(*uint32)(pinned) = 41
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 1}, new(uint64(uintptr(pinned)))))
	require.Equal(t, uint32(42), *(*uint32)(pinned))
	require.Zero(t, hostFree(pinned))
	require.Equal(t, invalidValue, check(hostFree(pinned)))

	managed := bind[func(*uint64, uint64, uint32) int32](d.lib, "cuMemAllocManaged")
	p := new(uint64)
	require.Zero(t, managed(p, 64, 1))
	require.Equal(t, invalidValue, check(managed(p, 64, 9)))
	attribute := bind[func(unsafe.Pointer, int32, uint64) int32](d.lib, "cuPointerGetAttribute")
	var kind, isManaged uint32
	require.Zero(t, attribute(unsafe.Pointer(&kind), 2, *p))
	require.Zero(t, attribute(unsafe.Pointer(&isManaged), 8, *p))
	require.Equal(t, [2]uint32{2, 1}, [2]uint32{kind, isManaged})
	require.Equal(t, invalidValue, check(attribute(unsafe.Pointer(&kind), 2, 64)))
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 1}, p))
	require.Equal(t, []uint32{1}, get[uint32](d, p, 1))
	require.Zero(t, d.cuMemFree(*p))
}

func TestAPeersMemoryNeedsItsPermission(t *testing.T) {
	l := open(t, "h100-sxm", "--gpus", "2").lib
	other := l.newContext(t, 1)
	p := put(other, []uint32{7})
	d := l.newContext(t, 0)
	body := entry("\tld.global.u32 %r1, [%rd0];\n\tadd.u32 %r1, %r1, 1;\n\tst.global.u32 [%rd0], %r1;")
	require.Zero(t, d.cuCtxEnablePeerAccess(other.context, 0))
	require.Equal(t, alreadyEnabled, check(d.cuCtxEnablePeerAccess(other.context, 0)))
	require.NoError(t, d.launch(d.mustKernel(body, "k"), shape{gx: 1, bx: 1}, p))
	require.Equal(t, []uint32{8}, get[uint32](d, p, 1))
	disable := bind[func(uintptr) int32](l, "cuCtxDisablePeerAccess")
	require.Zero(t, disable(other.context))
	require.Equal(t, peerNotEnabled, check(disable(other.context)))
	require.Equal(t, illegalAddress, d.launch(d.mustKernel(body, "k"), shape{gx: 1, bx: 1}, p))
}

func TestModulesKeepTheirVariables(t *testing.T) {
	d := open(t, "t4")
	module, log, err := d.compile(compilers(t)["clang-14"])
	require.NoError(t, err, log)
	var address, size uint64
	name := []byte("launches\x00")
	require.Zero(t, d.cuModuleGetGlobal(&address, &size, module, &name[0]))
	require.EqualValues(t, 4, size)
	require.Equal(t, []int32{41}, get[int32](d, &address, 1))
	f, err := d.kernel(module, "filter")
	require.NoError(t, err)
	in := put(d, make([]float32, 64))
	for range 3 {
		require.NoError(t, d.launch(f, shape{gx: 1, bx: 64}, in, in, new(int32(64))))
	}
	require.Equal(t, []int32{44}, get[int32](d, &address, 1))
	require.Equal(t, invalidValue, check(d.cuMemFree(address)), "it is the module's")
	missing := []byte("nothing\x00")
	require.Equal(t, notFound, check(d.cuModuleGetGlobal(&address, &size, module, &missing[0])))
	require.Zero(t, d.cuModuleUnload(module))
	require.Equal(t, invalidHandle, check(d.cuModuleUnload(module)))
	require.Equal(t, invalidHandle, d.launch(f, shape{gx: 1, bx: 1}, in, in, new(int32(1))))
}

func TestABadBitOfMemoryMakesTheSampleFail(t *testing.T) {
	for _, kind := range []string{"flip", "stuck"} {
		t.Run(kind, func(t *testing.T) {
			root := built.DriverRoot(t, "t4")
			env := "LD_LIBRARY_PATH=" + filepath.Dir(libraryOf(t, root))
			sample := func() (string, int) {
				p := built.Start(t, "vectoradd", nil, env)
				exit, err := p.Wait(t.Context())
				require.NoError(t, err)
				return p.Output(), exit
			}
			out, exit := sample()
			require.Zero(t, exit, out)
			// Element 1234; bit 30 makes a sum below 2 at least 2.
			built.Gpusim(t, "memfault", "--root", root, "--gpu", "0", "--kind", kind, "--offset", "4936", "--bit", "30")
			out, exit = sample()
			require.Equal(t, 3, exit, out)
			require.Contains(t, out, "element 1234 is wrong: expected ")
			require.Contains(t, out, "Test FAILED")
			built.Gpusim(t, "memfault", "--root", root, "--gpu", "0", "--kind", "none")
			out, exit = sample()
			require.Zero(t, exit, out)
		})
	}
}
