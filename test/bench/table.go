package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"
)

// goal is what the median and the 99th percentile must not exceed; 0: anything.
type goal struct{ median, p99 float64 }

// within is a goal in time.
func within(median, p99 time.Duration) goal { return goal{median.Seconds(), p99.Seconds()} }

const columns = "%-66s %6s %10s %10s %10s %10s %10s\n"

func header(w io.Writer) {
	fmt.Fprintf(w, columns, "seconds, unless a row names another unit", "runs", "min", "median", "p99", "goal", "p99 goal")
}

// show prints one row of times.
func show(name string, samples []time.Duration, g goal) {
	var seconds []float64
	for _, s := range samples {
		seconds = append(seconds, s.Seconds())
	}
	row(os.Stdout, name, seconds, 6, g)
}

// count prints one row of numbers that are no times, with so many decimals.
func count(name string, samples []float64, decimals int, g goal) {
	row(os.Stdout, name, samples, decimals, g)
}

func row(w io.Writer, name string, samples []float64, decimals int, g goal) {
	if len(samples) == 0 {
		return
	}
	samples = slices.Sorted(slices.Values(samples))
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
	at := func(q float64) string { return number(samples[int(q*float64(len(samples)-1)+0.5)]) }
	limit := func(v float64) string {
		if v == 0 {
			return ""
		}
		return "≤ " + number(v)
	}
	fmt.Fprintf(w, columns, name, strconv.Itoa(len(samples)), at(0), at(0.5), at(0.99), limit(g.median), limit(g.p99))
}

// leaveOut says why a row is not there.
func leaveOut(name string, err error) { fmt.Printf("%-66s left out: %v\n", name, err) }
