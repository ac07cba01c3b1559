package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/provision/step"
	"github.com/gpuready/gpuready/test/lab/golden"
)

// sample returns a Sample with a node that was Ready after ready, had GPUs after
// allocatable and a result after result seconds.
func sample(number int, ready, allocatable, result float64) Sample {
	return Sample{Number: number, Outcome: Complete, WarmUp: number == 1, Timelines: []step.Timeline{{Node: "n", Steps: []step.Reached{
		{Step: step.Asked}, {Step: step.Registered, Before: true}, {Step: step.Ready, At: ready, Took: ready}, {Step: step.Allocatable, At: allocatable, Took: allocatable - ready},
		{Step: step.Validated, At: result + 1, Took: result + 1 - allocatable}, {Step: step.FirstResult, At: result, Took: result - allocatable},
	}}}}
}

func sampleReport(name string, factor float64) *Report {
	r := &Report{
		Schema: Schema, Notice: "SIMULATED: made up for a test", Stack: name, Test: "reset", Tool: "v1", Began: time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC),
		Cluster: Cluster{Version: "v1.37.1", Nodes: 1, Kubelet: "v1.37.1", Runtime: "containerd://2.4.2", System: "Debian", Kernel: "6.1"},
		Samples: []Sample{sample(1, 20*factor, 30*factor, 40*factor)},
	}
	for i := range 8 {
		f := factor * (1 + float64(i)/10)
		r.Samples = append(r.Samples, sample(i+2, 1*f, 4*f, 5*f))
	}
	return r
}

// requireGolden compares the output with a file of testdata.
func requireGolden(t *testing.T, name string, write func(io.Writer) error) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(&b))
	golden.Require(t, "testdata/"+name, b.String())
}

func TestReportMatchesGoldenFiles(t *testing.T) {
	a, b := sampleReport("ours", 1), sampleReport("theirs", 6)
	a.Samples = append(a.Samples, Sample{Number: 10, Outcome: TimedOut, Reason: "no node came within 5s", Gaps: []Gap{{1, 31}}})
	a.Ended = "interrupted in sample 11"
	a.Jumps = []Jump{{At: a.Began, By: -3600}}
	requireGolden(t, "report.txt", a.Text)
	requireGolden(t, "report.csv", a.CSV)
	requireGolden(t, "compare.txt", func(w io.Writer) error { return CompareText(w, a, b, Compare(a, b, DefaultSpans())) })
	requireGolden(t, "history.txt", func(w io.Writer) error {
		return HistoryText(w, []string{"a.json", "b.json"}, []*Report{a, b})
	})
}

// Browsers read pictures and pages: they have to be well-formed and to escape markup.
func TestPicturesAndPagesAreWellFormed(t *testing.T) {
	a, b := sampleReport(`<script>alert("x")</script>`, 1), sampleReport("theirs", 6)
	a.Notice += " <b>"
	for name, write := range map[string]func(io.Writer) error{
		"picture": a.SVG,
		"page":    func(w io.Writer) error { return Page(w, a) },
		"pages":   func(w io.Writer) error { return Page(w, a, b) },
		"empty":   func(w io.Writer) error { return Page(w, &Report{Schema: Schema}) },
	} {
		var out bytes.Buffer
		require.NoError(t, write(&out), name)
		require.NotContains(t, out.String(), "<script", name)
		text := out.String()
		if name != "picture" { // of HTML that is no XML
			text = strings.NewReplacer("<!DOCTYPE html>", "", `<meta charset="utf-8">`, "", `<meta name="viewport" content="width=device-width, initial-scale=1">`, "").Replace(text)
		}
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
	}
	require.Error(t, (&Report{}).SVG(io.Discard))
}

func TestWrittenReportIsReadBack(t *testing.T) {
	a := sampleReport("ours", 1)
	var b bytes.Buffer
	require.NoError(t, a.Write(&b))
	back, err := Read(&b, "file")
	require.NoError(t, err)
	require.Equal(t, a, back)
	for text, want := range map[string]string{
		``:               "not a report",
		`{"schema":"x"}`: `schema is "x"`,
		`{"schema":"` + Schema + `","samples":[{"outcome":"maybe"}]}`:                                                       "unknown outcome",
		`{"schema":"` + Schema + `","samples":[{"outcome":"complete","timelines":[{"steps":[{"step":"x"}]}]}]}`:             "unknown step",
		`{"schema":"` + Schema + `","samples":[{"outcome":"complete","timelines":[{"steps":[{"step":"ready","at":-1}]}]}]}`: "negative",
	} {
		_, err := Read(strings.NewReader(text), "file")
		require.ErrorContains(t, err, want)
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, sampleReport("ours", 1).Write(&b))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data), "file")
		if err != nil {
			return
		}
		for _, write := range []func(io.Writer) error{r.Text, r.CSV, func(w io.Writer) error { return Page(w, r, r) }} {
			require.NoError(t, write(io.Discard))
		}
		Compare(r, r, DefaultSpans())
	})
}

// The interval has to contain the median as often as documented.
func TestIntervalContainsTheMedian(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{6, 7, 10, 30, 100} {
		const rounds = 4000
		held := 0
		for range rounds {
			values := make([]float64, n)
			for i := range values {
				values[i] = random.ExpFloat64() // whose median is ln 2
			}
			slices.Sort(values)
			in, enough := medianInterval(values)
			require.True(t, enough)
			if in.Low <= 0.693147 && in.High >= 0.693147 {
				held++
			}
		}
		require.Greater(t, float64(held)/rounds, 0.945, "n = %d", n)
	}
	_, enough := medianInterval([]float64{1, 2, 3, 4, 5})
	require.False(t, enough)
}

func TestQuantiles(t *testing.T) {
	var values []float64
	for i := 20; i > 0; i-- {
		values = append(values, float64(i))
	}
	require.Equal(t, Distribution{N: 20, Min: 1, P50: 10.5, P95: 19, Max: 20}, Distribute(values))
	require.Equal(t, Distribution{N: 1, Min: 7, P50: 7, P95: 7, Max: 7}, Distribute([]float64{7}))
	require.Equal(t, Distribution{}, Distribute(nil))
}
