package step

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Timeline holds the times at which one node reached each step.
type Timeline struct {
	Node  string    `json:"node"`
	Steps []Reached `json:"steps"` // in the order of Steps, without those that were not seen
	Notes []Remark  `json:"notes,omitempty"`
}

// Reached is a step that a node has reached. Times are in seconds.
type Reached struct {
	Step ID `json:"step"`
	// At is the time since the sample began.
	At float64 `json:"at"`
	// Took is the time since the last step before it.
	Took float64 `json:"took"`
	// Late bounds how much earlier it may have happened, while the API server was away.
	Late float64 `json:"late,omitempty"`
	// Before marks a step that was reached before the sample began.
	Before bool `json:"before,omitempty"`
}

// Remark is a detail between steps: a change of gpuready's condition.
type Remark struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
}

// Find returns a step, if the node reached it.
func (t Timeline) Find(id ID) (Reached, bool) {
	i := slices.IndexFunc(t.Steps, func(r Reached) bool { return r.Step == id })
	if i < 0 {
		return Reached{}, false
	}
	return t.Steps[i], true
}

// Last returns the last reached step that a workload waits for.
func (t Timeline) Last() ID {
	last := Asked
	for _, r := range t.Steps {
		if s, _ := Find(r.Step); !s.Aside {
			last = r.Step
		}
	}
	return last
}

// Total returns the seconds until the last step that a workload waits for.
func (t Timeline) Total() float64 {
	total := 0.0
	for _, r := range t.Steps {
		if s, _ := Find(r.Step); !s.Aside {
			total = max(total, r.At)
		}
	}
	return total
}

// Nodes returns the names of the existing nodes, sorted.
func (t *Tracker) Nodes() []string {
	var names []string
	for name, n := range t.nodes {
		if !n.gone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// HasReached reports whether a node has reached a step.
func (t *Tracker) HasReached(node string, id ID) bool {
	_, ok := t.moments(node)[id]
	return ok
}

// Validates reports whether a validator runs on a node: NVIDIA's, or gpuready's, which has
// set its condition or is about to.
func (t *Tracker) Validates(node string) bool {
	for _, p := range t.podsByNode[node] {
		if p.operand == Validator && !p.gone {
			return true
		}
	}
	return false
}

// ScheduledNodes returns the nodes to which the sample's workloads were scheduled, sorted.
func (t *Tracker) ScheduledNodes() []string {
	nodes := map[string]bool{}
	for _, p := range t.pods {
		if p.operand == "" && p.node != "" {
			nodes[p.node] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Results returns how many of the sample's workloads have shown a result.
func (t *Tracker) Results() int {
	n := 0
	for _, p := range t.pods {
		if p.operand == "" && p.ended != nil {
			n++
		}
	}
	return n
}

// Failure returns why a workload of the sample has failed; "" where none has.
func (t *Tracker) Failure() string {
	var all []string
	for _, p := range t.pods {
		if p.failure != "" {
			all = append(all, p.failure)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.Min(all)
}

// Timeline returns the steps of a node, with times since asked.
func (t *Tracker) Timeline(name string, asked time.Duration) Timeline {
	line := Timeline{Node: name, Steps: []Reached{}}
	moments := t.moments(name)
	moments[Asked] = Moment{At: asked}
	before := 0.0 // the last of the steps that a workload waits for
	for _, s := range Steps() {
		m, seen := moments[s.ID]
		if !seen {
			continue
		}
		r := Reached{Step: s.ID, At: seconds(m.At - asked), Late: seconds(m.Late), Before: m.Old}
		if m.Old {
			r.At, r.Late = 0, 0
		}
		r.At = max(r.At, 0)
		r.Late = min(r.Late, r.At)
		r.Took = max(math.Round(1000*(r.At-before))/1000, 0)
		if !s.Aside {
			before = max(before, r.At)
		}
		line.Steps = append(line.Steps, r)
	}
	if n := t.nodes[name]; n != nil {
		for _, note := range n.notes {
			line.Notes = append(line.Notes, Remark{max(seconds(note.At-asked), 0), note.Text})
		}
	}
	return line
}

// moments merges the moments of a node with those of the pods on it.
func (t *Tracker) moments(name string) map[ID]Moment {
	all := map[ID]Moment{}
	if n := t.nodes[name]; n != nil {
		maps.Copy(all, n.steps)
	}
	for uid, p := range t.podsByNode[name] {
		switch p.operand {
		case Driver:
			earliestTime(all, DriverScheduled, p.scheduled)
			earliestTime(all, DriverPulled, t.pulled(uid, p.started))
			earliestTime(all, DriverStarted, p.started)
			earliestTime(all, DriverReady, p.ready)
		case Toolkit:
			earliestTime(all, ToolkitReady, p.ready)
		case Plugin:
			earliestTime(all, PluginReady, p.ready)
		case Validator:
			if !p.ours { // gpuready's validator is Ready before it has validated anything
				earliestTime(all, Validated, p.ready)
			}
		default:
			earliestTime(all, WorkloadScheduled, p.scheduled)
			earliestTime(all, WorkloadPulled, t.pulled(uid, p.started))
			earliestTime(all, WorkloadStarted, p.started)
			earliestTime(all, FirstResult, p.ended)
		}
	}
	return all
}

func earliestTime(all map[ID]Moment, id ID, m *Moment) {
	if m == nil {
		return
	}
	if before, ok := all[id]; !ok || m.At < before.At {
		all[id] = *m
	}
}

// pulled returns the last image pull of a pod before its container started. If the
// container was seen running before its Event arrived, it returns the first pull.
func (t *Tracker) pulled(uid types.UID, started *Moment) *Moment {
	mine := t.pulls[uid]
	if len(mine) == 0 {
		return nil
	}
	last := mine[0]
	for _, m := range mine[1:] {
		if started == nil || m.At <= started.At {
			last = m
		}
	}
	if started != nil {
		last.At = min(last.At, started.At)
	}
	return &last
}

func seconds(d time.Duration) float64 {
	return cmp.Or(float64(d.Round(time.Millisecond))/float64(time.Second), 0)
}

// Waiting names the pods on a node that are not ready, with the kubelet's reasons; "" where
// all are ready.
func (t *Tracker) Waiting(name string) string {
	var all []string
	for _, p := range t.pods {
		if p.waitReason != "" && (p.node == name || p.node == "") {
			all = append(all, p.name+" "+p.waitReason)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// Images returns the images of the operands' containers, by operand, sorted.
func (t *Tracker) Images() map[Operand][]string {
	all := map[Operand][]string{}
	for _, p := range t.pods {
		if p.operand != "" && !slices.Contains(all[p.operand], p.image) {
			all[p.operand] = append(all[p.operand], p.image)
			slices.Sort(all[p.operand])
		}
	}
	return all
}
