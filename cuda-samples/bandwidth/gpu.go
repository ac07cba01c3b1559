package main

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

//go:embed bandwidth.ptx
var ptx string

const threads = 256 // of a block

// gpu is a device in use, with its kernels and their buffers.
type gpu struct {
	*driver.Device
	kernels map[string]*driver.Kernel
	blocks  uint32
	found   *driver.Host // struct found of bandwidth.cu
	frees   []func() error
}

func newGPU(d *driver.Device) (g *gpu, err error) {
	g = &gpu{Device: d, kernels: map[string]*driver.Kernel{}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	module, err := d.LoadModule(ptx)
	if err != nil {
		return g, err
	}
	g.frees = append(g.frees, module.Close)
	for _, name := range []string{"copy", "triad", "fill", "fillWhole", "check", "checkTriad"} {
		if g.kernels[name], err = module.Kernel(name); err != nil {
			return g, err
		}
	}
	processors, err := d.Attribute(driver.Multiprocessors)
	if err != nil {
		return g, err
	}
	g.blocks = uint32(processors) * 8
	g.found, err = g.host(16)
	return g, err
}

// memory allocates memory of the device, which close frees.
func (g *gpu) memory(size uint64) (*driver.Memory, error) {
	m, err := g.Alloc(size)
	if err == nil {
		g.frees = append(g.frees, m.Free)
	}
	return m, err
}

// host allocates pinned memory of the host, which close frees.
func (g *gpu) host(size uint64) (*driver.Host, error) {
	h, err := g.AllocHost(size)
	if err == nil {
		g.frees = append(g.frees, h.Free)
	}
	return h, err
}

// close frees all memory and unloads the kernels. It ignores errors: after a fault every call returns the fault's error.
func (g *gpu) close() {
	for _, free := range g.frees {
		_ = free()
	}
}

// launch starts a kernel over n elements. Its threads loop, so that a few blocks are enough.
func (g *gpu) launch(kernel string, n uint64, arguments ...any) error {
	blocks := min(uint64(g.blocks), (n+threads-1)/threads)
	return g.kernels[kernel].Launch(driver.Shape{Grid: driver.Dim{X: uint32(blocks)}, Block: driver.Dim{X: threads}}, arguments...)
}

// launchEach starts a kernel with a thread for each of n elements.
func (g *gpu) launchEach(kernel string, n uint64, arguments ...any) error {
	const threads = 128
	blocks := (n + threads - 1) / threads
	return g.kernels[kernel].Launch(driver.Shape{Grid: driver.Dim{X: uint32(blocks)}, Block: driver.Dim{X: threads}}, arguments...)
}

// fill writes a pattern to the first n bytes: word(i, seed) for each i.
func (g *gpu) fill(to *driver.Memory, n uint64, seed uint32) error {
	return g.launch("fill", n/4, to, n/4, seed)
}

// check verifies that the first n bytes have the pattern of fill. writer names, in the error, the work
// that wrote them.
func (g *gpu) check(from *driver.Memory, n uint64, seed uint32, writer string) error {
	return g.runCheck("check", n/4, writer, func(i uint64) string { return hex(word(i, seed)) }, hex, from, n/4, seed, g.found)
}

// checkTriad verifies that the first n bytes are the triad b + factor × c of the numbers that fillWhole
// writes for two seeds.
func (g *gpu) checkTriad(from *driver.Memory, n uint64, seedB, seedC uint32) error {
	want := func(i uint64) string { return fmt.Sprint(whole(i, seedB) + float32(factor*whole(i, seedC))) }
	got := func(bits uint32) string { return fmt.Sprint(math.Float32frombits(bits)) }
	return g.runCheck("checkTriad", n/4, "triad", want, got, from, n/4, seedB, seedC, factor, g.found)
}

// runCheck runs a checking kernel over n words and reports the first wrong word. The kernel's result is
// struct found of bandwidth.cu: the number of wrong words and, at byte 8, the first one: its index in
// the upper 32 bits, and what it is in the lower.
func (g *gpu) runCheck(kernel string, n uint64, writer string, want func(i uint64) string, got func(bits uint32) string, arguments ...any) error {
	found := g.found.Bytes()
	binary.LittleEndian.PutUint32(found, 0)
	binary.LittleEndian.PutUint64(found[8:], math.MaxUint64)
	if err := g.launch(kernel, n, arguments...); err != nil {
		return err
	}
	if err := g.Synchronize(); err != nil {
		return err
	}
	count, first := binary.LittleEndian.Uint32(found), binary.LittleEndian.Uint64(found[8:])
	if count == 0 {
		return nil
	}
	return wordError(g.Device, writer, int(count), first>>32, want(first>>32), got(uint32(first)))
}

func hex(bits uint32) string { return fmt.Sprintf("0x%08x", bits) }

// wordError returns the error for the i-th word, which is wrong.
func wordError(d *driver.Device, what string, count int, i uint64, want, got string) error {
	return &sample.WrongError{
		What: fmt.Sprintf("%s: word %d on %s", what, i, d.UUID), Of: "words", Count: count,
		Wrong: []sample.Wrong{{Index: []int{int(i)}, Want: want, Got: got, Pattern: what}},
	}
}
