package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARowShowsSamplesAndGoals(t *testing.T) {
	var b strings.Builder
	header(&b)
	row(&b, "many", []float64{0.3, 0.1, 0.2}, 6, within(120*time.Millisecond, 2*time.Second))
	row(&b, "one, MB", []float64{18.84}, 1, goal{median: 18})
	row(&b, "none", []float64{1}, 0, goal{median: zero})
	row(&b, "no goal", []float64{1, 2}, 0, goal{})
	row(&b, "nothing", nil, 0, goal{})
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(strings.ReplaceAll(line, "≤ ", "≤")))
	}
	require.Equal(t, [][]string{
		{"seconds,", "unless", "a", "row", "names", "another", "unit", "runs", "min", "median", "p99", "goal", "p99", "goal"},
		{"many", "3", "0.100000", "0.200000", "0.300000", "≤0.120000", "≤2.000000"},
		{"one,", "MB", "1", "18.8", "18.8", "18.8", "≤18.0"},
		{"none", "1", "1", "1", "1", "≤0"},
		{"no", "goal", "2", "1", "2", "2"},
	}, got)
}

func TestSizesOfAProcessAreRead(t *testing.T) {
	const status = "Name:\tx\nVmHWM:\t   18360 kB\nRssAnon:\t    3412 kB\nThreads:\t9\n"
	bytes, err := field(status, "VmHWM")
	require.NoError(t, err)
	require.InDelta(t, 18360*1024, bytes, 0)
	_, err = field(status, "Vm")
	require.ErrorContains(t, err, "has no Vm")
	_, err = field("VmHWM:\tmuch\n", "VmHWM")
	require.Error(t, err)
}

func TestValuesOfABenchmarkAreRead(t *testing.T) {
	const out = "pkg: x\nBenchmarkPass/5000_ready_nodes-2 \t 64\t 17252112 ns/op\t 11.5 cpu-ms/op\nBenchmarkPass/5000_ready_nodes-2 \t 60\t 1 ns/op\t 12 cpu-ms/op\n" +
		"BenchmarkPass/100_ready_nodes \t 2000\t 1 ns/op\t 0.5 cpu-ms/op\nBenchmarkPass/odd \t 2000\t much cpu-ms/op\nPASS\n"
	values, err := benchmarkValues(out, "BenchmarkPass/5000_ready_nodes", "cpu-ms/op")
	require.NoError(t, err)
	require.Equal(t, []float64{11.5, 12}, values)
	values, err = benchmarkValues(out, "BenchmarkPass/100_ready_nodes", "cpu-ms/op")
	require.NoError(t, err)
	require.Equal(t, []float64{0.5}, values)
	_, err = benchmarkValues(out, "BenchmarkPass/100_ready_nodes", "MB-kept")
	require.ErrorContains(t, err, "MB-kept")
	_, err = benchmarkValues(out, "BenchmarkPass/odd", "cpu-ms/op")
	require.ErrorContains(t, err, "much")
}

func TestAnUnknownPartIsNamed(t *testing.T) {
	require.ErrorContains(t, (&bench{}).run(t.Context(), []string{"lunch"}), `--part "lunch": there are start, host-driver, allocate, preferred,`)
}
