package status

import (
	"slices"
	"time"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// maxUnseenAge is the age up to which a node is measured when it is first seen. An older node
// that reaches steps again after a reboot is irrelevant to provisioning.
const maxUnseenAge = 30 * time.Minute

// Provisioning measures how long nodes take from their creation to each step. A step counts
// only for a node that this process has seen without it, so that nothing counts twice after a
// restart. It must be used by one goroutine.
type Provisioning struct {
	steps   []v1.ProvisioningStatus
	reached map[string]int // number of states reached, by the node's UID; -1: not measured
}

// NewProvisioning returns a Provisioning that continues the counts of a status.
func NewProvisioning(before []v1.ProvisioningStatus) *Provisioning {
	p := &Provisioning{reached: map[string]int{}}
	for _, s := range progress.Sequence() {
		step := v1.ProvisioningStatus{Step: string(s), Buckets: make([]int64, len(v1.ProvisioningBounds())+1)}
		i := slices.IndexFunc(before, func(b v1.ProvisioningStatus) bool { return b.Step == string(s) })
		if i >= 0 && len(before[i].Buckets) == len(step.Buckets) {
			step = *before[i].DeepCopy()
		}
		p.steps = append(p.steps, step)
	}
	return p
}

// Observe records the progress of all nodes, and stops measuring those that are missing. since
// is when the policy was created: older nodes had to wait for it and are not measured.
func (p *Provisioning) Observe(nodes []Node, since, now time.Time) {
	reached := make(map[string]int, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		before, seen := p.reached[n.UID]
		if !seen && (n.Created.Before(since) || now.Sub(n.Created) > maxUnseenAge) {
			before, seen = -1, true
		}
		far := before
		if before >= 0 && n.Status != progress.Excluded {
			far = max(before, completedSteps(n.Steps))
			for i := before; seen && i < far; i++ {
				p.count(i, now.Sub(n.Created))
			}
		}
		reached[n.UID] = far
	}
	p.reached = reached
}

// completedSteps returns how many states a node has passed. A state that is not wanted counts
// with the next one that is.
func completedSteps(reached []progress.State) int {
	if len(reached) == 0 {
		return 0
	}
	return slices.Index(progress.Sequence(), reached[len(reached)-1]) + 1
}

func (p *Provisioning) count(step int, took time.Duration) {
	s := &p.steps[step]
	bounds := v1.ProvisioningBounds()
	at, _ := slices.BinarySearch(bounds, took)
	s.Count++
	s.SumSeconds += int64(took.Round(time.Second) / time.Second)
	s.Buckets[at]++
}

// Status returns the steps that nodes have reached.
func (p *Provisioning) Status() (all []v1.ProvisioningStatus) {
	for _, s := range p.steps {
		if s.Count > 0 {
			all = append(all, *s.DeepCopy())
		}
	}
	return all
}
