package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpuready/gpuready/operator/kubectl/output"
	"github.com/gpuready/gpuready/operator/progress"
)

var statusColors = map[progress.Status]string{
	progress.Ready: output.Green, progress.Waiting: output.Yellow, progress.Unknown: output.Yellow, progress.Failed: output.Red, progress.Excluded: output.Dim,
}

var statusSigns = map[progress.Status]string{progress.Waiting: "○", progress.Unknown: "?", progress.Failed: "✗"}

// Text writes the node for people.
func (n Node) Text(w io.Writer, look output.Style) error {
	p := &output.Pen{Style: look}
	title := n.Node
	if n.GPUs != "" {
		title += " · " + n.GPUs
	}
	p.Line(output.Bold, 0, title)
	p.Line(output.Dim, 0, n.Pool)
	p.WriteString("\n")
	n.drawRoad(p)
	n.drawDriver(p)
	n.drawPods(p)
	for _, note := range n.Notes {
		p.Line(output.Yellow, 0, "! "+note)
	}
	n.drawEvents(p)
	p.WriteString("\n")
	p.Line(statusColors[n.Status], 0, n.Result())
	if n.Action != "" {
		p.Line("", 0, "next: "+n.Action)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// Result returns the node's state in one line.
func (n Node) Result() string {
	if n.Status == progress.Ready {
		return n.Node + " is ready"
	}
	text := fmt.Sprintf("%s: %s", n.Node, n.Status)
	if n.State != "" {
		text += " at " + string(n.State)
	}
	if ago := output.Since(n.Since, n.Time); ago != "" {
		text += " for " + ago
	}
	return fmt.Sprintf("%s: %s: %s", text, n.Reason, n.Message)
}

func (n Node) drawRoad(p *output.Pen) {
	for _, s := range n.Road {
		switch {
		case s.Reached:
			p.Line("", 0, p.Paint(output.Green, "●")+" "+string(s.State))
		case s.State == n.State:
			p.Line("", 0, p.Paint(statusColors[n.Status], statusSigns[n.Status])+" "+string(s.State))
			p.Line("", 4, n.Reason+": "+n.Message)
		default:
			p.Line(output.Dim, 0, "· "+string(s.State))
		}
	}
}

func (n Node) drawDriver(p *output.Pen) {
	p.WriteString("\n")
	d := n.Driver
	switch {
	case d.Host:
		p.Line("", 0, "Driver: the host's own")
	case d.DaemonSet != "":
		p.Line("", 0, fmt.Sprintf("Driver: %s, DaemonSet %s, image %s", d.Variant, d.DaemonSet, d.Image))
		if d.ID != "" && !strings.HasSuffix(d.DaemonSet, d.ID) && d.Variant != "simulated" {
			p.Line("", 2, "the node still has "+d.ID+": its turn has not come")
		}
	case d.ID != "":
		p.Line("", 0, "Driver: "+d.ID)
	default:
		p.Line("", 0, "Driver: none is chosen")
	}
	if d.Reason != "" {
		p.Line(output.Yellow, 2, d.Reason+": "+d.Message)
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
		p.Line("", 0, text)
	}
	if n.Cordoned {
		p.Line(output.Yellow, 0, "The node is cordoned: no pod comes until kubectl uncordon "+n.Node)
	}
	if len(n.Taints) > 0 {
		p.Line("", 0, "Taints: "+strings.Join(n.Taints, ", "))
	}
}

func (n Node) drawPods(p *output.Pen) {
	if len(n.Pods) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []output.Row
	for _, pod := range n.Pods {
		r := output.Row{Cells: []output.Cell{{Text: pod.Name}, {Text: "ready", Color: output.Green}, {Text: output.Since(pod.Since, n.Time)}}, Below: pod.Message}
		if !pod.Ready {
			r.Cells[1] = output.Cell{Text: pod.Reason, Color: output.Yellow}
			if pod.Reason == "Succeeded" {
				r.Cells[1] = output.Cell{Text: "completed", Color: output.Green}
			}
		}
		rows = append(rows, r)
	}
	p.Table([]string{"POD", "STATUS", "FOR"}, rows)
}

func (n Node) drawEvents(p *output.Pen) {
	if len(n.Events) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []output.Row
	for _, e := range n.Events {
		color := ""
		if e.Type == "Warning" {
			color = output.Yellow
		}
		rows = append(rows, output.Row{Cells: []output.Cell{{Text: output.Since(e.Time, n.Time) + " ago"}, {Text: e.Reason, Color: color}, {Text: fmt.Sprint(max(e.Count, 1))}}, Below: e.Message})
	}
	p.Table([]string{"EVENT", "REASON", "TIMES"}, rows)
}
