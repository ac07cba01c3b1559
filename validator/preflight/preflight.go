// Package preflight finds out within seconds whether the GPUs of a node are healthy,
// correct, and as fast as they should be. It reads NVML, runs the CUDA samples on all GPUs
// at once, and judges the results by thresholds and by earlier results of the node.
package preflight

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/step"
)

// Options configure a preflight.
type Options struct {
	Node     check.Node
	Host     string // the node's name, for the report
	Version  string
	Table    Thresholds
	Find     func(sample string) string // the path of a sample; "" where there is none
	Timeout  time.Duration              // of the whole preflight
	Progress func(phase string)
}

// reserved is the part of the time reserved for the last reading and the report.
const reserved = 500 * time.Millisecond

// readTime is ample time to read a driver whose GPUs are initialised.
const readTime = 2 * time.Second

// Run runs a preflight. If the driver is not proven, or the node has no GPU, the result is
// empty and the outcome holds the reason.
func Run(ctx context.Context, o Options) (Result, check.Outcome) {
	start := time.Now()
	var snapshot gpu.Snapshot
	o.Progress("reading the driver")
	d, outcome := step.CheckDriver(ctx, o.Node, func(ctx context.Context, n check.Node) (check.Reading, error) {
		o.Node = n // with the driver root that was found
		r, err := probe.Read(ctx, n)
		snapshot = r.Snapshot
		return r, err
	})
	if outcome.Kind != check.Passed {
		return Result{}, outcome
	}
	r := o.newResult(d)
	r.Time, r.Notes = start.UTC(), outcome.Notes

	w := watchNVML(ctx, o.Node)
	b := bench{o: o, driver: d, watch: w, start: start, nearCPUs: nearCPUs(o.Node.Root, d.Units()), nodes: nodeCPUs(o.Node.Root)}
	if late := time.Since(start) - readTime; late > 0 {
		b.start = start.Add(late)
		r.Notes = append(r.Notes, fmt.Sprintf("NVML took %.1f s to begin, for which the samples were given more time: see that nvidia-persistenced runs", (late+readTime).Seconds()))
	}
	seen := Observations{Snapshot: snapshot, OnDemand: d.OnDemand}
	seen.Runs = b.run(ctx)
	o.Progress("judging")
	seen.Readings, seen.Events, seen.EventsError = w.stopAndRead()
	if slices.ContainsFunc(seen.Events, driverDecides) {
		again, cancel := context.WithTimeout(ctx, readTime)
		if now, err := probe.Read(again, o.Node); err == nil { // without an answer the XIDs count
			seen.After = now.Snapshot
		}
		cancel()
	}
	if s, err := o.Node.State(nodestate.DevicePlugin); err == nil && s.DevicePlugin != nil {
		seen.Recorded, seen.RecorderGone = s.DevicePlugin.Faults, nodestate.CheckHeld(o.Node.StatePath(nodestate.DevicePlugin)) != nil
	}
	Judge(&r, seen, o.Table)
	r.Notes = slices.DeleteFunc(r.Notes, func(note string) bool { return hasFinding(r, note) })
	r.Seconds = time.Since(start).Round(time.Millisecond).Seconds()
	return r, outcome
}

// hasFinding reports whether a note of the driver's check is about a GPU with a finding, which
// is more precise.
func hasFinding(r Result, note string) bool {
	return slices.ContainsFunc(r.GPUs, func(g GPU) bool {
		return len(g.Findings) > 0 && strings.HasPrefix(note, fmt.Sprintf("GPU %s (%s", g.Index, g.UUID))
	})
}

// newResult returns a result that lists all devices, without findings.
func (o Options) newResult(d check.Driver) Result {
	r := Result{
		Schema: ResultSchema, Node: o.Host, Version: o.Version,
		Simulated: d.Info.Simulated, Driver: d.Info.Version, CUDA: d.Info.CUDAVersion,
	}
	slots := readSlots(o.Node.Root)
	for _, g := range d.GPUs {
		one := GPU{
			Index: fmt.Sprint(g.Index), UUID: g.UUID, Product: g.Product, PCI: g.PCI,
			Slot: slots.find(g.PCI), Port: readPort(o.Node.Root, g.PCI), Compute: g.Compute.String(),
		}
		r.GPUs = append(r.GPUs, one)
		for _, m := range g.MIG {
			part := one
			part.Port = nil
			part.Index, part.UUID, part.Parent, part.Profile = fmt.Sprintf("%d:%d", g.Index, m.Index), m.UUID, g.UUID, m.Profile
			r.GPUs = append(r.GPUs, part)
		}
	}
	return r
}

// bench runs the samples.
type bench struct {
	o        Options
	driver   check.Driver
	watch    *nvmlWatch
	start    time.Time
	nearCPUs map[gpu.UUID][]int // the processors of the device's NUMA node, where that is known
	nodes    [][]int            // the processors of each NUMA node
}

const numaNodes = "/sys/devices/system/node" // Documentation/ABI/stable/sysfs-devices-node

// nearCPUs returns the processors of each device's NUMA node.
func nearCPUs(root *host.Root, units []check.Unit) map[gpu.UUID][]int {
	all := map[gpu.UUID][]int{}
	for _, u := range units {
		if u.GPU.NUMANode >= 0 {
			if cpus := readCPUs(root, fmt.Sprintf("node%d", u.GPU.NUMANode)); cpus != nil {
				all[u.UUID] = cpus
			}
		}
	}
	return all
}

// nodeCPUs returns the processors of each NUMA node that has some.
func nodeCPUs(root *host.Root) (all [][]int) {
	names, _ := root.Names(numaNodes)
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, "node"); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			if cpus := readCPUs(root, name); cpus != nil {
				all = append(all, cpus)
			}
		}
	}
	return all
}

// readCPUs returns the processors of a NUMA node, nil if it has none.
func readCPUs(root *host.Root, node string) []int {
	list, err := root.ReadFile(path.Join(numaNodes, node, "cpulist"), 4096)
	if err != nil {
		return nil
	}
	return probe.ParseCPUs(string(list))
}

// run runs the phases one after the other, each on all devices at once, so that only equal
// load disturbs a measurement. A device without a result delays the others for no longer
// than the phase's share of the time, and is left out of the next phases.
func (b bench) run(ctx context.Context) []SampleRun {
	var runs []SampleRun
	units := b.driver.Units()
	hung, wrong := map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
	b.watch.setLoaded(true)
	defer b.watch.setLoaded(false)
	for _, p := range phases {
		b.o.Progress(p.name)
		end := b.start.Add(time.Duration(float64(b.o.Timeout)*p.endBy) - reserved)
		if p.peers {
			runs = append(runs, b.peers(ctx, p, units, wrong, end)...)
			continue
		}
		var group sync.WaitGroup
		all := make([][]SampleRun, len(units))
		for i, u := range units {
			if !hung[u.UUID] {
				group.Go(func() { all[i] = b.runPhase(ctx, p, u, end) })
			}
		}
		group.Wait()
		if p.link {
			b.remeasureLinks(ctx, p, units, all, end)
		}
		for _, list := range all {
			for _, r := range list {
				hung[r.Device] = hung[r.Device] || r.Outcome == probe.SampleNoResult
				wrong[r.Device] = wrong[r.Device] || r.Outcome != probe.SamplePassed && r.Outcome != probe.SampleImpossible
			}
			runs = append(runs, list...)
		}
	}
	return runs
}

// runPhase runs the samples of a phase on one device, until one gives no result.
func (b bench) runPhase(ctx context.Context, p phase, u check.Unit, end time.Time) []SampleRun {
	var runs []SampleRun
	for _, name := range p.samples {
		r := SampleRun{Sample: name, Device: u.UUID, SampleResult: b.runSample(ctx, name, p.args, []gpu.UUID{u.UUID}, b.nearCPUs[u.UUID], end)}
		runs = append(runs, r)
		if r.Outcome == probe.SampleNoResult {
			break
		}
	}
	return runs
}

// remeasureLinks measures GPUs whose link to the host missed its limit once more, one after the
// other. Links may share a switch, or the host's memory may be slower than all links
// together, which is no GPU's fault. Nor is memory that was far from the GPU: where nobody knows the GPU's NUMA
// node, as in some virtual machines, it is measured from one node after the other.
func (b bench) remeasureLinks(ctx context.Context, p phase, units []check.Unit, all [][]SampleRun, end time.Time) {
	for i, u := range units {
		from := [][]int{b.nearCPUs[u.UUID]}
		if from[0] == nil && len(b.nodes) > 1 {
			from = b.nodes
		}
		if len(units) == 1 && len(from) == 1 || len(all[i]) != 1 || all[i][0].Outcome != probe.SamplePassed || b.driver.Info.Simulated {
			continue
		}
		g := GPU{
			UUID: u.UUID, Product: u.GPU.Product, PCI: u.GPU.PCI, Compute: u.GPU.Compute.String(), Port: readPort(b.o.Node.Root, u.GPU.PCI),
			Condition: b.watch.lastCondition(u.GPU.UUID), link: hostLinkOf(b.watch.readingsSoFar(), u.GPU.UUID),
		}
		for _, cpus := range from {
			if u.UUID.IsMIG() || !HostLinkMissed(g, all[i][0].Answer.Figures, b.o.Table) {
				break
			}
			if again := b.runSample(ctx, p.samples[0], quickBandwidth, []gpu.UUID{u.UUID}, cpus, end); again.Outcome == probe.SamplePassed {
				MergeHostLink(&all[i][0].Answer, again.Answer)
			}
		}
	}
}

// peers runs a sample once on all GPUs that can have peers. MIG devices have none, and a
// GPU that failed before would make the others look slow.
func (b bench) peers(ctx context.Context, p phase, units []check.Unit, wrong map[gpu.UUID]bool, end time.Time) []SampleRun {
	var ids []gpu.UUID
	for _, u := range units {
		if !u.UUID.IsMIG() && !wrong[u.UUID] {
			ids = append(ids, u.UUID)
		}
	}
	if len(ids) < 2 {
		return nil
	}
	var runs []SampleRun
	for _, name := range p.samples {
		runs = append(runs, SampleRun{Sample: name, SampleResult: b.runSample(ctx, name, p.args, ids, nil, end)})
	}
	return runs
}

// runSample runs a sample on cpus, nil: on any.
func (b bench) runSample(ctx context.Context, name string, args func(bool) []string, ids []gpu.UUID, cpus []int, end time.Time) probe.SampleResult {
	j := probe.SampleJob{Name: name, Path: b.o.Find(name), Devices: ids, CPUs: cpus, LibDirs: b.driver.LibDirs, Timeout: time.Until(end)}
	if args != nil {
		j.Args = args(b.driver.Info.Simulated)
	}
	return probe.RunSample(ctx, j)
}
