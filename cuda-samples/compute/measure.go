package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

var (
	//go:embed fp32.ptx
	fp32PTX string
	//go:embed bf16_sm80.ptx
	bf16PTX string
)

const threads = 256 // in a block

// Steps of one launch: about two milliseconds on a large GPU. With bf16Steps every sum is a
// whole number below 2^20: 16 products of at most 9 in each step. fp32 holds 24 bits, so tensor cores
// add exactly, even those that drop lower bits, and results can be compared bit for bit.
const (
	fp32Steps      = 32768
	bf16Steps      = 4096
	simulatedSteps = 64
)

// measurement describes how fp32 or bf16 is measured: kernel, arguments and peak.
type measurement struct {
	name, ptx string
	arguments []any // of the kernel, between out and steps
	steps     int
	work      float64                       // operations of a thread in a step: a multiply-add is two
	reference func(steps int) [lanes]uint32 // the expected result of each thread of a warp (lane), the same in every warp
	peak      float64                       // FLOP/s, 0: unknown
}

// measurements returns both measurements with the device's peaks, also for a device without
// bf16.
func measurements(r *sample.Run, d *driver.Device) (fp32, bf16 measurement, err error) {
	processors, err := d.Attribute(driver.Multiprocessors)
	if err != nil {
		return fp32, bf16, err
	}
	kHz, err := d.Attribute(driver.ClockRate)
	if err != nil {
		return fp32, bf16, err
	}
	// Each of a thread's chains takes two multiply-adds in a step.
	fp32 = measurement{name: "fp32", ptx: fp32PTX, arguments: []any{step, spread}, steps: fp32Steps,
		work: chains * 2 * 2, reference: fp32Reference}
	// A warp multiplies rows × columns tiles in a step, each in 16 × 8 × 16 multiply-adds.
	bf16 = measurement{name: "bf16", ptx: bf16PTX, steps: bf16Steps,
		work: rows * columns * 16 * 8 * 16 * 2 / lanes, reference: bf16Reference}
	fp32.peak, bf16.peak = peaks(d.Name, capability(10*d.Major+d.Minor), float64(processors), float64(kHz)*1000)
	if r.Simulated() {
		fp32.steps, bf16.steps = simulatedSteps, simulatedSteps
	}
	return fp32, bf16, nil
}

// measureThroughput measures fp32 and bf16 as wanted. On a device without bf16 it leaves bf16
// out with a note, or returns NotPossible if nothing else is wanted.
func measureThroughput(ctx context.Context, r *sample.Run, isWanted func(string) bool) error {
	d, err := r.Open()
	if err != nil {
		return err
	}
	fp32, bf16, err := measurements(r, d)
	if err != nil {
		return err
	}
	if isWanted("fp32") {
		if err := fp32.measure(ctx, r, d); err != nil {
			return err
		}
	}
	switch lacksBF16 := d.Major < 8; {
	case !isWanted("bf16"):
		return nil
	case lacksBF16 && !isWanted("fp32"):
		return sample.NotPossible("bf16: tensor cores take it from compute capability 8.0 on; this device has %s", d.Capability())
	case lacksBF16:
		r.Note("bf16: left out: tensor cores take it from compute capability 8.0 on; this device has %s", d.Capability())
		return nil
	}
	if isWanted("fp32") {
		r.Progress(0.5, "bf16")
	}
	return bf16.measure(ctx, r, d)
}

// measure runs the kernel repeatedly, verifies each result and reports the best rate.
func (m measurement) measure(ctx context.Context, r *sample.Run, d *driver.Device) error {
	module, err := d.LoadModule(m.ptx)
	if err != nil {
		return err
	}
	// After a fault every call returns the fault's error, which is reported already; so the
	// errors of releasing are ignored.
	defer func() { _ = module.Close() }()
	kernel, err := module.Kernel(m.name)
	if err != nil {
		return err
	}
	blocks, err := m.blocks(r, d, kernel)
	if err != nil {
		return err
	}
	r.EndPhase("compile") // by LoadModule
	want := m.reference(m.steps)
	r.EndPhase("reference")
	out, err := d.Alloc(uint64(blocks) * threads * 4)
	if err != nil {
		return err
	}
	defer func() { _ = out.Free() }()
	watch, err := sample.NewWatch(d)
	if err != nil {
		return err
	}
	defer func() { _ = watch.Close() }()

	shape := driver.Shape{Grid: driver.Dim{X: uint32(blocks)}, Block: driver.Dim{X: threads}}
	arguments := append(append([]any{out}, m.arguments...), int32(m.steps))
	got := make([]uint32, blocks*threads)
	// Fifty launches take 0.1 to 0.2 s: long enough for the clock of an idle GPU to rise.
	plan := sample.Plan{Tries: 50, Repeats: 1}
	if r.Simulated() {
		plan = sample.Plan{Tries: 1, Repeats: 1, Cold: true}
	}
	best, err := watch.Best(ctx, plan, func() error { return kernel.Launch(shape, arguments...) }, func() error {
		if err := driver.Read(got, out, 0); err != nil {
			return err
		}
		return m.verify(got, want)
	})
	r.EndPhase(m.name)
	if err != nil {
		return err
	}
	r.Figure(m.name, m.work*float64(m.steps)*float64(len(got))/best.Seconds(), "FLOP/s", m.peak)
	return nil
}

// blocks returns how many blocks the device holds at once, or two on a simulated device,
// where each costs time.
func (m measurement) blocks(r *sample.Run, d *driver.Device, kernel *driver.Kernel) (int, error) {
	if r.Simulated() {
		return 2, nil
	}
	processors, err := d.Attribute(driver.Multiprocessors)
	if err != nil {
		return 0, err
	}
	resident, err := kernel.ResidentBlocks(threads)
	if err == nil && resident == 0 {
		err = fmt.Errorf("%s: a multiprocessor has no room for a block of %d threads", m.name, threads)
	}
	return processors * resident, err
}

// verify compares each thread's result with that of its lane.
func (m measurement) verify(got []uint32, want [lanes]uint32) error {
	wrong := sample.WrongError{Of: "results"}
	for i, v := range got {
		if v == want[i%lanes] {
			continue
		}
		if wrong.Count++; wrong.Count <= sample.MaxListed {
			wrong.Wrong = append(wrong.Wrong, sample.Wrong{Index: []int{i}, Pattern: m.name,
				Want: fmt.Sprintf("0x%08x", want[i%lanes]), Got: fmt.Sprintf("0x%08x", v)})
		}
	}
	if wrong.Count == 0 {
		return nil
	}
	wrong.What = fmt.Sprintf("%s: the result of thread %d", m.name, wrong.Wrong[0].Index[0])
	return &wrong
}
