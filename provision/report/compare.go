package report

import (
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/provision/step"
)

// Span is the time from one step to another.
type Span struct {
	From step.ID `json:"from"`
	To   step.ID `json:"to"`
}

// DefaultSpans returns the spans that are compared by default. Some begin at the start of
// the driver: its pod becomes Ready only with the kubelet's next probe, and GPUs may be
// allocatable long before that.
func DefaultSpans() []Span {
	return []Span{
		{step.Asked, step.Allocatable}, {step.Asked, step.Validated}, {step.Asked, step.FirstResult},
		{step.Ready, step.FirstResult}, {step.DriverStarted, step.Allocatable}, {step.DriverStarted, step.Validated}, {step.DriverStarted, step.FirstResult},
		{step.DriverReady, step.Allocatable}, {step.DriverReady, step.Validated},
	}
}

// seconds returns a timeline's time from one step to the other. It returns false unless
// both steps were reached within the sample.
func (s Span) seconds(l step.Timeline) (float64, bool) {
	from, ok := l.Find(s.From)
	to, reached := l.Find(s.To)
	if !ok || !reached || to.Before || from.Before && s.From != step.Asked {
		return 0, false
	}
	return max(to.At-from.At, 0), true
}

// sample returns the time of a sample, which is that of its slowest node.
func (s Span) sample(sample Sample) (float64, bool) {
	longest, found := 0.0, false
	for _, l := range sample.Timelines {
		if d, ok := s.seconds(l); ok {
			longest, found = max(longest, d), true
		}
	}
	return longest, found
}

// Measure summarizes a span over the counted samples.
func (r *Report) Measure(s Span) Distribution {
	var all []float64
	for _, sample := range r.Counted() {
		if d, ok := s.sample(sample); ok {
			all = append(all, d)
		}
	}
	return Distribute(all)
}

// Comparison compares the samples of two reports in pairs with the same number.
type Comparison struct {
	Span
	A     Distribution `json:"a"`
	B     Distribution `json:"b"`
	Pairs int          `json:"pairs"`
	// Ratio is the median of B/A over the pairs.
	Ratio float64 `json:"ratio"`
	// Interval contains the median ratio with a probability of 95 %.
	Interval *Interval `json:"interval,omitempty"`
	// Verdict is the conclusion in words.
	Verdict string `json:"verdict"`
}

// Compare compares spans of two reports. It skips spans that one of them has not measured.
func Compare(a, b *Report, spans []Span) []Comparison {
	all := []Comparison{}
	for _, s := range spans {
		c := Comparison{Span: s, A: a.Measure(s), B: b.Measure(s)}
		if c.A.N == 0 || c.B.N == 0 {
			continue
		}
		ratios := pairRatios(a, b, s)
		c.Pairs = len(ratios)
		if len(ratios) > 0 {
			slices.Sort(ratios)
			c.Ratio = medianOf(ratios)
		}
		interval, enough := medianInterval(ratios)
		if enough {
			c.Interval = &interval
		}
		c.Verdict = describeVerdict(c, enough)
		all = append(all, c)
	}
	return all
}

// pairRatios returns B/A for each sample number that counts in both.
func pairRatios(a, b *Report, s Span) []float64 {
	secondsOf := map[int]float64{}
	for _, sample := range a.Counted() {
		if d, ok := s.sample(sample); ok && d > 0 {
			secondsOf[sample.Number] = d
		}
	}
	var ratios []float64
	for _, sample := range b.Counted() {
		d, ok := s.sample(sample)
		if first, both := secondsOf[sample.Number]; ok && both && d > 0 {
			ratios = append(ratios, d/first)
		}
	}
	return ratios
}

// describeVerdict returns the conclusion of a comparison in words. enough: there are enough
// pairs for an interval.
func describeVerdict(c Comparison, enough bool) string {
	switch {
	case !enough:
		return fmt.Sprintf("n is too small: %d pairs, and an interval needs %d", c.Pairs, leastPairs)
	case c.Interval.Low > 1:
		return fmt.Sprintf("A is faster, %.1f to %.1f times", c.Interval.Low, c.Interval.High)
	case c.Interval.High < 1:
		return fmt.Sprintf("B is faster, %.1f to %.1f times", 1/c.Interval.High, 1/c.Interval.Low)
	}
	return "no difference is shown"
}
