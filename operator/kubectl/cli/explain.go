package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/progress"
)

var statusColors = map[progress.Status]string{
	progress.Ready: green, progress.Waiting: yellow, progress.Unknown: yellow, progress.Failed: red, progress.Excluded: dim,
}

var statusSigns = map[progress.Status]string{progress.Waiting: "○", progress.Unknown: "?", progress.Failed: "✗"}

// explanation writes how far a node is, for people.
type explanation cluster.Explanation

// text writes the node for people.
func (n explanation) text(w io.Writer, look style) error {
	p := &pen{style: look}
	title := n.Node
	if n.GPUs != "" {
		title += " · " + n.GPUs
	}
	p.line(bold, 0, title)
	p.line(dim, 0, n.Pool)
	p.WriteString("\n")
	n.drawRoad(p)
	n.drawDriver(p)
	n.drawPods(p)
	for _, note := range n.Notes {
		p.line(yellow, 0, "! "+note)
	}
	n.drawEvents(p)
	p.WriteString("\n")
	p.line(statusColors[n.Status], 0, n.result())
	if n.Action != "" {
		p.line("", 0, "next: "+n.Action)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// result returns the node's state in one line.
func (n explanation) result() string {
	if n.Status == progress.Ready {
		return n.Node + " is ready"
	}
	text := fmt.Sprintf("%s: %s", n.Node, n.Status)
	if n.State != "" {
		text += " at " + string(n.State)
	}
	if ago := formatSince(n.Since, n.Time); ago != "" {
		text += " for " + ago
	}
	return fmt.Sprintf("%s: %s: %s", text, n.Reason, n.Message)
}

func (n explanation) drawRoad(p *pen) {
	for _, s := range n.Road {
		switch {
		case s.Reached:
			p.line("", 0, p.paint(green, "●")+" "+string(s.State))
		case s.State == n.State:
			p.line("", 0, p.paint(statusColors[n.Status], statusSigns[n.Status])+" "+string(s.State))
			p.line("", 4, n.Reason+": "+n.Message)
		default:
			p.line(dim, 0, "· "+string(s.State))
		}
	}
}

func (n explanation) drawDriver(p *pen) {
	p.WriteString("\n")
	d := n.Driver
	switch {
	case d.Host:
		p.line("", 0, "Driver: the host's own")
	case d.DaemonSet != "":
		p.line("", 0, fmt.Sprintf("Driver: %s, DaemonSet %s, image %s", d.Variant, d.DaemonSet, d.Image))
		if d.ID != "" && !strings.HasSuffix(d.DaemonSet, d.ID) && d.Variant != "simulated" {
			p.line("", 2, "the node still has "+d.ID+": its turn has not come")
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
	if n.Cordoned {
		p.line(yellow, 0, "The node is cordoned: no pod comes until kubectl uncordon "+n.Node)
	}
	if len(n.Taints) > 0 {
		p.line("", 0, "Taints: "+strings.Join(n.Taints, ", "))
	}
}

func (n explanation) drawPods(p *pen) {
	if len(n.Pods) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []row
	for _, pod := range n.Pods {
		r := row{Cells: []cell{{Text: pod.Name}, {Text: "ready", Color: green}, {Text: formatSince(pod.Since, n.Time)}}, Below: pod.Message}
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

func (n explanation) drawEvents(p *pen) {
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
		rows = append(rows, row{Cells: []cell{{Text: formatSince(e.Time, n.Time) + " ago"}, {Text: e.Reason, Color: color}, {Text: fmt.Sprint(max(e.Count, 1))}}, Below: e.Message})
	}
	p.table([]string{"EVENT", "REASON", "TIMES"}, rows)
}
