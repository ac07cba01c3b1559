package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/validator/check"
)

func passedOutcome(l readiness.Layer, summary string, simulated bool) check.Outcome {
	o := check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05", Simulated: simulated}, GPUs: 2, Summary: summary})
	o.Layer, o.Elapsed = l, 123*time.Millisecond
	return o
}

func report(outcomes ...check.Outcome) Report {
	return Report{Node: "node-1", Version: "v1.2.3", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Outcomes: outcomes}
}

func reports() map[string]Report {
	good := func(simulated bool) []check.Outcome {
		out := []check.Outcome{
			passedOutcome(readiness.Driver, "2 × NVIDIA H200, driver 580.95.05, CUDA 13.0", simulated),
			passedOutcome(readiness.Toolkit, "2 CDI names of kind k8s.gpuready.io/gpu resolve", simulated),
			passedOutcome(readiness.CUDA, "vectorAdd on 2 of 2 GPUs, slowest 0.03 s", simulated),
			passedOutcome(readiness.Plugin, "nvidia.com/gpu: 2 allocatable, 0 allocated", simulated),
		}
		out[2].Proof.Seconds = map[gpu.UUID]float64{"GPU-a": 0.03, "GPU-b": 0.025}
		out[3].Proof.Resources = map[string]int{"nvidia.com/gpu": 2}
		return out
	}
	failed := good(true)
	failed[0].Notes = []string{"GPU 1 (GPU-b, 0000:3b:00.0) is not usable: GPULost: fell off the bus"}
	failed[1] = check.Fail("CDINameUnresolvable", `no spec has "k8s.gpuready.io/gpu=GPU-a" & <more>`, "see the log of gpu-toolkit")
	failed[1].Layer, failed[1].Elapsed = readiness.Toolkit, 1500*time.Millisecond
	for _, i := range []int{2, 3} {
		l := failed[i].Layer
		failed[i] = check.Outcome{Layer: l, Kind: check.NotRun, NotReady: &readiness.NotReady{Reason: check.ReasonNotRun, Message: "not run: toolkit is not ready (CDINameUnresolvable)", Action: "see toolkit"}}
	}
	var absent []check.Outcome
	for _, l := range readiness.Layers() {
		absent = append(absent, check.Outcome{Layer: l, Kind: check.Absent, NotReady: &readiness.NotReady{Reason: check.ReasonNoGPU, Message: "no NVIDIA GPU and no driver: nothing to prove on this node"}})
	}
	asked := good(false)
	for _, l := range readiness.Optional() {
		o := check.Outcome{Layer: l, Kind: check.NotWanted, NotReady: &readiness.NotReady{Reason: check.ReasonNotWanted, Message: "not asked for", Action: "to have it checked, say --optional " + string(l)}}
		if l == readiness.GDS {
			o = passedOutcome(l, "nvidia_fs is loaded and has its devices, version 2.26.6", false)
		}
		asked = append(asked, o)
	}
	return map[string]Report{
		"optional": report(asked...),
		"passed":   report(good(false)...), "simulated": report(good(true)...), "failed": report(failed...), "absent": report(absent...),
	}
}

func TestReportsMatchTheGoldenFiles(t *testing.T) {
	for name, r := range reports() {
		for _, format := range append(Formats(), "color") {
			t.Run(name+"."+format, func(t *testing.T) {
				var b bytes.Buffer
				if format == "color" {
					require.NoError(t, r.Write(&b, "text", true))
				} else {
					require.NoError(t, r.Write(&b, format, false))
				}
				golden.Require(t, filepath.Join("testdata", name+"."+format), b.String())
			})
		}
	}
}

func TestAnUnknownFormatIsAnError(t *testing.T) {
	require.ErrorContains(t, Report{}.Write(&bytes.Buffer{}, "html", false), `unknown format "html" (known here: text, json, junit)`)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestAWriteErrorIsReturned(t *testing.T) {
	for _, format := range Formats() {
		require.ErrorContains(t, reports()["failed"].Write(full{}, format, false), "disk full")
	}
}

// Whatever the messages contain, the files can be parsed, and their counts agree with their
// content.
func TestAnyReportCanBeParsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var outcomes []check.Outcome
		for _, l := range readiness.Layers() {
			o := check.Fail("Some", rapid.String().Draw(t, "message"), rapid.String().Draw(t, "action"))
			o.Kind = rapid.SampledFrom([]check.Kind{check.Failed, check.NotRun, check.Absent}).Draw(t, "kind")
			if rapid.Bool().Draw(t, "passes") {
				o = check.NewPass(readiness.Proof{Summary: rapid.String().Draw(t, "summary")}, rapid.String().Draw(t, "note"))
			}
			o.Layer, o.Elapsed = l, time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "elapsed"))
			outcomes = append(outcomes, o)
		}
		r := report(outcomes...)
		var b bytes.Buffer
		require.NoError(t, r.Write(&b, "junit", false))
		var parsed suites
		require.NoError(t, xml.Unmarshal(b.Bytes(), &parsed))
		require.Len(t, parsed.Suites, 1)
		s := parsed.Suites[0]
		failures, skipped := 0, 0
		for _, c := range s.Cases {
			_, err := strconv.ParseFloat(c.Time, 64)
			require.NoError(t, err)
			if c.Failure != nil {
				failures++
			}
			if c.Skipped != nil {
				skipped++
			}
		}
		require.Equal(t, []int{len(s.Cases), failures, skipped}, []int{s.Tests, s.Failures, s.Skipped})
		require.Equal(t, []int{parsed.Tests, parsed.Failures, parsed.Skipped}, []int{s.Tests, s.Failures, s.Skipped})

		b.Reset()
		require.NoError(t, r.Write(&b, "json", false))
		var d runJSON
		decoder := json.NewDecoder(&b)
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&d))
		require.Equal(t, r.Result(), d.Result)
	})
}

func TestANodeWhoseGPUsAreForVirtualMachinesHasPassed(t *testing.T) {
	none := check.NoGPU("nothing to prove")
	none.Layer = readiness.Driver
	vfio := check.NewPass(readiness.Proof{GPUs: 2, Summary: "2 of 2 GPUs are bound to vfio-pci"})
	mofed := check.NewPass(readiness.Proof{Summary: "nothing to drive"})
	require.Equal(t, "PASSED", report(none, vfio).Result())
	require.Equal(t, "NO GPU", report(none, mofed).Result())
}
