package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/progress"
)

var statusColors = map[progress.Status]string{
	progress.Ready: green, progress.Waiting: yellow, progress.Unknown: yellow, progress.Failed: red, progress.Excluded: dim,
}

// explanation writes how far a node is, for people.
type explanation cluster.Explanation

// text writes what the cluster knows about the node, and below it the same report as gpu-validator
// explain.
func (e explanation) text(w io.Writer, look style) error {
	p := &pen{style: look}
	n := state{e.Cluster, e.Time}
	if n.Policy != "" || n.Reason == cluster.ReasonNoPolicy {
		n.drawResult(p, e.End())
	}
	if n.Policy != "" {
		p.line("", 0, "Pool: "+n.Pool)
		n.drawDriver(p)
	}
	if len(n.Taints) > 0 {
		p.line("", 0, "Taints: "+strings.Join(n.Taints, ", "))
	}
	for _, note := range n.Notes {
		p.line(yellow, 0, "! "+note)
	}
	n.drawPods(p)
	n.drawEvents(p)
	p.WriteString("\n")
	if _, err := io.WriteString(w, p.String()); err != nil {
		return err
	}
	return e.Text(w, explain.Style{Width: look.Width, Color: look.Color})
}

// state is the state of a node in the cluster at one moment.
type state struct {
	cluster.State
	now time.Time
}

// drawResult writes the operator's result in one line and the next action. It leaves out what the
// report says at its end.
func (n state) drawResult(p *pen, end *explain.Stage) {
	text := "In the cluster: " + string(n.Status)
	if n.State.State != "" {
		text += " at " + string(n.State.State)
	}
	if ago := formatSince(n.Since, n.now); ago != "" && n.Status != progress.Ready {
		text += " for " + ago
	}
	switch {
	case n.Status == progress.Ready:
		p.line(green, 0, text)
		return
	case end != nil && end.Reason == n.Reason:
		p.line(statusColors[n.Status], 0, text+": "+n.Reason+", see below")
		return
	}
	p.line(statusColors[n.Status], 0, text+": "+n.Reason+": "+n.Message)
	if n.Action != "" {
		p.line("", 0, "next: "+n.Action)
	}
}

func (n state) drawDriver(p *pen) {
	d := n.Driver
	switch {
	case d.Host:
		p.line("", 0, "Driver: the host's own")
	case d.DaemonSet != "":
		p.line("", 0, fmt.Sprintf("Driver: %s, DaemonSet %s, image %s", d.Variant, d.DaemonSet, d.Image))
		// Names of objects have no underscore.
		if d.ID != "" && !strings.HasSuffix(d.DaemonSet, strings.ReplaceAll(d.ID, "_", "-")) && (d.Variant != "simulated" || d.NVIDIADriver != "") {
			why := ": its turn has not come"
			if d.NVIDIADriver != "" {
				why += ", or that is the same driver"
			}
			p.line("", 2, "the node still has "+d.ID+why)
		}
	case d.ID != "":
		p.line("", 0, "Driver: "+d.ID)
	default:
		p.line("", 0, "Driver: none is chosen")
	}
	if d.Reason != "" {
		p.line(yellow, 2, d.Reason+": "+d.Message)
	}
	if n.Upgrade != nil {
		text := "Driver upgrade: " + n.Upgrade.State
		if n.Upgrade.Since != "" {
			text += " since " + n.Upgrade.Since
		}
		if n.Upgrade.Why != "" {
			text += ": " + n.Upgrade.Why
		}
		if n.Upgrade.Waits != "" {
			text += ", waits: " + n.Upgrade.Waits
		}
		p.line("", 0, text)
	}
}

func (n state) drawPods(p *pen) {
	if len(n.Pods) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, pod := range n.Pods {
		r := row{Cells: []cell{{Text: pod.Name}, {Text: "ready", Color: green}, {Text: formatSince(pod.Since, n.now)}}, Below: pod.Message}
		if !pod.Ready {
			r.Cells[1] = cell{Text: pod.Reason, Color: yellow}
			if pod.Reason == "Succeeded" {
				r.Cells[1] = cell{Text: "completed", Color: green}
			}
		}
		rows = append(rows, r)
	}
	p.table([]string{"POD", "STATUS", "FOR"}, rows)
}

func (n state) drawEvents(p *pen) {
	if len(n.Events) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, e := range n.Events {
		color := ""
		if e.Type == "Warning" {
			color = yellow
		}
		rows = append(rows, row{Cells: []cell{{Text: formatSince(e.Time, n.now) + " ago"}, {Text: e.Reason, Color: color}, {Text: fmt.Sprint(max(e.Count, 1))}}, Below: e.Message})
	}
	p.table([]string{"EVENT", "REASON", "TIMES"}, rows)
}
