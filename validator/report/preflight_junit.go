package report

import (
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/validator/preflight"
)

// writePreflightJUnit writes a class for each device, with a case for its health, each sample and each
// figure.
func writePreflightJUnit(w io.Writer, r preflight.Result) error {
	s := junitSuite{Name: "gpu-validator preflight", Node: r.Node, Time: r.Time, Properties: [][2]string{
		{"result", r.Word()}, {"version", r.Version}, {"driver", r.Driver},
	}}
	for _, g := range r.GPUs {
		s.Cases = append(s.Cases, deviceCases(g, r.Simulated)...)
	}
	node := junitCase{Name: "node", Class: clean(r.Node), Out: strings.Join(r.Notes, "\n")}
	s.Cases = append(s.Cases, withFailure(node, r.Findings))
	return s.writeXML(w)
}

func deviceCases(g preflight.GPU, sim bool) []junitCase {
	class := clean(g.Name())
	of := func(sample, figure string) []preflight.Finding {
		var list []preflight.Finding
		for _, f := range g.Findings {
			if f.Sample == sample && f.Figure == figure {
				list = append(list, f)
			}
		}
		return list
	}
	all := []junitCase{withFailure(junitCase{Name: "health", Class: class, Out: strings.Join(g.Notes, "\n")}, of("", ""))}
	for _, run := range g.Runs {
		c := junitCase{Name: clean(run.Sample), Class: class, Elapsed: time.Duration(run.Seconds * float64(time.Second))}
		all = append(all, withFailure(c, of(run.Sample, "")))
	}
	for _, f := range g.Figures {
		c := junitCase{Name: clean(f.Name), Class: class}
		switch {
		case sim:
			c.Skipped = simulatedText
		case f.Value == 0:
			c.Skipped = "not measured"
		default:
			c.Out = describeMeasured(f)
		}
		all = append(all, withFailure(c, of("", f.Name)))
	}
	if list := of("", "peer"); len(list) > 0 {
		all = append(all, withFailure(junitCase{Name: "peer", Class: class}, list))
	}
	return all
}

// withFailure turns findings into a failure: the first reason, all messages.
func withFailure(c junitCase, list []preflight.Finding) junitCase {
	var messages, actions []string
	for _, f := range list {
		messages, actions = append(messages, f.Message), append(actions, f.Action)
	}
	if len(list) > 0 {
		c.Reason, c.Failure, c.Action, c.Skipped = string(list[0].Reason), strings.Join(messages, "; "), strings.Join(actions, "; "), ""
	}
	return c
}
