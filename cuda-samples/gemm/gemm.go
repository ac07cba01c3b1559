package main

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

var (
	//go:embed gemm.ptx
	ptx string
	//go:embed gemm_sm80.ptx
	ptxSM80 string
)

// The types of numbers. The kernels have the same names.
const (
	fp32 = "fp32"
	bf16 = "bf16"
)

// task is a product of two matrices to compute in one or more types.
type task struct {
	name  string // in messages: the kind of numbers
	types []string
	exact bool          // no sum is rounded, so every element must be right to the bit
	a, b  func() matrix // called only when the task runs
}

// tasks returns the products of a size. Fractions for bf16 are truncated first, so that converting
// them to bf16 loses nothing.
func tasks(s size) []task {
	return []task{
		{"whole numbers", []string{fp32, bf16}, true,
			func() matrix { return integers(s.m, s.k, s.k, 1) }, func() matrix { return integers(s.k, s.n, s.k, 2) }},
		{"fractions", []string{fp32}, false,
			func() matrix { return fractions(s.m, s.k, 3) }, func() matrix { return fractions(s.k, s.n, 4) }},
		{"fractions", []string{bf16}, false,
			func() matrix { return fractions(s.m, s.k, 5).truncate() }, func() matrix { return fractions(s.k, s.n, 6).truncate() }},
	}
}

// runSample runs all tasks on one device. A side of 0 means the default. If only is set, it is the
// one type to use.
func runSample(r *sample.Run, s size, only string) error {
	d, err := r.Open()
	if err != nil {
		return err
	}
	defaults := usual
	if r.Simulated() {
		defaults = simulated
	}
	for side, n := range map[*int]int{&s.m: defaults.m, &s.n: defaults.n, &s.k: defaults.k} {
		if *side == 0 {
			*side = n
		}
	}
	types, err := supportedTypes(r, d, only)
	if err != nil {
		return err
	}
	r.Field("m", s.m)
	r.Field("n", s.n)
	r.Field("k", s.k)
	r.Field("types", types)
	r.Printf("[Product of %d x %d and %d x %d matrices]\n", s.m, s.k, s.k, s.n)

	kernels := map[string]*driver.Kernel{}
	for _, kind := range types {
		code := map[string]string{fp32: ptx, bf16: ptxSM80}[kind]
		module, err := d.LoadModule(code)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		if kernels[kind], err = module.Kernel(kind); err != nil {
			return err
		}
	}
	r.EndPhase("compile")
	for i, t := range tasks(s) {
		t.types = slices.DeleteFunc(t.types, func(kind string) bool { return kernels[kind] == nil })
		if len(t.types) == 0 {
			continue
		}
		if err := t.run(r, d, kernels, float64(i)/3); err != nil { // there are three tasks
			return err
		}
	}
	return nil
}

// supportedTypes returns the requested types that the device supports.
func supportedTypes(r *sample.Run, d *driver.Device, only string) ([]string, error) {
	const noBF16 = "compute capability %s has no mma.sync of bfloat16, which 8.0 and newer have"
	switch {
	case only == fp32:
		return []string{fp32}, nil
	case d.Major >= 8 && only == bf16:
		return []string{bf16}, nil
	case d.Major >= 8:
		return []string{fp32, bf16}, nil
	case only == bf16:
		return nil, sample.NotPossible("bf16 is not possible on this device: "+noBF16, d.Capability())
	}
	r.Note("bf16 is left out: "+noBF16, d.Capability())
	return []string{fp32}, nil
}

// run multiplies on the CPU and, in each type, on the device. done is the share of the sample that
// is done before; this task is a third of it.
func (t task) run(r *sample.Run, d *driver.Device, kernels map[string]*driver.Kernel, done float64) error {
	a, b := t.a(), t.b()
	r.EndPhase("numbers")
	reference := referenceProduct(a, b, t.exact, func(rows int) {
		r.Progress(done+float64(rows)/float64(a.rows)/3, t.name+", the reference on the CPU")
	})
	r.EndPhase("reference")
	for _, kind := range t.types {
		o := fp32Operands(a, b)
		if kind == bf16 {
			o = bf16Operands(a, b)
		}
		r.Progress(done+1./3, t.name+" in "+kind+" on the device")
		got, err := o.multiply(r, d, kernels[kind])
		if err != nil {
			return err
		}
		worst, err := reference.verify(kind, got, o.width)
		r.EndPhase("verify")
		if err != nil {
			return err
		}
		if t.exact {
			r.Printf("%s, %s: every element is exact\n", kind, t.name)
		} else {
			r.Printf("%s, %s: the largest error is %.1f %% of what rounding may do\n", kind, t.name, 100*worst)
		}
	}
	return nil
}

// operands are the inputs of a kernel.
type operands struct {
	write         func(toA, toB *driver.Memory) error // copies the matrices to the device
	aSize, bSize  uint64                              // bytes
	height, width int                                 // of C
	shape         driver.Shape
	sizes         []any // the kernel's last arguments
}

// fp32Operands returns the matrices unchanged: the kernel handles sides that its tiles do not
// divide.
func fp32Operands(a, b matrix) operands {
	const tile = 16 // as in gemm.cu
	return operands{
		write: func(toA, toB *driver.Memory) error {
			return errors.Join(driver.Write(toA, 0, a.v), driver.Write(toB, 0, b.v))
		},
		aSize: 4 * uint64(len(a.v)), bSize: 4 * uint64(len(b.v)), height: a.rows, width: b.columns,
		shape: driver.Shape{
			Grid:  driver.Dim{X: uint32(roundUp(b.columns, tile) / tile), Y: uint32(roundUp(a.rows, tile) / tile)},
			Block: driver.Dim{X: tile, Y: tile},
		},
		sizes: []any{int32(a.rows), int32(b.columns), int32(a.columns)},
	}
}

// bf16Operands returns the matrices in bfloat16, B in column order, padded to multiples
// of the tensor cores' shape.
func bf16Operands(a, b matrix) operands {
	const m, n, k, warps = 16, 8, 16, 4 // as in gemm_sm80.cu
	left, right := a.bfloat16(m, k), b.transposed().bfloat16(n, k)
	height, width := roundUp(a.rows, m), roundUp(b.columns, n)
	return operands{
		write: func(toA, toB *driver.Memory) error {
			return errors.Join(driver.Write(toA, 0, left), driver.Write(toB, 0, right))
		},
		aSize: 2 * uint64(len(left)), bSize: 2 * uint64(len(right)), height: height, width: width,
		shape: driver.Shape{
			Grid:  driver.Dim{X: uint32(roundUp(width, n*warps) / (n * warps)), Y: uint32(height / m)},
			Block: driver.Dim{X: 32, Y: warps},
		},
		sizes: []any{int32(width), int32(roundUp(a.columns, k))},
	}
}

// multiply runs a kernel and returns C, of height × width elements.
func (o operands) multiply(r *sample.Run, d *driver.Device, kernel *driver.Kernel) ([]float32, error) {
	c := make([]float32, o.height*o.width)
	var memory [3]*driver.Memory
	for i, size := range []uint64{o.aSize, o.bSize, 4 * uint64(len(c))} {
		m, err := d.Alloc(size)
		if err != nil {
			return nil, err
		}
		// After a fault every call returns the fault's error, which is reported already.
		defer func() { _ = m.Free() }()
		memory[i] = m
	}
	if err := o.write(memory[0], memory[1]); err != nil {
		return nil, err
	}
	// Fill C with NaNs: its memory may hold the result of an earlier launch.
	if err := memory[2].SetBytes(0, 0xff, memory[2].Size); err != nil {
		return nil, err
	}
	r.EndPhase("copyToDevice")
	if err := kernel.Launch(o.shape, append([]any{memory[0], memory[1], memory[2]}, o.sizes...)...); err != nil {
		return nil, err
	}
	if err := d.Synchronize(); err != nil {
		return nil, err
	}
	r.EndPhase("kernel")
	err := driver.Read(c, memory[2], 0)
	r.EndPhase("copyToHost")
	return c, err
}
