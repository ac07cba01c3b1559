package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// The share of nodes to wait for, and the factor on the time they took.
const (
	quantile = 0.99
	margin   = 1.5
)

// The Cluster Autoscaler's defaults, which are the minimum advice.
const (
	defaultProvision = 15 * time.Minute
	defaultUnneeded  = 10 * time.Minute
)

// Reasons why no advice is computed.
var (
	errTooFew  = errors.New("too few nodes were measured")
	errTooSlow = errors.New("nodes take longer than is measured")
)

// advice holds settings for the Cluster Autoscaler. Its times are whole minutes, as some clouds
// accept no others.
type advice struct {
	Policy  string `json:"policy"`
	Step    string `json:"step"`    // end of the measurement
	Samples int64  `json:"samples"` // measured nodes
	// HalfSeconds and P99Seconds are the times within which half and 99 of 100 nodes were ready.
	HalfSeconds int64 `json:"halfSeconds"`
	P99Seconds  int64 `json:"p99Seconds"`
	// MachineSeconds is the given time before a Node object exists.
	MachineSeconds int64 `json:"machineSeconds"`

	MaxNodeProvisionTime    string `json:"maxNodeProvisionTime"`    // --max-node-provision-time
	ScaleDownUnneededTime   string `json:"scaleDownUnneededTime"`   // --scale-down-unneeded-time
	ProvisionTimeIsDefault  bool   `json:"provisionTimeIsDefault"`  // the default is long enough
	ScaleDownTimeIsDefault  bool   `json:"scaleDownTimeIsDefault"`  // the default is long enough
	FromFewerThanOneHundred bool   `json:"fromFewerThanOneHundred"` // P99Seconds is the slowest node's time
}

// finalSteps are the steps after which GPUs can be used; the first that was measured counts.
var finalSteps = []string{"feature-labels", "plugin-validation"}

// computeAdvice computes the advice. machine is the time from the request for a machine until its Node
// object exists, which the histogram does not include. least is the minimum number of measured
// nodes.
func computeAdvice(p v1.ClusterPolicy, machine time.Duration, least int64) (advice, error) {
	a := advice{Policy: p.Name, MachineSeconds: int64(machine.Seconds())}
	var h v1.ProvisioningStatus
	for _, step := range finalSteps {
		for _, s := range p.Status.Provisioning {
			if s.Step == step && h.Step == "" {
				h = s
			}
		}
	}
	for _, n := range h.Buckets {
		a.Samples += max(n, 0)
	}
	a.Step = h.Step
	if a.Samples < max(least, 1) {
		return a, fmt.Errorf("%w: %d were measured from their creation to usable GPUs, and %d are needed; only nodes that are created while the operator runs count", errTooFew, a.Samples, least)
	}
	half, _ := bound(h.Buckets, a.Samples, 0.5)
	slow, known := bound(h.Buckets, a.Samples, quantile)
	if !known {
		bounds := v1.ProvisioningBounds()
		return a, fmt.Errorf("%w: of %d nodes more than one in a hundred took longer than %v; see which step is slow (gpuready_operator_provisioning_seconds)", errTooSlow, a.Samples, bounds[len(bounds)-1])
	}
	a.HalfSeconds, a.P99Seconds = int64(half.Seconds()), int64(slow.Seconds())
	provision := minutes(time.Duration(float64(machine+slow) * margin))
	unneeded := minutes(time.Duration(float64(slow) * margin))
	a.ProvisionTimeIsDefault, a.ScaleDownTimeIsDefault = provision <= defaultProvision, unneeded <= defaultUnneeded
	a.MaxNodeProvisionTime = formatMinutes(max(provision, defaultProvision))
	a.ScaleDownUnneededTime = formatMinutes(max(unneeded, defaultUnneeded))
	a.FromFewerThanOneHundred = a.Samples < 100
	return a, nil
}

// bound returns the upper bound of the bucket up to which a share of the samples lies.
func bound(buckets []int64, samples int64, share float64) (time.Duration, bool) {
	var below int64
	for i, b := range v1.ProvisioningBounds() {
		if i < len(buckets) {
			below += max(buckets[i], 0)
		}
		if float64(below) >= share*float64(samples) {
			return b, true
		}
	}
	return 0, false
}

func minutes(d time.Duration) time.Duration {
	return (d + time.Minute - 1).Truncate(time.Minute)
}

func formatMinutes(d time.Duration) string { return fmt.Sprintf("%dm", int(d.Minutes())) }

// text writes the advice for people.
func (a advice) text(w io.Writer, look style) error {
	p := &pen{style: look}
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	p.line("", 0, fmt.Sprintf("From %d nodes of ClusterPolicy %s, from the creation of the Node to %s: half within %v, 99 of 100 within %v.",
		a.Samples, a.Policy, a.Step, seconds(a.HalfSeconds), seconds(a.P99Seconds)))
	if a.FromFewerThanOneHundred {
		p.line(yellow, 0, "These are fewer than 100, so that the second is the slowest of them; ask again when there are more.")
	}
	if a.MachineSeconds == 0 {
		p.line(yellow, 0, "The time before a machine's Node exists is unknown and not included: set it with --machine.")
	}
	p.WriteString("\n")
	note := func(is bool) string {
		if is {
			return "the default, which is long enough"
		}
		return ""
	}
	p.table([]string{"CLUSTER AUTOSCALER", "OPENSHIFT", "TIME"}, []row{
		{Cells: []cell{{Text: "--max-node-provision-time"}, {Text: "spec.maxNodeProvisionTime"}, {Text: a.MaxNodeProvisionTime, Color: bold}}, Below: note(a.ProvisionTimeIsDefault), Color: dim},
		{Cells: []cell{{Text: "--scale-down-unneeded-time"}, {Text: "spec.scaleDown.unneededTime"}, {Text: a.ScaleDownUnneededTime, Color: bold}}, Below: note(a.ScaleDownTimeIsDefault), Color: dim},
	})
	_, err := io.WriteString(w, p.String())
	return err
}
