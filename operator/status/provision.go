package status

import (
	"slices"
	"time"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/road"
)

// maxUnseenAge is the age up to which a node that was not seen before is followed: an older
// one, of which something is reached again after a reboot, says nothing of provisioning.
const maxUnseenAge = 30 * time.Minute

// Provisioning measures how long nodes take from their creation to each step. A step
// counts for a node that was seen to be without it by this process, so that nothing
// counts twice after a restart. It is used by one goroutine.
type Provisioning struct {
	steps   []v1.ProvisioningStatus
	reached map[string]int // states of the road, by the node's UID; -1: not followed
}

// NewProvisioning goes on from what the status has.
func NewProvisioning(before []v1.ProvisioningStatus) *Provisioning {
	p := &Provisioning{reached: map[string]int{}}
	for _, s := range road.States() {
		step := v1.ProvisioningStatus{Step: string(s), Buckets: make([]int64, len(v1.ProvisioningBounds())+1)}
		i := slices.IndexFunc(before, func(b v1.ProvisioningStatus) bool { return b.Step == string(s) })
		if i >= 0 && len(before[i].Buckets) == len(step.Buckets) {
			step = *before[i].DeepCopy()
		}
		p.steps = append(p.steps, step)
	}
	return p
}

// Observe looks at a node. since is when the policy was created: nodes that are older had
// to wait for it.
func (p *Provisioning) Observe(n Node, since, now time.Time) {
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
	p.reached[n.UID] = far
}

// Forget follows a node no more.
func (p *Provisioning) Forget(uid string) { delete(p.reached, uid) }

// completedSteps is how many states of the road are behind a node; one that is not asked for
// counts with the next that is.
func completedSteps(reached []road.State) int {
	if len(reached) == 0 {
		return 0
	}
	return slices.Index(road.States(), reached[len(reached)-1]) + 1
}

func (p *Provisioning) count(step int, took time.Duration) {
	s := &p.steps[step]
	bounds := v1.ProvisioningBounds()
	at, _ := slices.BinarySearch(bounds, took)
	s.Count++
	s.SumSeconds += int64(took.Round(time.Second) / time.Second)
	s.Buckets[at]++
}

// Status is what is kept: the steps that a node has reached.
func (p *Provisioning) Status() (all []v1.ProvisioningStatus) {
	for _, s := range p.steps {
		if s.Count > 0 {
			all = append(all, *s.DeepCopy())
		}
	}
	return all
}
