package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/gpuready/gpuready/cuda-samples/internal/cuda"
)

//go:embed vectoradd.ptx
var ptx string

const threads = 256 // of a block, as in the classic sample

// report is what -o json prints.
type report struct {
	Passed    bool               `json:"passed"`
	Simulated bool               `json:"simulated"`
	Error     string             `json:"error,omitempty"`
	Device    string             `json:"device,omitempty"`
	UUID      string             `json:"uuid,omitempty"`
	CUDA      string             `json:"cudaVersion,omitempty"` // the newest that the driver serves
	Elements  int                `json:"elements"`
	Runs      int                `json:"runs"`
	Seconds   map[string]float64 `json:"seconds"` // of each phase, of the last run
}

func newReport(elements int) *report {
	return &report{Elements: elements, Seconds: map[string]float64{}}
}

// wrongError is a sum that the GPU got wrong.
type wrongError struct {
	index, count int
	want, got    float32
}

func (e *wrongError) Error() string {
	return fmt.Sprintf("element %d is wrong: expected %v, got %v (%d elements are wrong); take the GPU out of service and look for Xid lines in dmesg",
		e.index, e.want, e.got, e.count)
}

// clock notes how long each phase took.
type clock struct {
	last    time.Time
	seconds map[string]float64
}

func (c *clock) phase(name string) {
	now := time.Now()
	c.seconds[name] = now.Sub(c.last).Seconds()
	c.last = now
}

// add runs the sample on one device and says on out what it does, in the words
// that people have grepped for since the first CUDA toolkit.
func add(out io.Writer, device string, r *report) (err error) {
	// CUDA's current context is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	c := clock{last: time.Now(), seconds: r.Seconds}
	n := r.Elements
	fmt.Fprintf(out, "[Vector addition of %d elements]\n", n)
	driver, err := cuda.Open()
	if err != nil {
		return err
	}
	r.Simulated = driver.Simulated()
	if r.CUDA, err = driver.Version(); err != nil {
		return err
	}
	d, err := driver.Find(device)
	if err != nil {
		return err
	}
	r.Device, r.UUID = d.Name, d.UUID
	c.phase("init")

	release, err := d.Use()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	c.phase("context")
	module, err := d.Load(ptx)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("vectorAdd")
	if err != nil {
		return err
	}
	c.phase("compile")

	a, b, sum := numbers(n, 1), numbers(n, 2), make([]float32, n)
	if err := compute(out, d, kernel, a, b, sum, &c); err != nil {
		return err
	}
	err = verify(a, b, sum)
	c.phase("verify")
	return err
}

func compute(out io.Writer, d *cuda.Device, kernel *cuda.Kernel, a, b, sum []float32, c *clock) (err error) {
	var memory [3]*cuda.Memory
	for i := range memory {
		m, err := d.Alloc(len(a))
		if err != nil {
			return err
		}
		// After a fault every call answers the same error: that of the fault is enough.
		defer func() { _ = m.Free() }()
		memory[i] = m
	}
	fmt.Fprintln(out, "Copy input data from the host memory to the CUDA device")
	if err := memory[0].Write(a); err != nil {
		return err
	}
	if err := memory[1].Write(b); err != nil {
		return err
	}
	c.phase("copyToDevice")

	n := int32(len(a))
	blocks := uint32((len(a) + threads - 1) / threads)
	fmt.Fprintf(out, "CUDA kernel launch with %d blocks of %d threads\n", blocks, threads)
	if err := kernel.Launch(blocks, threads, &memory[0].Address, &memory[1].Address, &memory[2].Address, &n); err != nil {
		return err
	}
	if err := d.Synchronize(); err != nil {
		return err
	}
	c.phase("kernel")
	fmt.Fprintln(out, "Copy output data from the CUDA device to the host memory")
	err = memory[2].Read(sum)
	c.phase("copyToHost")
	return err
}

// numbers are between 0 and 1, the same in each run.
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
	var wrong *wrongError
	for i := range sum {
		if want := a[i] + b[i]; sum[i] != want {
			if wrong == nil {
				wrong = &wrongError{index: i, want: want, got: sum[i]}
			}
			wrong.count++
		}
	}
	if wrong != nil {
		return wrong
	}
	return nil
}
