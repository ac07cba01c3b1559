package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/meter"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// reporting is what was said last, and what it was made from.
type reporting struct {
	at           time.Time
	policy       string // its UID
	view         status.View
	wanted       progress.Wanted
	provisioning *status.Provisioning
}

// report sums everything up into the policies' status, Events and metrics, at most once in
// ReportEvery.
func (c *Controller) report(ctx context.Context, s *scene, plan *upgrade.Plan) {
	r := &c.said
	now := c.Now()
	if next := r.at.Add(ReportEvery); now.Before(next) {
		c.wake(next)
		return
	}
	r.at = now
	_, ignored := c.model.inForce()
	for _, p := range ignored {
		c.write(ctx, p, status.Sum(status.Input{Policy: p, Now: now, Namespace: c.Cluster.Namespace, Verdict: status.Ignored(s.policy.Name)}))
	}
	if s.policy == nil {
		c.Metrics.Show(meter.Snapshot{})
		*r = reporting{at: now}
		return
	}
	if r.policy != string(s.policy.UID) {
		*r = reporting{at: now, policy: string(s.policy.UID), provisioning: status.NewProvisioning(s.policy.Status.Provisioning)}
		r.view.Status = s.policy.Status
	}
	nodes, described := c.progress(s, now)
	r.provisioning.Observe(nodes, s.policy.CreationTimestamp.Time, now)
	sum := status.Sum(status.Input{
		Policy: s.policy, Now: now, Namespace: c.Cluster.Namespace, Verdict: c.verdict(s),
		Described: described, Nodes: nodes, Choices: s.choices, Unserved: s.policy.Unserved(),
		Upgrade: upgrading(plan, c.blocked), UpgradeError: stopped(plan), Rolling: c.rolling(), Problems: s.told(), Err: c.err,
		Provisioning: r.provisioning.Status(),
	})
	view := status.View{Status: sum, Nodes: make(map[string]progress.Progress, len(nodes))}
	for _, n := range nodes {
		view.Nodes[n.Name] = n.Progress
	}
	for _, e := range status.Events(r.view, view) {
		c.event(s.policy, e)
	}
	r.view = view
	c.show(sum, nodes, s, r.provisioning)
	c.write(ctx, s.policy, sum)
}

// Reasons of what of the policy cannot be done, apart from those of the objects.
const (
	reasonUpgradePolicy state.Reason = "UpgradePolicyInvalid" // driver.upgradePolicy cannot be read
	reasonCertificates  state.Reason = "CertificatesInvalid"  // registries are asked without some of driver.certConfig
)

// told are what of the policy could not be rendered as it says.
func (s *scene) told() (all []status.Problem) {
	for _, p := range s.problems {
		all = append(all, status.Problem{Reason: string(p.Reason), Message: fmt.Sprintf("%s: %s", p.State, p.Message)})
	}
	return all
}

// verdict is why the policy is not carried out; nil: it is.
func (c *Controller) verdict(s *scene) *status.Verdict {
	if !s.handOver || len(s.served) > 0 {
		return nil
	}
	var running string
	for key := range c.model.other {
		running = max(running, key.String())
	}
	return status.OtherOperator("Deployment "+running, label.HandOver+"="+label.Product)
}

// progress is how far each GPU node is; described, whether NFD has been on any node.
func (c *Controller) progress(s *scene, now time.Time) (nodes []status.Node, described bool) {
	wanted := progress.Wanted{States: s.states, HandOver: s.handOver}
	changed := !reflect.DeepEqual(wanted, c.said.wanted)
	c.said.wanted = wanted
	for _, on := range c.model.nodes {
		described = described || on.node.Described
		if !on.node.GPU {
			continue
		}
		if p := on.progress; changed || p == nil || !p.Until.IsZero() && !now.Before(p.Until) {
			pods := make([]*progress.Pod, 0, len(on.pods))
			for _, o := range on.pods {
				pods = append(pods, o.Pod)
			}
			made := progress.Of(on.node, pods, wanted, now)
			on.progress = &made
		}
		c.wake(on.progress.Until)
		nodes = append(nodes, status.Node{Node: on.node, Progress: *on.progress})
	}
	slices.SortFunc(nodes, func(a, b status.Node) int { return byName(a.Node, b.Node) })
	return nodes, described
}

// upgrading is how far the change of drivers is; blocked are the evictions that were
// refused, by node.
func upgrading(plan *upgrade.Plan, blocked map[string]string) *v1.UpgradeStatus {
	if plan == nil || plan.Counts.Total == 0 {
		return nil
	}
	n := plan.Counts
	return &v1.UpgradeStatus{Total: n.Total, Done: n.Done, InProgress: n.InProgress, Pending: n.Pending, Failed: n.Failed, Waiting: status.Waiting(plan.Waiting, blocked)}
}

func stopped(plan *upgrade.Plan) string {
	if plan == nil || len(plan.Failed) == 0 {
		return ""
	}
	return "node " + plan.Failed[0].Node + ": " + plan.Failed[0].Why
}

// rolling are the DaemonSets, but for the driver's, whose pods are being replaced.
func (c *Controller) rolling() (names []string) {
	for _, o := range c.model.live() {
		d := daemonSet(o)
		if d == nil || d.Spec.UpdateStrategy.Type == "OnDelete" {
			continue
		}
		if st := d.Status; st.ObservedGeneration == d.Generation && st.UpdatedNumberScheduled < st.DesiredNumberScheduled && st.NumberReady > 0 {
			names = append(names, d.Name)
		}
	}
	return names
}

// event tells of something, on the policy or on a Node.
func (c *Controller) event(policy *v1.ClusterPolicy, e status.Event) {
	if e.Node == "" {
		c.Events.Eventf(policy, nil, e.Type, e.Reason, action, "%s", e.Message)
		return
	}
	if on := c.model.nodes[e.Node]; on != nil {
		c.Events.Eventf(nodeObject(on.node), policy, e.Type, e.Reason, action, "%s", e.Message)
	}
}

func nodeObject(n *fleet.Node) *corev1.Node {
	o := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	o.Name, o.UID = n.Name, types.UID(n.UID)
	return o
}

// write writes a policy's status, if it is another.
func (c *Controller) write(ctx context.Context, p *v1.ClusterPolicy, sum v1.ClusterPolicyStatus) {
	if equality.Semantic.DeepEqual(p.Status, sum) {
		return
	}
	_ = c.attempt("status of ClusterPolicy "+p.Name, func() error {
		ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
		defer cancel()
		next := p.DeepCopy()
		next.Status = sum
		err := c.Client.Status().Patch(ctx, next, client.MergeFrom(p), client.FieldOwner(label.FieldManager))
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		seePolicy(c.model, next)
		return nil
	})
}

// show has Prometheus shown how everything stands.
func (c *Controller) show(sum v1.ClusterPolicyStatus, nodes []status.Node, s *scene, p *status.Provisioning) {
	snapshot := meter.Snapshot{Upgrade: map[string]int{}, Conditions: map[string]bool{}, Problems: map[string]int{}, Steps: meter.Steps(p.Status())}
	for _, n := range nodes {
		snapshot.Add(n.Pool, n.Progress)
		if state := n.Labels[label.UpgradeState]; state != "" {
			snapshot.Upgrade[state]++
		}
	}
	for _, kind := range []string{v1.ConditionReady, v1.ConditionProgressing, v1.ConditionDegraded, v1.ConditionUnserved} {
		snapshot.Conditions[kind] = meta.IsStatusConditionTrue(sum.Conditions, kind)
	}
	for _, choice := range s.choices {
		if choice.Problem != nil {
			snapshot.Problems[string(choice.Problem.Reason)]++
		}
	}
	c.Metrics.Show(snapshot)
}
