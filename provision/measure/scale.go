package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

// Provider adds and removes nodes. Autoscaler is the Provider for clusters that do so by
// themselves, for pending pods and idle nodes.
type Provider interface {
	// Add requests one more node.
	Add(ctx context.Context, s *Session) error
	// Remove removes nodes.
	Remove(ctx context.Context, s *Session, nodes []string) error
	// AddsGPUs reports whether Add may add a GPU to an existing node.
	AddsGPUs() bool
	// Restore undoes each Add that Remove did not undo.
	Restore(ctx context.Context, s *Session) error
}

// Scale creates GPU workloads that fit on no node, and waits for a new node.
type Scale struct {
	Provider Provider
	// FromZero requires that no node offers GPUs before.
	FromZero bool
	// KeepNodes makes Finish return without waiting until the added nodes are gone.
	KeepNodes bool

	existing []string // nodes that existed before the sample
	gpus     []string // those of them that offered GPUs
}

// Reboots reports false: nodes are new.
func (*Scale) Reboots() bool { return false }

// Nodes returns the nodes to which the workloads were scheduled. Before that it returns the
// nodes that were added since the sample began.
func (t *Scale) Nodes(s *Session) []string {
	landed := s.tracker.ScheduledNodes()
	if len(landed) > 0 {
		return landed
	}
	var added []string
	for _, n := range s.tracker.Nodes() {
		if !slices.Contains(t.existing, n) {
			added = append(added, n)
		}
	}
	return added
}

// Prepare records the existing nodes.
func (t *Scale) Prepare(ctx context.Context, s *Session) error {
	if s.Options.Workload.Pod == nil {
		return errors.New("this test needs a workload: nodes are added for it")
	}
	if err := s.removeWorkloads(ctx); err != nil {
		return err
	}
	if t.gpus = s.gpuNodes(); t.FromZero && len(t.gpus) > 0 {
		return fmt.Errorf("nodes offer %s already (%s): --test scale-from-zero begins with none; --test autoscale measures with some", s.Options.Resource, strings.Join(t.gpus, ", "))
	}
	t.existing = s.tracker.Nodes()
	return nil
}

// Request creates the workloads and adds a node by the provider.
func (t *Scale) Request(ctx context.Context, s *Session) error {
	if err := s.createWorkloads(ctx, nil); err != nil {
		return err
	}
	return t.Provider.Add(ctx, s)
}

// Finish removes the workloads and the added nodes, and waits until the nodes are gone.
func (t *Scale) Finish(ctx context.Context, s *Session, sample *report.Sample) error {
	added := t.addedNodes(s, sample)
	began := s.Clock.Now()
	if err := s.removeWorkloads(ctx); err != nil {
		return err
	}
	toRemove := slices.DeleteFunc(slices.Clone(added), func(n string) bool { return slices.Contains(t.existing, n) && !t.Provider.AddsGPUs() })
	if err := t.Provider.Remove(ctx, s, toRemove); err != nil {
		return err
	}
	if t.KeepNodes || len(added) == 0 {
		return nil
	}
	err := s.waitFor(ctx, "wait until the nodes are removed", func(all []step.Change) (bool, string) {
		for _, c := range all {
			switch {
			case c.Node == nil || !slices.Contains(added, c.Node.Name):
			case !slices.Contains(t.existing, c.Node.Name):
				return false, "node " + c.Node.Name + " is there"
			case slices.Contains(s.gpuNodes(), c.Node.Name): // a GPU was added to a node
				return false, "node " + c.Node.Name + " still offers " + string(s.Options.Resource)
			}
		}
		return true, ""
	})
	sample.RemoveSeconds = toSeconds(s.Clock.Now() - began)
	return err
}

// addedNodes returns the nodes that were added for a sample. Other users may add nodes, too:
// for an incomplete sample it returns only known GPU nodes.
func (t *Scale) addedNodes(s *Session, sample *report.Sample) []string {
	var added []string
	for _, line := range sample.Timelines {
		_, labelled := line.Find(step.Labelled)
		switch {
		case slices.Contains(t.gpus, line.Node) && sample.Outcome == report.Complete:
			sample.Outcome, sample.Reason = report.Failed, "the workload found room on node "+line.Node+", which had GPUs before; let it ask for more GPUs than are free (--workload)"
		case slices.Contains(t.gpus, line.Node):
		case labelled || slices.Contains(s.tracker.ScheduledNodes(), line.Node):
			added = append(added, line.Node)
		}
	}
	return added
}

// Restore undoes the changes of the provider.
func (t *Scale) Restore(ctx context.Context, s *Session) error {
	return t.Provider.Restore(ctx, s)
}

// Autoscaler is the Provider for clusters that add nodes for pending pods, by the Cluster
// Autoscaler or by Karpenter with a NodePool.
type Autoscaler struct{}

// Add does nothing: the pending workload is the request.
func (Autoscaler) Add(context.Context, *Session) error { return nil }

// AddsGPUs reports false: nodes are new.
func (Autoscaler) AddsGPUs() bool { return false }

// Remove does nothing: idle nodes are removed by the autoscaler.
func (Autoscaler) Remove(context.Context, *Session, []string) error { return nil }

// Restore does nothing.
func (Autoscaler) Restore(context.Context, *Session) error { return nil }

// Reboot restarts a node.
type Reboot struct {
	Node    string
	Command Command
}

// Reboots reports true.
func (*Reboot) Reboots() bool { return true }

// Nodes returns the node.
func (t *Reboot) Nodes(*Session) []string { return []string{t.Node} }

// Prepare waits until the node offers GPUs.
func (t *Reboot) Prepare(ctx context.Context, s *Session) error {
	if err := s.removeWorkloads(ctx); err != nil {
		return err
	}
	return s.waitFor(ctx, "wait until node "+t.Node+" offers GPUs", func([]step.Change) (bool, string) {
		return slices.Contains(s.gpuNodes(), t.Node), "it offers no " + string(s.Options.Resource)
	})
}

// Request runs the command that restarts the node. It creates the workload when the node is
// back: a pod created before might run on the node before it goes down.
func (t *Reboot) Request(ctx context.Context, s *Session) error {
	if err := t.Command.runCommand(ctx, s, t.Node); err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.Options.Timeout, errTimedOut)
	defer cancel()
	err := s.waitFor(limited, "wait until node "+t.Node+" has restarted", func([]step.Change) (bool, string) {
		return s.tracker.HasReached(t.Node, step.Registered), "its boot ID is the same"
	})
	if err != nil {
		return err
	}
	return s.createWorkloads(ctx, []string{t.Node})
}

// Finish removes the workloads.
func (t *Reboot) Finish(ctx context.Context, s *Session, _ *report.Sample) error {
	return s.removeWorkloads(ctx)
}

// Restore does nothing: a restart changes nothing on the node.
func (*Reboot) Restore(context.Context, *Session) error { return nil }

// commandWithin bounds the time of a command that adds, removes or restarts a node.
const commandWithin = 10 * time.Minute
