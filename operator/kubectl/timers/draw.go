package timers

import (
	"fmt"
	"io"
	"time"

	"github.com/gpuready/gpuready/operator/kubectl/output"
)

// Text writes the advice for people.
func (a Advice) Text(w io.Writer, look output.Style) error {
	p := &output.Pen{Style: look}
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	p.Line("", 0, fmt.Sprintf("From %d nodes of ClusterPolicy %s, from the creation of the Node to %s: half within %v, 99 of 100 within %v.",
		a.Samples, a.Policy, a.Step, seconds(a.HalfSeconds), seconds(a.P99Seconds)))
	if a.FromFewerThanOneHundred {
		p.Line(output.Yellow, 0, "These are fewer than 100, so that the second is the slowest of them; ask again when there are more.")
	}
	if a.MachineSeconds == 0 {
		p.Line(output.Yellow, 0, "The time before a machine's Node exists is unknown and not included: set it with --machine.")
	}
	p.WriteString("\n")
	note := func(is bool) string {
		if is {
			return "the default, which is long enough"
		}
		return ""
	}
	p.Table([]string{"CLUSTER AUTOSCALER", "OPENSHIFT", "TIME"}, []output.Row{
		{Cells: []output.Cell{{Text: "--max-node-provision-time"}, {Text: "spec.maxNodeProvisionTime"}, {Text: a.MaxNodeProvisionTime, Color: output.Bold}}, Below: note(a.ProvisionTimeIsDefault), Color: output.Dim},
		{Cells: []output.Cell{{Text: "--scale-down-unneeded-time"}, {Text: "spec.scaleDown.unneededTime"}, {Text: a.ScaleDownUnneededTime, Color: output.Bold}}, Below: note(a.ScaleDownTimeIsDefault), Color: output.Dim},
	})
	_, err := io.WriteString(w, p.String())
	return err
}
