package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// factor is the scalar of the triad.
const factor float32 = 3

// meter measures one GPU.
type meter struct {
	*gpu
	ctx   context.Context
	r     *sample.Run
	watch *sample.Watch
	plan  sample.Plan
	n     uint64 // bytes of a copy, a multiple of 64
}

// measure measures the first GPU and, with pairs, copies between all GPUs.
func measure(ctx context.Context, r *sample.Run, bytes uint64, pairs bool) error {
	d, err := r.Open()
	if err != nil {
		return err
	}
	if bytes, err = copySize(r, d, bytes); err != nil {
		return err
	}
	r.Field("bytes", bytes)
	plan := sample.Plan{Tries: 5, Repeats: 10}
	if r.Simulated() {
		plan = sample.Plan{Tries: 1, Repeats: 1, Cold: true}
	}
	if err := measureOne(ctx, r, d, bytes, plan); err != nil || !pairs {
		return err
	}
	r.Progress(0.5, "between GPUs")
	plan.Repeats = min(plan.Repeats, 2) // eight GPUs are 56 pairs
	return measurePairs(ctx, r, d, bytes/4, plan)
}

// copySize returns the bytes of one copy. Three buffers of that size are needed at once.
func copySize(r *sample.Run, d *driver.Device, asked uint64) (uint64, error) {
	if asked == 0 {
		free, _, err := d.MemoryInfo()
		if err != nil {
			return 0, err
		}
		asked = min(usualBytes, free/8) // others may need memory, too
		if r.Simulated() {
			asked = simulatedBytes
		}
	}
	return asked / 256 * 256, nil // a quarter of it is a multiple of 64, too
}

// measureOne measures one GPU's memory and its link to the host.
func measureOne(ctx context.Context, r *sample.Run, d *driver.Device, bytes uint64, plan sample.Plan) error {
	g, err := newGPU(d)
	if err != nil {
		return err
	}
	defer g.close()
	watch, err := sample.NewWatch(d)
	if err != nil {
		return err
	}
	defer func() { _ = watch.Close() }()
	m := &meter{gpu: g, ctx: ctx, r: r, watch: watch, plan: plan, n: bytes}
	r.EndPhase("compile")
	if err := m.measureMemory(); err != nil {
		return err
	}
	r.Progress(0.3, "host link")
	return m.measureLink()
}

// measureMemory measures the device's own memory.
func (m *meter) measureMemory() error {
	var a, b, c *driver.Memory
	for _, at := range []**driver.Memory{&a, &b, &c} {
		var err error
		if *at, err = m.memory(m.n); err != nil {
			return err
		}
	}
	peak, err := memoryPeak(m.Device)
	if err != nil {
		return err
	}
	byKernel, err := m.copy(a, b, 1, func() error { return m.launchEach("copy", m.n/16, a, b, m.n/16) })
	if err != nil {
		return err
	}
	byDriver, err := m.copy(a, b, 2, func() error { return driver.CopyAsync(b, a, m.n, nil) })
	if err != nil {
		return err
	}
	m.r.EndPhase("copy")
	m.r.Figure("copy", rate(2*m.n, min(byKernel, byDriver)), "B/s", peak)
	const seedB, seedC = 3, 4
	for to, seed := range map[*driver.Memory]uint32{b: seedB, c: seedC} {
		if err := m.launch("fillWhole", m.n/4, to, m.n/4, seed); err != nil {
			return err
		}
	}
	took, err := m.watch.Best(m.ctx, m.plan, func() error { return m.launchEach("triad", m.n/16, b, c, a, factor, m.n/16) }, nil)
	if err == nil {
		err = m.checkTriad(a, m.n, seedB, seedC)
	}
	m.r.EndPhase("triad")
	if err != nil {
		return err
	}
	m.r.Figure("triad", rate(3*m.n, took), "B/s", peak)
	return nil
}

// copy times one way to copy and verifies the result.
func (m *meter) copy(from, to *driver.Memory, seed uint32, by func() error) (time.Duration, error) {
	if err := m.fill(from, m.n, seed); err != nil {
		return 0, err
	}
	took, err := m.watch.Best(m.ctx, m.plan, by, nil)
	if err != nil {
		return 0, err
	}
	return took, m.check(to, m.n, seed, "copy")
}

// measureLink measures copies between the device and pinned host memory, each way.
func (m *meter) measureLink() error {
	n := m.n / 4
	defer moveNear(pciDevices, m.PCI)()
	device, err := m.memory(n)
	if err != nil {
		return err
	}
	host, err := m.host(n)
	if err != nil {
		return err
	}
	fill(host.Bytes(), 5)
	toDevice, err := m.watch.Best(m.ctx, m.plan, func() error { return driver.CopyToDeviceAsync(device, host, n, nil) }, nil)
	if err != nil {
		return err
	}
	if err := m.check(device, n, 5, "hostToDevice"); err != nil {
		return err
	}
	// Read right after the work: an idle link may run slower.
	peak, err := linkPeak(pciDevices, m.Device)
	if err != nil {
		return err
	}
	m.r.EndPhase("hostToDevice")
	m.r.Figure("hostToDevice", rate(n, toDevice), "B/s", peak)
	clear(host.Bytes())
	if err := m.fill(device, n, 6); err != nil {
		return err
	}
	toHost, err := m.watch.Best(m.ctx, m.plan, func() error { return driver.CopyToHostAsync(host, device, n, nil) }, nil)
	if err != nil {
		return err
	}
	if count, first := check(host.Bytes(), 6); count > 0 {
		got := host.Bytes()[4*first:]
		return wordError(m.Device, "deviceToHost", count, uint64(first), hex(word(uint64(first), 6)), fmt.Sprintf("0x%02x%02x%02x%02x", got[3], got[2], got[1], got[0]))
	}
	m.r.EndPhase("deviceToHost")
	m.r.Figure("deviceToHost", rate(n, toHost), "B/s", peak)
	return nil
}

// rate returns bytes per second.
func rate(bytes uint64, took time.Duration) float64 { return float64(bytes) / took.Seconds() }
