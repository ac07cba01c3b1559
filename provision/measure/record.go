package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/provision/observe"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

// recordOutcome records the outcome and timelines of the sample.
func (s *Session) recordOutcome(sample *report.Sample, scenario Scenario, err error) {
	nodes := scenario.Nodes(s)
	for _, n := range nodes {
		sample.Timelines = append(sample.Timelines, s.tracker.Timeline(n, s.requestedAt))
	}
	for _, g := range s.Observer.Gaps() {
		if g.To >= s.requestedAt {
			sample.Gaps = append(sample.Gaps, report.Gap{From: max(toSeconds(g.From-s.requestedAt), 0), To: toSeconds(g.To - s.requestedAt)})
		}
	}
	switch {
	case err == nil:
		sample.Outcome = report.Complete
	case errors.Is(err, context.Canceled):
		sample.Outcome, sample.Reason = report.Interrupted, "interrupted"
	case errors.Is(err, errTimedOut):
		sample.Outcome, sample.Reason = report.TimedOut, s.describeStuckNodes(nodes)
	default:
		sample.Outcome, sample.Reason = report.Failed, sanitizeLine(err.Error())
	}
	if sample.Outcome == report.Complete {
		s.Log.Info("complete", "sample", s.sample, "after", fmt.Sprintf("%.1fs", sample.Total()))
	} else {
		s.Log.Warn(string(sample.Outcome), "sample", s.sample, "reason", sample.Reason)
	}
}

// describeStuckNodes describes the last step of each node, and what its pods wait for.
func (s *Session) describeStuckNodes(nodes []string) string {
	if len(nodes) == 0 {
		text := fmt.Sprintf("no node came within %v", s.Options.Timeout)
		if why := s.tracker.Waiting(""); why != "" {
			text += ": " + why
		}
		return sanitizeLine(text)
	}
	var all []string
	for _, n := range nodes {
		line := s.tracker.Timeline(n, s.requestedAt)
		last, _ := step.Find(line.Last())
		text := fmt.Sprintf("node %s is not done within %v; its last step is %q", n, s.Options.Timeout, last.Title)
		if why := s.tracker.Waiting(n); why != "" {
			text += ": " + why
		}
		all = append(all, text)
	}
	return sanitizeLine(strings.Join(all, "; "))
}

// recordSummary records the parts of the report that concern the whole run: jumps of the clock,
// requests to the API server, images, and the cluster.
func (s *Session) recordSummary(rep *report.Report, jumps *observe.JumpDetector, lasted time.Duration) {
	jumps.Check()
	for _, j := range jumps.Jumps() {
		rep.Jumps = append(rep.Jumps, report.Jump{At: s.Clock.Wall().Add(j.At - s.Clock.Now()), By: toSeconds(j.By)})
	}
	requests := s.Observer.Requests()
	rep.Requests += requests
	if lasted > 0 {
		rep.RequestsPerSecond = float64(int(100*float64(requests)/lasted.Seconds())) / 100
	}
	if s.tracker == nil {
		return
	}
	if images := s.tracker.Images(); len(images) > 0 {
		rep.Images = images
	}
	s.recordCluster(rep)
}

// recordCluster records the measured cluster.
func (s *Session) recordCluster(rep *report.Report) {
	measured := map[string]bool{}
	for _, sample := range rep.Samples {
		for _, t := range sample.Timelines {
			measured[t.Node] = true
		}
	}
	nodes := 0
	for _, c := range s.Observer.Snapshot() {
		if c.Node == nil {
			continue
		}
		nodes++
		rep.Cluster.Nodes = max(rep.Cluster.Nodes, nodes)
		if !measured[c.Node.Name] && rep.Cluster.Kubelet != "" {
			continue
		}
		info := c.Node.Status.NodeInfo
		rep.Cluster.Kubelet, rep.Cluster.Runtime = sanitizeLine(info.KubeletVersion), sanitizeLine(info.ContainerRuntimeVersion)
		rep.Cluster.System, rep.Cluster.Kernel = sanitizeLine(info.OSImage), sanitizeLine(info.KernelVersion)
		if rep.Notice == "" && strings.HasPrefix(c.Node.Labels["nvidia.com/gpu.product"], "SIMULATED") {
			rep.Notice = "SIMULATED: the nodes have no GPU; their driver is gpuready's simulator"
		}
	}
}

// toSeconds returns a duration in seconds, rounded to milliseconds.
func toSeconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}

// sanitizeLine returns text of other origin in a form that is safe in one line of a report, cut
// after 1 KiB.
func sanitizeLine(text string) string {
	const most = 1024
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
