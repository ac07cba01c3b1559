package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func none(string) string { return "" }

// start runs a sample that calls run.
func start(t *testing.T, args []string, run func(context.Context, *Run) error) (stdout, stderr string, exit int) {
	t.Helper()
	var out, log bytes.Buffer
	exit = Sample{Name: "try", Run: run}.Start(t.Context(), args, none, &out, &log)
	return out.String(), log.String(), exit
}

func TestExitCodes(t *testing.T) {
	wrong := Elements{What: "product element"}
	wrong.Add(1.5, float32(2), 3, 4)
	for _, c := range []struct {
		err    error
		exit   int
		stderr string
	}{
		{nil, 0, ""},
		{errors.New("cuInit: error 999"), 1, "try: cuInit: error 999\n"},
		{errors.Join(errors.New("one"), errors.New("two")), 1, "try: one; two\n"},
		{wrong.Err(), 3, "try: product element 3, 4 is wrong: expected 1.5, got 2 (1 element is wrong); next: take the GPU out of service and look for Xid lines in dmesg\n"},
		{context.Canceled, 4, "try: context canceled\n"},
		{NotPossible("this needs %d", 8), 5, "try: this needs 8\n"},
	} {
		stdout, stderr, exit := start(t, nil, func(context.Context, *Run) error { return c.err })
		require.Equal(t, c.exit, exit)
		require.Equal(t, c.stderr, stderr)
		if c.err == nil {
			require.Equal(t, "Test PASSED\nDone\n", stdout)
		} else {
			require.Equal(t, "Test FAILED\n", stdout)
		}
	}
}

func TestReportHoldsTheSamplesFields(t *testing.T) {
	for _, flag := range []string{"--json", "-ojson"} {
		stdout, stderr, exit := start(t, []string{flag}, func(_ context.Context, r *Run) error {
			r.Printf("for people\n")
			r.EndPhase("work")
			r.Field("elements", 7)
			r.Field("sides", []int{1, 2})
			r.Figure("copy", 3e12, "B/s", 4e12)
			r.Peer(Peer{From: "GPU-a", To: "GPU-b", Access: true, Value: 5, Unit: "B/s"})
			r.Note("bf16 is left out")
			e := Elements{}
			for i := range 20 {
				e.Add(i, i+1, i)
			}
			return e.Err()
		})
		require.Equal(t, 3, exit)
		require.Equal(t, "try: element 0 is wrong: expected 0, got 1 (20 elements are wrong); next: take the GPU out of service and look for Xid lines in dmesg\n", stderr)
		var r Report
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.Contains(t, r.Seconds, "work")
		require.Equal(t, []Figure{{"copy", 3e12, "B/s", 4e12}}, r.Figures)
		require.Equal(t, []Peer{{"GPU-a", "GPU-b", true, 5, "B/s"}}, r.Peers)
		require.Equal(t, []string{"bf16 is left out"}, r.Notes)
		require.Len(t, r.Wrong, MaxListed, "the first ones are named")
		require.Equal(t, 20, r.WrongCount)
		require.Equal(t, 1, r.Runs)
		var own struct {
			Elements int   `json:"elements"`
			Sides    []int `json:"sides"`
		}
		require.NoError(t, json.Unmarshal([]byte(stdout), &own))
		require.Equal(t, 7, own.Elements)
		require.Equal(t, []int{1, 2}, own.Sides)
	}
}

// Programs decide by the driver's number, not by the sentence.
func TestReportHasTheDriversCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{&driver.Error{Call: "cuDevicePrimaryCtxRetain", Code: 46, Name: "CUDA_ERROR_DEVICE_UNAVAILABLE"}, 46},
		{errors.Join(fmt.Errorf("device 0: %w", &driver.Error{Call: "cuMemAlloc", Code: driver.OutOfMemory}), errors.New("and more")), 2},
		{errors.New("error 46"), 0},
		{nil, 0},
	} {
		stdout, _, _ := start(t, []string{"--json"}, func(context.Context, *Run) error { return c.err })
		var r struct{ Code int }
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.Equal(t, c.code, r.Code, c.err)
	}
}

// One run gives both: lines for people and a report for programs.
func TestReportFileIsWrittenBesideTheText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	stdout, stderr, exit := start(t, []string{"--report", path}, func(_ context.Context, r *Run) error {
		r.Printf("for people\n")
		return errors.New("cuInit: error 999")
	})
	require.Equal(t, 1, exit)
	require.Equal(t, "for people\nTest FAILED\n", stdout)
	require.Equal(t, "try: cuInit: error 999\n", stderr)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal(data, &r))
	require.Equal(t, "cuInit: error 999", r.Error)

	_, stderr, exit = start(t, []string{"--report", filepath.Dir(path)}, func(context.Context, *Run) error { return nil })
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, "try: --report: ")
}

func TestFiguresForPeople(t *testing.T) {
	for want, f := range map[string]Figure{
		"copy: 3103.0 GB/s, 93 % of the peak of 3350.0 GB/s": {"copy", 3.103e12, "B/s", 3.35e12},
		"bf16: 612.3 TFLOP/s":                                {"bf16", 6.123e14, "FLOP/s", 0},
		"fp32: n/a (simulated)":                              {"fp32", 0, "FLOP/s", 0},
	} {
		require.Equal(t, want, f.String())
	}
}

// A run that hangs is abandoned. The report has what it did before.
func TestHangingRunIsAbandoned(t *testing.T) {
	free, ended := make(chan struct{}), make(chan struct{})
	stdout, stderr, exit := start(t, []string{"--timeout", "50ms", "--json"}, func(_ context.Context, r *Run) error {
		defer close(ended)
		r.EndPhase("compile")
		<-free
		r.EndPhase("kernel")
		r.Printf("nobody hears this\n")
		return nil
	})
	close(free)
	<-ended
	require.Equal(t, 4, exit)
	require.Contains(t, stderr, "try: no result in time; ")
	var r Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Contains(t, r.Seconds, "compile")
	require.NotContains(t, r.Seconds, "kernel")
}

func TestRepeatStopsAtTheFirstFailure(t *testing.T) {
	runs := 0
	stdout, _, exit := start(t, []string{"--for", "1h", "--every", "0s"}, func(_ context.Context, r *Run) error {
		runs++
		r.Printf("run %d\n", runs)
		if runs == 3 {
			return errors.New("the GPU has fallen off the bus")
		}
		return nil
	})
	require.Equal(t, 1, exit)
	require.Equal(t, 3, runs)
	require.Equal(t, "run 1\nTest FAILED\n", stdout, "the lines are those of the first run")
}

func TestFlagsComeFromTheEnvironmentUnlessGiven(t *testing.T) {
	var elements int
	s := Sample{
		Name:  "try",
		About: "Tries.",
		Flags: func(f *pflag.FlagSet) { f.IntVar(&elements, "max-elements", 5, "how many") },
		Check: func() error {
			if elements < 1 {
				return fmt.Errorf("--max-elements is %d: it must be positive", elements)
			}
			return nil
		},
		Run: func(context.Context, *Run) error { return nil },
	}
	for _, c := range []struct {
		args           []string
		env            string
		elements, exit int
		stderr         string
	}{
		{nil, "", 5, 0, ""},
		{nil, "6", 6, 0, ""},
		{[]string{"--max-elements", "7"}, "6", 7, 0, ""},
		{nil, "-1", -1, 2, "try: --max-elements is -1: it must be positive; see try --help\n"},
		{nil, "many", 0, 2, `try: environment variable TRY_MAX_ELEMENTS, for --max-elements: "many" is not a number`},
	} {
		var out, log bytes.Buffer
		env := func(name string) string { return map[string]string{"TRY_MAX_ELEMENTS": c.env}[name] }
		require.Equal(t, c.exit, s.Start(t.Context(), c.args, env, &out, &log))
		require.Equal(t, c.elements, elements)
		require.Contains(t, log.String(), c.stderr)
	}
	var out bytes.Buffer
	require.Zero(t, s.Start(t.Context(), []string{"-h"}, none, &out, &out))
	require.Contains(t, out.String(), "how many [TRY_MAX_ELEMENTS] (default 5)")
}

func TestProgress(t *testing.T) {
	var lines bytes.Buffer
	p := newProgress("try", &lines)
	p.end()
	for _, share := range []float64{0, 0.05, 0.31, 0.33, 1} {
		p.show(share, "summing")
	}
	p.end()
	require.Equal(t, "try: 0 %, summing\ntry: 31 %, summing\ntry: 100 %, summing\n", lines.String(), "a line for each tenth that is new")

	lines.Reset()
	p.terminal = true
	p.show(0.5, "")
	p.show(0.55, "summing")
	p.end()
	require.Equal(t, "\r\x1b[Ktry: 50 %\r\x1b[Ktry: 55 %, summing\r\x1b[K", lines.String(), "one line, and at the end none")
}
