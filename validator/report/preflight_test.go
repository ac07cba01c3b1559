package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/validator/preflight"
	"github.com/gpuready/gpuready/validator/probe"
)

// newResult returns the result of a preflight of h100-sxm machines, 4 GPUs each, the last
// divided by MIG, modified by change.
func newResult(t *testing.T, simulated bool, change func(s *preflight.Observations, r *preflight.Result)) preflight.Result {
	node := gputest.Node("h100-sxm", 5)
	node.Devices[4] = gputest.WithMIG(node.Devices[4], "3g.40gb", "1g.10gb")
	s := preflight.Observations{Snapshot: node, Readings: []preflight.Reading{{Loaded: true, Conditions: map[gpu.UUID]gpu.Condition{}}}}
	r := preflight.Result{
		Schema: preflight.ResultSchema, Simulated: simulated, Node: "node-1", Version: "v1.2.3", Driver: "580.95.05", CUDA: "13.0",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 8.4,
	}
	passed := true
	for i, d := range node.Devices {
		g := preflight.GPU{Index: string(rune('0' + i)), UUID: d.UUID, Product: d.Product, PCI: d.PCI, Slot: string(rune('1' + i)), Compute: d.Compute.String()}
		g.Port = &preflight.Port{MaxGeneration: 5, MaxWidth: 16, Above: &preflight.Link{Generation: 5, Width: 16}}
		r.GPUs = append(r.GPUs, g)
		c := gpu.Condition{PCIe: gpu.PCIe{Generation: 5, MaxGeneration: 5, Width: 16, MaxWidth: 16}}
		c.NVLinks.Up = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
		if d.MIGEnabled {
			c.NVLinks.Up = nil
		}
		s.Readings[0].Conditions[d.UUID] = c
		ids := []gpu.UUID{d.UUID}
		if d.MIGEnabled {
			ids = nil
		}
		for k, m := range d.MIG {
			part := g
			part.Port = nil
			part.Index, part.UUID, part.Parent, part.Profile = g.Index+":"+string(rune('0'+k)), m.UUID, d.UUID, m.Profile
			r.GPUs = append(r.GPUs, part)
			ids = append(ids, m.UUID)
		}
		for _, id := range ids {
			figure := func(name, unit string, value, peak float64) probe.Figure {
				if simulated {
					value, peak = 0, 0
				}
				return probe.Figure{Name: name, Unit: unit, Value: value, Peak: peak}
			}
			run := func(name string, figures ...probe.Figure) {
				s.Runs = append(s.Runs, preflight.SampleRun{Sample: name, Device: id, SampleResult: probe.SampleResult{
					Outcome: probe.SamplePassed, Elapsed: 300 * time.Millisecond,
					Answer: probe.SampleAnswer{Passed: &passed, Simulated: simulated, UUID: string(id), Figures: figures},
				}})
			}
			off := float64(i) * 1e10
			run("vectoradd")
			run("bandwidth", figure("copy", "B/s", 3.1e12+off, 3.35e12), figure("triad", "B/s", 3.0e12+off, 3.35e12), figure("hostToDevice", "B/s", 55e9, 0))
			run("memtest")
			run("compute", figure("fp32", "FLOP/s", 61e12, 0), figure("bf16", "FLOP/s", 640e12, 0))
		}
	}
	answer := probe.SampleAnswer{Passed: &passed, Simulated: simulated, UUID: string(node.Devices[0].UUID)}
	for _, a := range node.Devices[:4] {
		for _, b := range node.Devices[:4] {
			if a.UUID != b.UUID {
				p := probe.Peer{From: a.UUID, To: b.UUID, Access: true, Unit: "B/s", Value: 392e9}
				if simulated {
					p.Value = 0
				}
				answer.Peers = append(answer.Peers, p)
			}
		}
	}
	s.Runs = append(s.Runs, preflight.SampleRun{Sample: "bandwidth", SampleResult: probe.SampleResult{Outcome: probe.SamplePassed, Answer: answer}})
	if change != nil {
		change(&s, &r)
	}
	table, err := preflight.EmbeddedThresholds()
	require.NoError(t, err)
	preflight.Judge(&r, s, table)
	return r
}

// sick adds observations for every kind of finding.
func sick(s *preflight.Observations, r *preflight.Result) {
	last := s.Readings[0].Conditions
	c := last[gputest.GPU(0)]
	c.Throttle = []gpu.Throttle{gpu.ThrottlePowerCap, gpu.ThrottleHeat}
	c.ECC = gpu.ECC{On: true, Volatile: 2, Aggregate: 5}
	last[gputest.GPU(0)] = c
	s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 79}}
	for i := range s.Runs {
		run := &s.Runs[i]
		switch {
		case run.Device == "":
			for k := range run.Answer.Peers {
				if p := &run.Answer.Peers[k]; p.From == gputest.GPU(3) || p.To == gputest.GPU(3) {
					p.Value = 120e9
				}
			}
		case run.Device == gputest.GPU(2) && run.Sample == "memtest":
			run.Outcome = probe.SampleWrong
			run.Answer.Wrong = []probe.WrongValue{{Address: "0x7f0000001000", Want: "0xffffffff", Got: "0xfffffffe", Pattern: "walking ones"}}
		case run.Device == gputest.GPU(3) && run.Sample == "bandwidth":
			run.Answer.Figures[0].Value = 2.0e12
		case run.Device == gputest.GPU(3) && run.Sample == "compute":
			run.Outcome, run.Message = probe.SampleNoResult, "no result in 1.2s"
		}
	}
	r.GPUs[3].Slot = "3 (PCIe Slot 3)"
}

// hostile adds markup and escape sequences to all texts of other programs.
func hostile(s *preflight.Observations, r *preflight.Result) {
	const text = "<script>alert(1)</script>\" onload=\"x\x1b[2J\n&amp;"
	r.Node, r.Driver, r.CUDA, r.Version = text, text, text, text
	r.Notes = []string{text}
	for i := range r.GPUs {
		r.GPUs[i].Product, r.GPUs[i].Slot = text, text
	}
	for i := range s.Runs {
		s.Runs[i].Answer.Notes = []string{text}
		for k := range s.Runs[i].Answer.Figures {
			s.Runs[i].Answer.Figures[k].Name = text
		}
		if s.Runs[i].Sample == "memtest" {
			s.Runs[i].Outcome = probe.SampleWrong
			s.Runs[i].Message = text
			s.Runs[i].Answer.Wrong = []probe.WrongValue{{Address: text, Want: text, Got: text, Pattern: text}}
		}
	}
}

func TestGolden(t *testing.T) {
	for name, r := range map[string]preflight.Result{
		"passed":    newResult(t, false, nil),
		"sick":      newResult(t, false, sick),
		"simulated": newResult(t, true, nil),
		"past": newResult(t, false, func(s *preflight.Observations, _ *preflight.Result) {
			s.Runs = s.Runs[:4]
		}),
	} {
		if name == "past" {
			for i := range r.GPUs[0].Figures {
				f := &r.GPUs[0].Figures[i]
				f.Last, f.Best = f.Value*1.02, f.Value*1.1
			}
		}
		for format, write := range map[string]func(*bytes.Buffer) error{
			"text":  func(b *bytes.Buffer) error { return WritePreflight(b, r, "text", false) },
			"color": func(b *bytes.Buffer) error { return WritePreflight(b, r, "text", true) },
			"json":  func(b *bytes.Buffer) error { return WritePreflight(b, r, "json", false) },
			"junit": func(b *bytes.Buffer) error { return WritePreflight(b, r, "junit", false) },
			"html":  func(b *bytes.Buffer) error { return WritePreflightHTML(b, r) },
		} {
			t.Run(name+"."+format, func(t *testing.T) {
				var b bytes.Buffer
				require.NoError(t, write(&b))
				if format == "json" && name != "past" {
					condensed := condense(t, b.Bytes())
					b.Reset()
					b.WriteString(condensed)
				}
				golden.Require(t, filepath.Join("testdata/preflight", name+"."+format), b.String())
			})
		}
	}
}

// condense returns JSON with one line for each object that holds no other, so that a reader
// sees a run or a figure at once. past.json is what the program prints, byte for byte.
func condense(t *testing.T, text []byte) string {
	t.Helper()
	require.True(t, json.Valid(text))
	return leaf.ReplaceAllStringFunc(string(text), func(object string) string {
		var b bytes.Buffer
		require.NoError(t, json.Compact(&b, []byte(object)))
		return b.String()
	})
}

// leaf matches an object, or a list of numbers or texts, that spans lines. A brace in a text
// does not end a line.
var leaf = regexp.MustCompile(`(?m)(\{\n(?:[^{}\[\]\n]*\n)*? *\}|\[\n(?:[^{}\[\]\n]*\n)*? *\])`)

func TestTheSickOneIsNamed(t *testing.T) {
	r := newResult(t, false, sick)
	require.Equal(t, preflight.Unhealthy, r.Verdict)
	verdicts := []preflight.Verdict{}
	for _, g := range r.GPUs {
		verdicts = append(verdicts, g.Verdict)
	}
	require.Equal(t, []preflight.Verdict{preflight.Unhealthy, preflight.Unhealthy, preflight.Wrong, preflight.Slow, preflight.OK, preflight.OK, preflight.OK}, verdicts)
}

func TestTheHeadlineCountsGPUs(t *testing.T) {
	of := func(verdicts ...preflight.Verdict) preflight.Result {
		r := preflight.Result{Verdict: preflight.OK}
		for i, v := range verdicts {
			r.GPUs = append(r.GPUs, preflight.GPU{UUID: gputest.GPU(i), Verdict: v})
			r.Verdict = preflight.Worse(r.Verdict, v)
		}
		return r
	}
	ok := preflight.OK
	mig := of(ok, preflight.Slow, preflight.Wrong, ok)
	mig.GPUs[1].Parent, mig.GPUs[2].Parent = mig.GPUs[0].UUID, mig.GPUs[0].UUID
	node := of(ok, ok)
	node.Verdict = preflight.NotRun
	for want, r := range map[string]preflight.Result{
		"4 of 8 GPUs bad: 2 unhealthy, 1 wrong, 1 slow": of(ok, preflight.Unhealthy, ok, preflight.Wrong, preflight.Slow, preflight.Unhealthy, ok, preflight.NotRun),
		"1 of 1 GPU bad: 1 slow":                        of(preflight.Slow),
		"1 of 2 GPUs bad: 1 wrong":                      mig,
		"1 of 3 GPUs not fully tested":                  of(ok, preflight.NotRun, ok),
		"0 of 2 GPUs bad; the node: not run":            node,
		"8 of 8 GPUs ok":                                of(ok, ok, ok, ok, ok, ok, ok, ok),
		"1 of 1 GPU ok":                                 of(ok),
	} {
		require.Equal(t, want, countBad(r))
	}
}

// A section without content tells nothing.
func TestThePageHasNoEmptySection(t *testing.T) {
	for _, r := range []preflight.Result{newResult(t, false, nil), newResult(t, false, sick), newResult(t, true, nil), {Verdict: preflight.OK, Node: "empty"}} {
		var page bytes.Buffer
		require.NoError(t, WritePreflightHTML(&page, r))
		require.NotRegexp(t, `</h2>\s*(<h2|</section|</body|<svg[^>]*>\s*</svg)`, page.String())
		require.NotContains(t, page.String(), "<ul>\n</ul>")
	}
}

func TestHostileTextStaysText(t *testing.T) {
	r := newResult(t, false, hostile)
	var page, lines bytes.Buffer
	require.NoError(t, WritePreflightHTML(&page, r))
	require.NotContains(t, page.String(), "<script")
	require.NotContains(t, page.String(), `onload="`)
	require.NotContains(t, page.String(), "\x1b")
	wellFormed(t, strings.NewReplacer("<!doctype html>", "", `<meta charset="utf-8">`, "", `initial-scale=1">`, `initial-scale=1"/>`, `'unsafe-inline'">`, `'unsafe-inline'"/>`).Replace(page.String()))
	require.NoError(t, WritePreflight(&lines, r, "text", false))
	require.NotContains(t, lines.String(), "\x1b")
	lines.Reset()
	require.NoError(t, WritePreflight(&lines, r, "junit", false))
	wellFormed(t, lines.String())
	lines.Reset()
	require.NoError(t, WritePreflight(&lines, r, "json", false))
	require.True(t, json.Valid(lines.Bytes()))
	require.ErrorContains(t, WritePreflight(&lines, r, "yaml", false), "text, json, junit")
}

func TestThePageLoadsNothing(t *testing.T) {
	var page bytes.Buffer
	require.NoError(t, WritePreflightHTML(&page, newResult(t, false, sick)))
	for _, word := range []string{"http://", "https://", "url(", "@import", "src=", "href=", "<script"} {
		require.NotContains(t, page.String(), word)
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); err != nil {
			require.EqualError(t, err, "EOF")
			return
		}
	}
}
