package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpuready/gpuready/operator/kubectl/show"
	"github.com/gpuready/gpuready/operator/progress"
)

var statusColors = map[progress.Status]string{
	progress.Ready: show.Green, progress.Waiting: show.Yellow, progress.Unknown: show.Yellow, progress.Failed: show.Red, progress.Excluded: show.Dim,
}

var statusSigns = map[progress.Status]string{progress.Waiting: "○", progress.Unknown: "?", progress.Failed: "✗"}

// Text writes the node for people.
func (n Node) Text(w io.Writer, look show.Style) error {
	p := &show.Pen{Style: look}
	title := n.Node
	if n.GPUs != "" {
		title += " · " + n.GPUs
	}
	p.Line(show.Bold, 0, title)
	p.Line(show.Dim, 0, n.Pool)
	p.WriteString("\n")
	n.drawRoad(p)
	n.drawDriver(p)
	n.drawPods(p)
	for _, note := range n.Notes {
		p.Line(show.Yellow, 0, "! "+note)
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
	if ago := show.Since(n.Since, n.Time); ago != "" {
		text += " for " + ago
	}
	return fmt.Sprintf("%s: %s: %s", text, n.Reason, n.Message)
}

func (n Node) drawRoad(p *show.Pen) {
	for _, s := range n.Road {
		switch {
		case s.Reached:
			p.Line("", 0, p.Paint(show.Green, "●")+" "+string(s.State))
		case s.State == n.State:
			p.Line("", 0, p.Paint(statusColors[n.Status], statusSigns[n.Status])+" "+string(s.State))
			p.Line("", 4, n.Reason+": "+n.Message)
		default:
			p.Line(show.Dim, 0, "· "+string(s.State))
		}
	}
}

func (n Node) drawDriver(p *show.Pen) {
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
		p.Line(show.Yellow, 2, d.Reason+": "+d.Message)
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
		p.Line(show.Yellow, 0, "The node is cordoned: no pod comes until kubectl uncordon "+n.Node)
	}
	if len(n.Taints) > 0 {
		p.Line("", 0, "Taints: "+strings.Join(n.Taints, ", "))
	}
}

func (n Node) drawPods(p *show.Pen) {
	if len(n.Pods) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []show.Row
	for _, pod := range n.Pods {
		r := show.Row{Cells: []show.Cell{{Text: pod.Name}, {Text: "ready", Color: show.Green}, {Text: show.Since(pod.Since, n.Time)}}, Below: pod.Message}
		if !pod.Ready {
			r.Cells[1] = show.Cell{Text: pod.Reason, Color: show.Yellow}
			if pod.Reason == "Succeeded" {
				r.Cells[1] = show.Cell{Text: "completed", Color: show.Green}
			}
		}
		rows = append(rows, r)
	}
	p.Table([]string{"POD", "STATUS", "FOR"}, rows)
}

func (n Node) drawEvents(p *show.Pen) {
	if len(n.Events) == 0 {
		return
	}
	p.WriteString("\n")
	var rows []show.Row
	for _, e := range n.Events {
		color := ""
		if e.Type == "Warning" {
			color = show.Yellow
		}
		rows = append(rows, show.Row{Cells: []show.Cell{{Text: show.Since(e.Time, n.Time) + " ago"}, {Text: e.Reason, Color: color}, {Text: fmt.Sprint(max(e.Count, 1))}}, Below: e.Message})
	}
	p.Table([]string{"EVENT", "REASON", "TIMES"}, rows)
}
