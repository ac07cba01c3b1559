package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"
)

// goal holds limits for the median and the 99th percentile; 0 means no limit.
type goal struct{ median, p99 float64 }

// zero is a limit of 0.
const zero = math.SmallestNonzeroFloat64

// within returns a goal for durations.
func within(median, p99 time.Duration) goal { return goal{median.Seconds(), p99.Seconds()} }

const columns = "%-82s %6s %10s %10s %10s %10s %10s\n"

func header(w io.Writer) {
	fmt.Fprintf(w, columns, "seconds, unless a row names another unit", "runs", "min", "median", "p99", "goal", "p99 goal")
}

// show prints one row of times.
func show(name string, samples []time.Duration, g goal) {
	row(os.Stdout, name, inSeconds(samples), 6, g)
}

// count prints one row of numbers other than times, with the given decimals.
func count(name string, samples []float64, decimals int, g goal) {
	row(os.Stdout, name, samples, decimals, g)
}

func row(w io.Writer, name string, samples []float64, decimals int, g goal) {
	if len(samples) == 0 {
		return
	}
	at := quantiles(samples)
	cells(w, name, len(samples), [3]float64{at(0), at(0.5), at(0.99)}, decimals, g)
}

// quantiles returns a function for the quantiles of the samples, between 0 and 1.
func quantiles(samples []float64) func(q float64) float64 {
	samples = slices.Sorted(slices.Values(samples))
	return func(q float64) float64 { return samples[int(q*float64(len(samples)-1)+0.5)] }
}

// difference prints how much longer one thing takes than another, for the minimum, the median and
// the 99th percentile.
func difference(name string, with, without []time.Duration, g goal) {
	a, b := quantiles(inSeconds(with)), quantiles(inSeconds(without))
	cells(os.Stdout, name, len(with), [3]float64{a(0) - b(0), a(0.5) - b(0.5), a(0.99) - b(0.99)}, 6, g)
}

func inSeconds(samples []time.Duration) []float64 {
	var seconds []float64
	for _, s := range samples {
		seconds = append(seconds, s.Seconds())
	}
	return seconds
}

func cells(w io.Writer, name string, runs int, values [3]float64, decimals int, g goal) {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
	limit := func(v float64) string {
		if v == 0 {
			return ""
		}
		return "≤ " + number(v)
	}
	fmt.Fprintf(w, columns, name, strconv.Itoa(runs), number(values[0]), number(values[1]), number(values[2]), limit(g.median), limit(g.p99))
}

// leaveOut prints why a row is missing.
func leaveOut(name string, err error) { fmt.Printf("%-82s left out: %v\n", name, err) }
