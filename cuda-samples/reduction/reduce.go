package main

import (
	_ "embed"
	"fmt"
	"math"
	"strings"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

//go:embed reduction.ptx
var ptx string

// reducer holds the kernels and memory on the device.
type reducer struct {
	r                  *sample.Run
	d                  *driver.Device
	module             *driver.Module
	in, partial, total *driver.Memory
}

// reduce runs the sample on one device. With n = 0 it uses the default size.
func reduce(r *sample.Run, n int) (err error) {
	d, err := r.Open()
	if err != nil {
		return err
	}
	switch {
	case n == 0 && r.Simulated():
		n = simulatedElements
	case n == 0:
		n = usualElements
	}
	r.Field("elements", n)
	r.Field("sizes", sizes(n))
	r.Printf("[Reduction of up to %d elements]\n", n)
	p := &reducer{r: r, d: d}
	if p.module, err = d.LoadModule(ptx); err != nil {
		return err
	}
	r.EndPhase("compile")
	r.Progress(0, "making numbers")
	numbers := numbers(n)
	r.EndPhase("numbers")

	for _, m := range []struct {
		memory **driver.Memory
		n      int
	}{{&p.in, n}, {&p.partial, maxBlocks}, {&p.total, 1}} {
		taken, err := d.Alloc(4 * uint64(m.n))
		if err != nil {
			return err
		}
		// After a fault every call returns the fault's error, which is reported already.
		defer func() { _ = taken.Free() }()
		*m.memory = taken
	}
	if err := driver.Write(p.in, 0, numbers); err != nil {
		return err
	}
	r.EndPhase("copyToDevice")
	return p.runAll(numbers)
}

// runAll runs each operation on each size.
func (p *reducer) runAll(numbers []float32) error {
	sizes := sizes(len(numbers))
	for i, size := range sizes {
		line := []string{fmt.Sprintf("n = %d:", size)}
		for _, o := range operations {
			p.r.Progress(float64(i)/float64(len(sizes)), fmt.Sprintf("%s of %d elements", o.kernel, size))
			got, err := p.runOne(o, numbers[:size])
			if err != nil {
				return err
			}
			line = append(line, o.kernel, fmt.Sprint(got))
		}
		p.r.Printf("%s\n", strings.Join(line, " "))
	}
	return nil
}

// runOne reduces the numbers to one per block, reduces those to one, and verifies both.
func (p *reducer) runOne(o operation, numbers []float32) (float32, error) {
	kernel, err := p.module.Kernel(o.kernel)
	if err != nil {
		return 0, err
	}
	n := blocks(len(numbers))
	partial, total := make([]float32, n), make([]float32, 1)
	// Overwrite the results of an earlier launch.
	for _, m := range []*driver.Memory{p.partial, p.total} {
		if err := m.SetBytes(0, 0xff, m.Size); err != nil {
			return 0, err
		}
	}
	if err := p.launch(kernel, p.in, p.partial, len(numbers), n); err != nil {
		return 0, err
	}
	if err := p.launch(kernel, p.partial, p.total, n, 1); err != nil {
		return 0, err
	}
	if err := p.d.Synchronize(); err != nil {
		return 0, err
	}
	p.r.EndPhase("kernel")
	if err := driver.Read(partial, p.partial, 0); err != nil {
		return 0, err
	}
	if err := driver.Read(total, p.total, 0); err != nil {
		return 0, err
	}
	p.r.EndPhase("copyToHost")
	err = verify(o, numbers, partial, total[0])
	p.r.EndPhase("verify")
	return total[0], err
}

func (p *reducer) launch(k *driver.Kernel, in, out *driver.Memory, n, blocks int) error {
	shape := driver.Shape{Grid: driver.Dim{X: uint32(blocks)}, Block: driver.Dim{X: threads}}
	return k.Launch(shape, in, out, int32(n))
}

// verify compares each block's result, then the total, bit for bit.
func verify(o operation, numbers, partial []float32, total float32) error {
	wrong := sample.Elements{What: fmt.Sprintf("%s of %d elements, result of block", o.kernel, len(numbers))}
	reference := o.reference(numbers, len(partial))
	for i, want := range reference {
		if differ(partial[i], want) {
			wrong.Add(want, partial[i], i)
		}
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	whole := sample.Elements{What: fmt.Sprintf("%s of %d elements, in all, element", o.kernel, len(numbers))}
	if want := o.reference(reference, 1)[0]; differ(total, want) {
		whole.Add(want, total, 0)
	}
	return whole.Err()
}

func differ(a, b float32) bool { return math.Float32bits(a) != math.Float32bits(b) }
