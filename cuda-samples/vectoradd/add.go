package main

import (
	_ "embed"
	"math/rand/v2"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

//go:embed vectoradd.ptx
var ptx string

const threads = 256 // of a block, as in NVIDIA's sample

// add runs the sample on one device. The lines that it prints, and their order, are those of NVIDIA's
// vectorAdd, which people grep for: Samples/0_Introduction/vectorAdd/vectorAdd.cu of
// https://github.com/NVIDIA/cuda-samples. The code is ours.
func add(r *sample.Run, n int) error {
	r.Field("elements", n)
	r.Printf("[Vector addition of %d elements]\n", n)
	d, err := r.Open()
	if err != nil {
		return err
	}
	// The name that this sample had used before there were others.
	cuda, err := r.Driver.Version()
	if err != nil {
		return err
	}
	r.Field("cudaVersion", cuda)
	module, err := d.LoadModule(ptx)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("vectorAdd")
	if err != nil {
		return err
	}
	r.EndPhase("compile")

	a, b, sum := numbers(n, 1), numbers(n, 2), make([]float32, n)
	if err := compute(r, d, kernel, a, b, sum); err != nil {
		return err
	}
	r.Progress(0.75, "checking")
	err = verify(a, b, sum)
	r.EndPhase("verify")
	return err
}

func compute(r *sample.Run, d *driver.Device, kernel *driver.Kernel, a, b, sum []float32) (err error) {
	var memory [3]*driver.Memory
	for i := range memory {
		m, err := d.Alloc(uint64(len(a)) * 4)
		if err != nil {
			return err
		}
		// After a fault every call returns the fault's error, which is reported already.
		defer func() { _ = m.Free() }()
		memory[i] = m
	}
	r.Progress(0.25, "copying to the device")
	r.Printf("Copy input data from the host memory to the CUDA device\n")
	if err := driver.Write(memory[0], 0, a); err != nil {
		return err
	}
	if err := driver.Write(memory[1], 0, b); err != nil {
		return err
	}
	// Overwrite the result of an earlier run.
	if err := memory[2].SetBytes(0, 0xff, memory[2].Size); err != nil {
		return err
	}
	r.EndPhase("copyToDevice")

	blocks := uint32((len(a) + threads - 1) / threads)
	r.Progress(0.5, "adding")
	r.Printf("CUDA kernel launch with %d blocks of %d threads\n", blocks, threads)
	shape := driver.Shape{Grid: driver.Dim{X: blocks}, Block: driver.Dim{X: threads}}
	if err := kernel.Launch(shape, memory[0], memory[1], memory[2], int32(len(a))); err != nil {
		return err
	}
	if err := d.Synchronize(); err != nil {
		return err
	}
	r.EndPhase("kernel")
	r.Printf("Copy output data from the CUDA device to the host memory\n")
	err = driver.Read(sum, memory[2], 0)
	r.EndPhase("copyToHost")
	return err
}

// numbers returns n numbers between 0 and 1, the same in each run.
func numbers(n int, seed uint64) []float32 {
	source := rand.New(rand.NewPCG(seed, 0))
	v := make([]float32, n)
	for i := range v {
		v[i] = source.Float32()
	}
	return v
}

// verify compares every element, bit for bit: IEEE 754 leaves no choice in a sum.
func verify(a, b, sum []float32) error {
	var wrong sample.Elements
	for i := range sum {
		if want := a[i] + b[i]; sum[i] != want {
			wrong.Add(want, sum[i], i)
		}
	}
	return wrong.Err()
}
