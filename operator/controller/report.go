package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate/record"
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
	at           time.Time // when that was; zero: never
	policy       string    // its UID
	conditions   []metav1.Condition
	tally        *status.Tally
	wanted       progress.Wanted
	provisioning *status.Provisioning
}

// due is when there is something to report; zero: never. A change is reported with what
// follows from it at once, and all changes at most once in ReportEvery.
func (c *Controller) due() time.Time {
	if c.since.IsZero() {
		return time.Time{}
	}
	at := c.since.Add(PassEvery)
	if soonest := c.said.at.Add(ReportEvery); at.Before(soonest) {
		return soonest
	}
	return at
}

// report sums up what has changed since the last report into the policies' status, Events
// and metrics.
func (c *Controller) report(ctx context.Context) {
	r, s, now := &c.said, c.scene, c.last
	c.since = time.Time{}
	if s.policy != nil {
		// Its status may be another since; what it asks for is as it was, or there is a pass.
		if have := c.model.policies[s.policy.Name]; have != nil && have.UID == s.policy.UID && have.Generation == s.policy.Generation {
			s.policy = have
		}
	}
	defer c.ignore(ctx, s, now)
	if s.policy == nil {
		c.Metrics.Show(meter.Snapshot{})
		*r = reporting{at: now}
		c.model.touched = map[string]bool{}
		return
	}
	if r.policy != string(s.policy.UID) {
		*r = reporting{policy: string(s.policy.UID), conditions: s.policy.Status.Conditions, tally: status.NewTally(), provisioning: status.NewProvisioning(s.policy.Status.Provisioning)}
		c.model.touchAll()
	}
	r.at = now
	changes := c.progress(s, now)
	sum := status.Sum(status.Input{
		Policy: s.policy, Now: now, Namespace: cmp.Or(s.elsewhere, c.Cluster.Namespace), Verdict: c.verdict(s), Operator: c.Operator.String(), Others: c.others(),
		Described: c.model.census.described > 0, Tally: r.tally, Choices: s.choices, Unserved: s.unserved,
		Upgrade: upgrading(c.plan, c.blocked), UpgradeError: stopped(c.plan), Rolling: c.rolling(), Problems: append(s.told(), putOff(c.plan)...), Err: errors.Join(c.err, c.model.refusal()),
		Prebuilt: s.prebuilt, Provisioning: r.provisioning.Status(),
	})
	for _, e := range status.Events(r.conditions, sum.Conditions, changes) {
		c.event(s.policy, e)
	}
	r.conditions = sum.Conditions
	c.show(sum)
	c.write(ctx, s.policy, sum)
}

// ignore tells the policies that are not in force so, after the one that is.
func (c *Controller) ignore(ctx context.Context, s *scene, now time.Time) {
	_, ignored := c.model.inForce()
	for _, p := range ignored {
		if s.policy != nil {
			c.write(ctx, p, status.Sum(status.Input{
				Policy: p, Now: now, Namespace: c.Cluster.Namespace, Verdict: status.Ignored(s.policy.Name), Operator: c.Operator.String(), Others: c.others(),
			}))
		}
	}
}

// Reasons of what of the policy cannot be done, apart from those of the objects.
const (
	reasonUpgradePolicy state.Reason = "UpgradePolicyInvalid" // driver.upgradePolicy cannot be read
	reasonCertificates  state.Reason = "CertificatesInvalid"  // registries are asked without some of driver.certConfig
	reasonUnwritten     state.Reason = "NodeNotWritten"       // an upgrade gives way to those of nodes that can be written
	reasonBlocked       state.Reason = "DriverUpgradeBlocked" // … of nodes on which no pod stands in the way
)

// told are what of the policy could not be rendered as it says.
func (s *scene) told() (all []status.Problem) {
	for _, p := range s.problems {
		all = append(all, status.Problem{Reason: string(p.Reason), Message: fmt.Sprintf("%s: %s", p.State, p.Message)})
	}
	return all
}

// putOff are the nodes whose driver's upgrade has given its turn back, since they cannot be
// written, or since a pod stands in the way: the first of them, and how many more there are.
func putOff(plan *upgrade.Plan) (all []status.Problem) {
	if plan == nil {
		return nil
	}
	add := func(reason state.Reason, nodes []upgrade.Failure, are, next string) {
		if len(nodes) == 0 {
			return
		}
		text := fmt.Sprintf("node %s: %s", nodes[0].Node, nodes[0].Why)
		if len(nodes) > 1 {
			text = fmt.Sprintf("%d nodes %s, %s", len(nodes), are, text)
		}
		all = append(all, status.Problem{Reason: string(reason), Message: text + "; other nodes' upgrades go on, and " + next})
	}
	add(reasonUnwritten, plan.Unwritten, "cannot be written", "it is tried again: see which admission webhook or policy refuses it")
	add(reasonBlocked, plan.Blocked, "wait for pods to go", "it is tried again when the pod has gone")
	return all
}

// verdict is why the policy is not carried out; nil: it is.
func (c *Controller) verdict(s *scene) *status.Verdict {
	if s.elsewhere != "" {
		return status.OperandsElsewhere(s.elsewhere)
	}
	if !s.handOver || c.model.census.served > 0 {
		return nil
	}
	var running string
	for key := range c.model.other {
		running = max(running, key.String())
	}
	return status.OtherOperator("Deployment "+running, label.HandOver+"="+label.Product)
}

// others returns the Deployments of this product's operator in other namespaces.
func (c *Controller) others() (all []string) {
	for key := range c.model.siblings {
		if key.Namespace != c.Operator.Namespace {
			all = append(all, key.String())
		}
	}
	return all
}

// progress counts how far the GPU nodes are of which something was said, or all of them
// where they are measured by something else. It returns what has changed.
func (c *Controller) progress(s *scene, now time.Time) (changes []status.Change) {
	r, touched := &c.said, c.model.touched
	if wanted := (progress.Wanted{States: s.states, HandOver: s.handOver}); !reflect.DeepEqual(wanted, r.wanted) {
		r.wanted = wanted
		c.model.touchAll()
	}
	for name := range touched {
		if change, is := c.recount(name, s, now); is {
			changes = append(changes, change)
		}
	}
	c.model.touched = map[string]bool{}
	return changes
}

// recount counts one node anew, and says what of it has changed.
func (c *Controller) recount(name string, s *scene, now time.Time) (status.Change, bool) {
	r := &c.said
	on := c.model.nodes[name]
	if on == nil || !on.node.GPU {
		if before := r.tally.Drop(name); before != nil {
			r.provisioning.Forget(before.UID)
		}
		return status.Change{}, false
	}
	pods := make([]*progress.Pod, 0, len(on.pods))
	for _, o := range on.pods {
		pods = append(pods, o.Pod)
	}
	n := status.Node{Node: on.node, Progress: progress.Of(on.node, pods, r.wanted)}
	before := r.tally.Put(n)
	if before != nil && before.UID != n.UID {
		r.provisioning.Forget(before.UID)
		before = nil
	}
	r.provisioning.Observe(n, s.policy.CreationTimestamp.Time, now)
	if before == nil {
		return status.Change{}, false
	}
	return status.Change{Node: name, Before: before.Progress, Now: n.Progress}, true
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
		c.Events.Eventf(policy, nil, e.Type, e.Reason, action, "%s", record.Clean(e.Message, maxNote))
		return
	}
	if on := c.model.nodes[e.Node]; on != nil {
		c.Events.Eventf(nodeObject(on.node), policy, e.Type, e.Reason, action, "%s", record.Clean(e.Message, maxNote))
	}
}

func nodeObject(n *fleet.Node) *corev1.Node {
	o := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	o.Name, o.UID = n.Name, types.UID(n.UID)
	return o
}

// write has a policy's status written, if it is another.
func (c *Controller) write(ctx context.Context, p *v1.ClusterPolicy, sum v1.ClusterPolicyStatus) {
	name := "status of ClusterPolicy " + p.Name
	have, telling := c.model.telling[p.Name]
	if !telling {
		have = p.Status
	}
	if equality.Semantic.DeepEqual(have, sum) {
		return
	}
	_ = c.request(name, p == c.scene.policy, func() (func(), error) {
		ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
		defer cancel()
		patch, err := statusPatch(p, sum)
		if err != nil {
			return nil, err
		}
		// Of the answer, no more is asked for than what the status is now known by.
		written := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: v1.GroupVersion().String(), Kind: v1.Kind}}
		written.Name = p.Name
		err = c.Client.Status().Patch(ctx, written, patch, client.FieldOwner(label.FieldManager))
		return func() {
			if err != nil || written.Generation != p.Generation || c.model.policies[p.Name] != p {
				return // it has gone, or somebody has written since: that is on its way, or here
			}
			// Nothing follows from a status: what asks for something is what it was before.
			next := *p
			next.ResourceVersion, next.Status = written.ResourceVersion, sum
			c.model.policies[p.Name] = &next
		}, client.IgnoreNotFound(err)
	})
	if r := c.requests[name]; r != nil && r.running && !telling {
		c.model.telling[p.Name] = sum
		r.ended = func() {
			delete(c.model.telling, p.Name)
			if have := c.model.policies[p.Name]; have != nil && have.UID != p.UID {
				c.model.common = true // it was another of that name that was told
			}
		}
	}
}

// statusPatch puts a status in place of the one before, of that policy and no other of its
// name. It is made of the one alone: what would be left out of a merge patch costs more to
// find than to send.
func statusPatch(p *v1.ClusterPolicy, sum v1.ClusterPolicyStatus) (client.Patch, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	body, err := json.Marshal([]operation{{"test", "/metadata/uid", p.UID}, {"add", "/status", sum}})
	return client.RawPatch(types.JSONPatchType, body), err
}

// show has Prometheus shown how everything stands.
func (c *Controller) show(sum v1.ClusterPolicyStatus) {
	r := &c.said
	snapshot := meter.Snapshot{Upgrade: maps.Clone(r.tally.Upgrades()), Conditions: map[string]bool{}, Problems: map[string]int{}, Steps: meter.Steps(r.provisioning.Status())}
	for _, g := range r.tally.Groups() {
		snapshot.Add(meter.Place{Pool: g.Pool.String(), State: g.State, Status: g.Status}, g.Nodes, g.Since)
	}
	for _, kind := range []string{v1.ConditionReady, v1.ConditionProgressing, v1.ConditionDegraded, v1.ConditionUnserved, v1.ConditionContested} {
		snapshot.Conditions[kind] = meta.IsStatusConditionTrue(sum.Conditions, kind)
	}
	for _, choice := range c.scene.choices {
		if choice.Problem != nil {
			snapshot.Problems[string(choice.Problem.Reason)]++
		}
	}
	c.Metrics.Show(snapshot)
}
