package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

//go:embed memtest.ptx
var ptx string

const threads = 256 // of a block

// tester is the state of a run.
type tester struct {
	*area
	r       *sample.Run
	d       *driver.Device
	kernels map[string]*driver.Kernel // by name
	blocks  uint32                    // of a launch, at most
	log     *log                      // bad words that the kernels of this step found
	bad     *bad                      // all bad words so far
	mirror  []uint32                  // the host's copy of a chunk; nil: the host does not verify
}

// test tests memory with all chosen patterns. A bad word does not end it; only a full list of bad
// words does. Its error names some of them.
func test(ctx context.Context, r *sample.Run, d *driver.Device, o options) error {
	t := &tester{r: r, d: d, kernels: map[string]*driver.Kernel{}, bad: newBad()}
	module, err := d.LoadModule(ptx)
	if err != nil {
		return err
	}
	defer func() { _ = module.Close() }()
	for _, name := range []string{"write", "verify", "turn"} {
		if t.kernels[name], err = module.Kernel(name); err != nil {
			return err
		}
	}
	processors, err := d.Attribute(driver.Multiprocessors)
	if err != nil {
		return err
	}
	t.blocks = uint32(processors) * 8
	r.EndPhase("compile")
	want, err := testSize(d, o)
	if err != nil {
		return err
	}
	if t.area, err = allocate(d, want); err != nil {
		return err
	}
	defer t.free()
	if t.log, err = newLog(d); err != nil {
		return err
	}
	defer func() { _ = t.log.host.Free() }()
	if o.host {
		t.mirror = make([]uint32, t.chunks[0].Size/4)
	}
	r.Field("bytes", t.size)
	r.Printf("Test of %d bytes of memory at %#x\n", t.size, t.chunks[0].Address)
	r.EndPhase("allocate")
	return t.run(ctx, planSteps(o))
}

// testSize returns the number of bytes to test.
func testSize(d *driver.Device, o options) (uint64, error) {
	if o.bytes > 0 {
		return uint64(o.bytes), nil
	}
	free, _, err := d.MemoryInfo()
	return uint64(float64(free) * o.share), err
}

// plannedStep is a step with the title of its test.
type plannedStep struct {
	step
	title string
}

// planSteps returns the steps of the tests that --patterns chooses.
func planSteps(o options) []plannedStep {
	var plan []plannedStep
	for _, t := range tests {
		if len(o.patterns) > 0 && !slices.Contains(o.patterns, t.name) {
			continue
		}
		for _, s := range t.steps(o.seed) {
			plan = append(plan, plannedStep{s, t.title})
		}
	}
	return plan
}

// run runs the steps, and prints and returns the bad words that they found.
func (t *tester) run(ctx context.Context, plan []plannedStep) error {
	for i, p := range plan {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.r.Progress(float64(i)/float64(len(plan)), fmt.Sprintf("%s, %d bad words so far", p.title, len(t.bad.words)))
		if err := t.runStep(p); err != nil {
			return fmt.Errorf("%s: %w", p.title, err)
		}
		if t.bad.full() {
			t.r.Note("%d bad words are enough: the rest of the test is left out", len(t.bad.words))
			break
		}
		if i+1 == len(plan) || plan[i+1].title != p.title { // the last step of a test
			t.r.EndPhase(phaseName(p.title))
		}
	}
	err := t.bad.err(t.area)
	if wrong, ok := errors.AsType[*sample.WrongError](err); ok {
		for _, w := range wrong.Wrong {
			t.r.Printf("%s (offset %d): expected %s, got %s by %s; bits that differ: %v\n", w.Address, w.Offset, w.Want, w.Got, w.Pattern, w.Bits)
		}
	}
	return err
}

// runStep runs one step over all memory.
func (t *tester) runStep(p plannedStep) error {
	record := t.bad.recorder(p.title)
	const vector = 16 // bytes: a kernel reads or writes four words at once
	err := t.each(func(m *driver.Memory, first uint64) error {
		arguments := []any{m, m.Size / vector, first, p.kind, p.seed, p.invert}
		if p.kernel != "write" {
			arguments = append(arguments, t.log.host)
			// Before the launch, since turn changes the words.
			if err := t.compare(m, first, p.pattern, record); err != nil {
				return err
			}
		}
		blocks := min(t.blocks, uint32((m.Size/vector+threads-1)/threads))
		return t.kernels[p.kernel].Launch(driver.Shape{Grid: driver.Dim{X: blocks}, Block: driver.Dim{X: threads}}, arguments...)
	})
	if err != nil {
		return err
	}
	if err := t.d.Synchronize(); err != nil {
		return err
	}
	t.log.drain(record)
	return nil
}

// compare copies a chunk to the host and records the words that are wrong there. It does nothing
// unless the host verifies, too.
func (t *tester) compare(m *driver.Memory, first uint64, p pattern, record func(address uint64, want, got uint32)) error {
	if t.mirror == nil {
		return nil
	}
	mirror := t.mirror[:m.Size/4]
	if err := driver.Read(mirror, m, 0); err != nil {
		return err
	}
	for i, got := range mirror {
		at := m.Address + 4*uint64(i)
		if want := p.word(first+uint64(i), at); got != want && !t.bad.full() {
			record(at, want, got)
		}
	}
	return nil
}

// phaseName returns the name of a test's phase in the report: "walking ones" becomes "walkingOnes".
func phaseName(title string) string {
	words := strings.Fields(title)
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}
