package prefer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

// event is one step of a trace: a job of that size begins, or one ends.
type event struct {
	job  int
	size int // 0: it ends
}

// load holds the parameters of a trace.
type load struct {
	name    string
	sizes   []int
	arrival float64 // share of steps at which a job would begin if it fits
}

// loads are the usual sizes of jobs at two levels of pressure, and two harder loads: on
// a nearly full node, and with sizes that do not divide it, there is often no choice.
func loads() []load {
	return []load{
		{"idle at times", []int{1, 2, 4, 8}, 0.3},
		{"busy", []int{1, 2, 4, 8}, 0.5},
		{"nearly full", []int{1, 2, 4, 8}, 0.7},
		{"busy, with threes", []int{1, 2, 3, 4}, 0.5},
	}
}

// trace draws that many steps. At each step a job begins if enough GPUs are free, or
// else a random one ends. This does not depend on where jobs are placed, so every
// policy gets the same requests.
func trace(seed uint64, gpus, steps int, l load) []event {
	r := rand.New(rand.NewPCG(seed, 1))
	var events, running []event
	for free, job := gpus, 0; len(events) < steps; {
		size := l.sizes[r.IntN(len(l.sizes))]
		if r.Float64() < l.arrival {
			if size <= free {
				job++
				free -= size
				running = append(running, event{job, size})
				events = append(events, event{job, size})
			}
			continue
		}
		if len(running) > 0 {
			i := r.IntN(len(running))
			free += running[i].size
			events = append(events, event{job: running[i].job})
			running = slices.Delete(running, i, i+1)
		}
	}
	return events
}

// links holds which GPUs are linked: over NVLink where the node has it, else through
// PCIe switches alone.
type links [][]bool

func linked(s gpu.Snapshot) links {
	nvlink := slices.ContainsFunc(s.Links, func(l gpu.Link) bool { return l.Kind == gpu.LinkNVLink })
	at := map[gpu.UUID]int{}
	m := make(links, len(s.Devices))
	for i, d := range s.Devices {
		at[d.UUID], m[i] = i, make([]bool, len(s.Devices))
	}
	for _, l := range s.Links {
		if l.Kind == gpu.LinkNVLink || !nvlink && l.Kind >= gpu.LinkMultiple {
			m[at[l.A]][at[l.B]], m[at[l.B]][at[l.A]] = true, true
		}
	}
	return m
}

// fullyLinked reports whether each two GPUs of a set are linked.
func (m links) fullyLinked(set []int) bool {
	for i, a := range set {
		for _, b := range set[:i] {
			if !m[a][b] {
				return false
			}
		}
	}
	return true
}

// isCounted reports whether the event is a request for 2 or 4 GPUs.
func (e event) isCounted() bool { return e.size == 2 || e.size == 4 }

// replay returns how many of the requests for 2 and 4 GPUs get fully linked GPUs.
func (m links) replay(events []event, choose func(free []int, size int) []int) int {
	owner := make([]int, len(m))
	served := 0
	for _, e := range events {
		var free []int
		for i, job := range owner {
			if job == e.job {
				owner[i] = 0
			}
			if owner[i] == 0 {
				free = append(free, i)
			}
		}
		if e.size == 0 {
			continue
		}
		chosen := choose(free, e.size)
		for _, i := range chosen {
			owner[i] = e.job
		}
		if e.isCounted() && m.fullyLinked(chosen) {
			served++
		}
	}
	return served
}

// choosePreferred chooses as a Chooser does.
func choosePreferred(s gpu.Snapshot) func(free []int, size int) []int {
	c, at := chooser(s), places(s)
	return func(free []int, size int) []int {
		got, err := c.Prefer(gpus(free...), nil, size)
		if err != nil {
			panic(err)
		}
		return indexes(at, got)
	}
}

// bestEffort chooses as the reference does. It is for up to 8 GPUs: with more
// it takes seconds to minutes for one request.
func bestEffort(s gpu.Snapshot) func(free []int, size int) []int {
	list, at, policy := allocatable(s), places(s), gpuallocator.NewBestEffortPolicy()
	return func(free []int, size int) []int {
		var available []*gpuallocator.Device
		for _, i := range free {
			available = append(available, list[i])
		}
		got := indexes(at, uuids(policy.Allocate(available, nil, size)))
		for _, i := range free { // the kubelet adds devices if these are too few
			if len(got) < size && !slices.Contains(got, i) {
				got = append(got, i)
			}
		}
		return got
	}
}

func places(s gpu.Snapshot) map[string]int {
	at := map[string]int{}
	for i, d := range s.Devices {
		at[string(d.UUID)] = i
	}
	return at
}

func indexes(at map[string]int, ids []string) []int {
	var out []int
	for _, id := range ids {
		out = append(out, at[id])
	}
	return out
}

// contended are the machines on which not every GPU is linked to every other: on the
// others no choice can be wrong.
func contended(n int) []machine {
	return slices.DeleteFunc(machines(n), func(m machine) bool { return linked(m.node).block() == n })
}

// It compares 1,000-step traces with an oracle. The node of four alternating models is
// left out: few of its GPUs are linked at all, more jobs ask for them than there are,
// and the oracle serves those that end soon. BenchmarkTraces prints its results.
func TestJobsGetLinkedGPUs(t *testing.T) {
	for _, n := range []int{8, 16} {
		for _, m := range contended(n) {
			if m.name == "mixed" {
				continue
			}
			for _, l := range loads()[:2] {
				t.Run(fmt.Sprintf("%d/%s/%s", n, m.name, l.name), func(t *testing.T) {
					t.Parallel()
					events, graph := trace(1, n, 1000, l), linked(m.node)
					served, most := graph.replay(events, choosePreferred(m.node)), graph.oracle(events)
					require.LessOrEqual(t, served, most)
					require.GreaterOrEqual(t, float64(served), 0.98*float64(most), "of %d requests", most)
				})
			}
		}
	}
}

// BenchmarkTraces prints, for each machine and load, the share of the requests
// for 2 and 4 GPUs that get fully linked ones: ours, go-gpuallocator's
// best-effort policy's, and the oracle's.
func BenchmarkTraces(b *testing.B) {
	for _, n := range []int{8, 16} {
		for _, m := range contended(n) {
			for _, l := range loads() {
				b.Run(fmt.Sprintf("%d/%s/%s", n, m.name, l.name), func(b *testing.B) {
					for b.Loop() {
						compare(b, m.node, l)
					}
				})
			}
		}
	}
}

func compare(b *testing.B, s gpu.Snapshot, l load) {
	graph := linked(s)
	asked, got, theirs, most := 0, 0, 0, 0
	for seed := range uint64(5) {
		events := trace(seed, len(graph), 1000, l)
		for _, e := range events {
			if e.isCounted() {
				asked++
			}
		}
		got += graph.replay(events, choosePreferred(s))
		most += graph.oracle(events)
		if len(graph) <= 8 {
			theirs += graph.replay(events, bestEffort(s))
		}
	}
	report := func(n, of int, unit string) { b.ReportMetric(100*float64(n)/float64(max(of, 1)), unit) }
	report(got, asked, "%ours")
	report(most, asked, "%oracle")
	report(got, most, "%of-oracle")
	if len(graph) <= 8 {
		report(theirs, asked, "%best-effort")
	}
}
