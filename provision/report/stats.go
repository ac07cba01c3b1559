package report

import (
	"math"
	"slices"

	"github.com/gpuready/gpuready/provision/step"
)

// Distribution summarizes times, in seconds.
type Distribution struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"` // by nearest rank: the largest of fewer than 20
	Max float64 `json:"max"`
}

// Distribute returns the Distribution of values.
func Distribute(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Distribution{N: len(sorted), Min: sorted[0], P50: medianOf(sorted), P95: sorted[quantileRank(len(sorted), 0.95)-1], Max: sorted[len(sorted)-1]}
}

// medianOf returns the middle of sorted values, or the mean of the two in the middle.
func medianOf(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantileRank returns the nearest rank of a quantile among n values, from 1.
func quantileRank(n int, q float64) int {
	return min(max(int(math.Ceil(q*float64(n)-1e-9)), 1), n)
}

// Row summarizes a step over all counted samples.
type Row struct {
	Step step.ID      `json:"step"`
	At   Distribution `json:"at"`   // since the request for GPUs
	Took Distribution `json:"took"` // since the last step before it
	// Share is the fraction of all samples' time that this step took; 0 for a step that a
	// workload does not wait for.
	Share float64 `json:"share"`
	// Late is the largest time by which the step may have happened earlier.
	Late float64 `json:"late,omitempty"`
}

// timelines returns the timelines of all counted samples.
func (r *Report) timelines() []step.Timeline {
	var all []step.Timeline
	for _, s := range r.Counted() {
		all = append(all, s.Timelines...)
	}
	return all
}

// Rows summarizes each step that some counted sample reached.
func (r *Report) Rows() []Row {
	lines := r.timelines()
	total := 0.0
	for _, l := range lines {
		total += l.Total()
	}
	var rows []Row
	for _, s := range step.Steps() {
		row := Row{Step: s.ID}
		var at, took []float64
		for _, l := range lines {
			reached, ok := l.Find(s.ID)
			if !ok || reached.Before {
				continue
			}
			at, took = append(at, reached.At), append(took, reached.Took)
			row.Late = max(row.Late, reached.Late)
			if !s.Aside && total > 0 {
				row.Share += reached.Took / total
			}
		}
		if len(at) == 0 || s.ID == step.Asked {
			continue
		}
		row.At, row.Took = Distribute(at), Distribute(took)
		rows = append(rows, row)
	}
	return rows
}

// Totals summarizes the total times of the counted samples.
func (r *Report) Totals() Distribution {
	var all []float64
	for _, s := range r.Counted() {
		all = append(all, s.Total())
	}
	return Distribute(all)
}

// Typical returns the timeline with the median total; false where no sample counts.
func (r *Report) Typical() (step.Timeline, bool) {
	lines := r.timelines()
	if len(lines) == 0 {
		return step.Timeline{}, false
	}
	slices.SortStableFunc(lines, func(a, b step.Timeline) int {
		switch {
		case a.Total() < b.Total():
			return -1
		case a.Total() > b.Total():
			return 1
		}
		return 0
	})
	return lines[(len(lines)-1)/2], true
}

// Interval is a confidence interval of a median.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// leastPairs is the minimum number of pairs for a 95 % interval of a median. With five, the
// smallest and the largest value enclose the median in only 94 of 100 cases.
const leastPairs = 6

// medianInterval returns the narrowest interval between order statistics that contains the
// median with a probability of at least 95 %, for any distribution. It returns false for
// too few values.
func medianInterval(sorted []float64) (Interval, bool) {
	n := len(sorted)
	switch {
	case n < leastPairs:
		return Interval{}, false
	case n > 1000: // by the normal distribution, since 2⁻ⁿ underflows
		k := int((float64(n) - 1.96*math.Sqrt(float64(n))) / 2)
		return Interval{sorted[k-1], sorted[n-k]}, true
	}
	// Below is the probability that at most k of n values lie below the median.
	below, term, k := 0.0, math.Pow(0.5, float64(n)), 0
	for ; k < n/2; k++ {
		if below+term > 0.025 {
			break
		}
		below += term
		term *= float64(n-k) / float64(k+1)
	}
	return Interval{sorted[k-1], sorted[n-k]}, true
}
