package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// reportDelay is the time from a pass to its report, which shows the immediate consequences,
// too. reportEvery is the minimum time between two reports.
const (
	reportDelay = 100 * time.Millisecond
	reportEvery = time.Second
)

// reportState is the last report and what the next one continues.
type reportState struct {
	at           time.Time // of the report; zero: never
	policy       string    // its UID
	conditions   []metav1.Condition
	provisioning *status.Provisioning
	nvidias      nvidiasReport
}

// reportDue returns when a report is due; zero means never.
func (c *Controller) reportDue() time.Time {
	if c.unreported.IsZero() {
		return time.Time{}
	}
	at := c.unreported.Add(reportDelay)
	if soonest := c.lastReport.at.Add(reportEvery); at.Before(soonest) {
		return soonest
	}
	return at
}

// report writes what has changed since the last report to the policies' status, Events and
// metrics.
func (c *Controller) report(ctx context.Context, now time.Time) {
	r, s := &c.lastReport, c.desired
	c.unreported = time.Time{}
	if s.placeByHandOver && !s.handOver {
		return // kubectl gpu migrate waits for the first report before it removes label.HandOver
	}
	if s.policy != nil {
		// Its status may have changed since. Its spec has not, or a pass would follow.
		if have := c.model.policies[s.policy.Name]; have != nil && have.UID == s.policy.UID && have.Generation == s.policy.Generation {
			s.policy = have
		}
	}
	defer c.reportIgnored(ctx, s, now)
	c.reportNVIDIAs(s.policy)
	if s.policy == nil {
		c.Metrics.SetSnapshot(metrics.Snapshot{})
		c.reportDrivers(ctx, s, status.Tally{}, now)
		*r = reportState{at: now, nvidias: r.nvidias}
		return
	}
	if r.policy != string(s.policy.UID) {
		*r = reportState{policy: string(s.policy.UID), conditions: s.policy.Status.Conditions, provisioning: status.NewProvisioning(s.policy.Status.Provisioning), nvidias: r.nvidias}
		c.forgetReported()
	}
	r.at = now
	nodes, changes := c.observeProgress(s)
	r.provisioning.Observe(nodes, s.policy.CreationTimestamp.Time, now)
	tally := status.Count(nodes)
	sum := status.Compute(status.Input{
		Policy: s.policy, Now: now, Namespace: cmp.Or(s.elsewhere, c.Cluster.Namespace), Verdict: c.verdict(s), Operator: c.Operator.String(), Others: c.otherOperators(), Plugins: c.model.otherPlugins(),
		Described: c.survey.described, Tally: tally, Choices: s.choices, Unserved: s.unserved,
		Upgrade: upgradeStatus(c.plan, c.blocked), UpgradeError: upgradeFailure(c.plan), Serve: c.serveStatus(&s.policy.Spec.DRADriver), Rolling: c.rollingDaemonSets(),
		Problems: slices.Concat(s.renderProblems(), deferredUpgrades(c.plan), c.serveProblems(s)), Err: errors.Join(c.passErr, c.model.unwrittenError()),
		Prebuilt: s.prebuilt, Provisioning: r.provisioning.Status(),
	})
	for _, e := range status.Events(r.conditions, sum.Conditions, changes) {
		if e.Reason != status.ReasonOtherOperator { // reported above
			c.recordEvent(s.policy, e)
		}
	}
	r.conditions = sum.Conditions
	c.publishMetrics(tally, sum)
	c.reportDrivers(ctx, s, tally, now)
	c.writeStatus(ctx, s.policy, sum)
}

// reportIgnored writes the status of the policies that are not in force.
func (c *Controller) reportIgnored(ctx context.Context, s *desired, now time.Time) {
	_, ignored := c.model.inForce()
	for _, p := range ignored {
		if s.policy != nil {
			c.writeStatus(ctx, p, status.Compute(status.Input{
				Policy: p, Now: now, Namespace: c.Cluster.Namespace, Verdict: status.Ignored(s.policy.Name), Operator: c.Operator.String(), Others: c.otherOperators(),
			}))
		}
	}
}

// Reasons why parts of the policy cannot be carried out, besides those of the objects.
const (
	reasonUpgradePolicy state.Reason = "UpgradePolicyInvalid" // driver.upgradePolicy cannot be read
	reasonCertificates  state.Reason = "CertificatesInvalid"  // registries are asked without some of driver.certConfig
	reasonUnwritten     state.Reason = "NodeNotWritten"       // an upgrade yields to nodes that can be patched
	reasonBlocked       state.Reason = "DriverUpgradeBlocked" // an upgrade yields to nodes without blocking pods
)

// renderProblems returns the parts of the policy that could not be rendered as specified.
func (s *desired) renderProblems() (all []status.Problem) {
	for _, p := range s.problems {
		all = append(all, status.Problem{Reason: string(p.Reason), Message: fmt.Sprintf("%s: %s", p.State, p.Message)})
	}
	return all
}

// deferredUpgrades returns a problem for the nodes that cannot be patched and one for those
// on which a pod blocks the upgrade. Each names the first node and the number of nodes.
func deferredUpgrades(plan *upgrade.Plan) (all []status.Problem) {
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
		all = append(all, status.Problem{Reason: string(reason), Message: text + "; other nodes' upgrades continue, and " + next})
	}
	add(reasonUnwritten, plan.Unwritten, "cannot be written", "it is retried: see which admission webhook or policy refuses it")
	add(reasonBlocked, plan.Blocked, "wait for pods to go", "it is retried when the pod is gone")
	return all
}

// verdict returns why the policy is not carried out, or nil if it is.
func (c *Controller) verdict(s *desired) *status.Verdict {
	if s.elsewhere != "" {
		return status.OperandsElsewhere(s.elsewhere)
	}
	if !s.handOver || c.survey.served > 0 {
		return nil
	}
	return status.OtherOperator("Deployment "+c.model.nvidiasOperator(), label.HandOver+"="+label.Product)
}

// otherOperators returns the other Deployments of this product's operator: in other namespaces,
// and what an earlier version has left in this one.
func (c *Controller) otherOperators() (all []string) {
	for key := range c.model.siblings {
		if key != c.Operator {
			all = append(all, key.String())
		}
	}
	return all
}

// observeProgress returns the GPU nodes, and what has changed since the last report.
func (c *Controller) observeProgress(s *desired) (nodes []status.Node, changes []status.Change) {
	nodes = make([]status.Node, 0, len(c.model.nodes))
	var pods []*progress.Pod
	for _, on := range c.model.members() {
		name, before := on.node.Name, on.reported
		on.reported = nil
		if !on.node.GPU {
			continue
		}
		pods = pods[:0]
		for _, o := range c.model.podsOn[name] {
			pods = append(pods, o.Pod)
		}
		nodes = append(nodes, status.Node{Node: on.node, Progress: progress.Of(on.node, pods, s.wanted)})
		now := &nodes[len(nodes)-1]
		on.reported = now
		if before != nil && before.UID == now.UID && (before.Status != now.Status || before.State != now.State || before.Reason != now.Reason) {
			changes = append(changes, status.Change{Node: name, Before: before.Progress, Now: now.Progress})
		}
	}
	return nodes, changes
}

// forgetReported makes the next report the first one.
func (c *Controller) forgetReported() {
	for _, on := range c.model.nodes {
		on.reported = nil
	}
}

// upgradeStatus returns the progress of the driver upgrade. blocked holds the refused
// evictions by node.
func upgradeStatus(plan *upgrade.Plan, blocked map[string]string) *v1.UpgradeStatus {
	if plan == nil || plan.Counts.Total == 0 {
		return nil
	}
	n := plan.Counts
	return &v1.UpgradeStatus{Total: n.Total, Done: n.Done, InProgress: n.InProgress, Pending: n.Pending, Failed: n.Failed, Waiting: status.Waiting(plan.Waiting, blocked)}
}

func upgradeFailure(plan *upgrade.Plan) string {
	if plan == nil || len(plan.Failed) == 0 {
		return ""
	}
	return "node " + plan.Failed[0].Node + ": " + plan.Failed[0].Why
}

// rollingDaemonSets returns the DaemonSets, except the driver's, whose pods are being
// replaced.
func (c *Controller) rollingDaemonSets() (names []string) {
	for _, o := range c.model.ownedObjects() {
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

// recordEvent records an Event of the policy or of a Node.
func (c *Controller) recordEvent(policy *v1.ClusterPolicy, e status.Event) {
	if e.Node == "" {
		c.Events.Eventf(policy, nil, e.Type, e.Reason, eventAction, "%s", record.Clean(e.Message, maxNote))
		return
	}
	if on := c.model.nodes[e.Node]; on != nil {
		c.Events.Eventf(nodeObject(on.node), policy, e.Type, e.Reason, eventAction, "%s", record.Clean(e.Message, maxNote))
	}
}

func nodeObject(n *fleet.Node) *corev1.Node {
	o := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	o.Name, o.UID = n.Name, types.UID(n.UID)
	return o
}

// writeStatus writes a policy's status if it has changed and is not left to NVIDIA's operator.
func (c *Controller) writeStatus(ctx context.Context, p *v1.ClusterPolicy, sum v1.ClusterPolicyStatus) {
	if !c.model.mayWrite(p, c.desired.policy) {
		return
	}
	name := "status of ClusterPolicy " + p.Name
	have, telling := c.model.pendingStatus[p.Name]
	if !telling {
		have = p.Status
	}
	if equality.Semantic.DeepEqual(have, sum) {
		return
	}
	_ = c.request(name, p == c.desired.policy, func() (func(), error) {
		ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
		defer cancel()
		patch, err := statusPatch(p.UID, sum)
		if err != nil {
			return nil, err
		}
		// Of the response, only the metadata is needed.
		written := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: v1.GroupVersion().String(), Kind: v1.Kind}}
		written.Name = p.Name
		err = c.Client.Status().Patch(ctx, written, patch, client.FieldOwner(label.FieldManager))
		return func() {
			if err != nil || written.Generation != p.Generation || c.model.policies[p.Name] != p {
				return // it is gone, or somebody has written it since and the watch delivers that
			}
			// A status change has no consequences: the spec is the same.
			next := *p
			next.ResourceVersion, next.Status = written.ResourceVersion, sum
			c.model.policies[p.Name] = &next
		}, client.IgnoreNotFound(err)
	})
	if r := c.requests[name]; r != nil && r.running && !telling {
		c.model.pendingStatus[p.Name] = sum
		r.onDone = func() {
			delete(c.model.pendingStatus, p.Name)
			if have := c.model.policies[p.Name]; have != nil && have.UID != p.UID {
				c.model.changed = true // the status went to another policy of that name
			}
		}
	}
}

// statusPatch replaces the status of exactly this object, not of another with its name. The
// whole status is sent: computing a merge patch costs more than sending all of it.
func statusPatch(uid types.UID, sum any) (client.Patch, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	body, err := json.Marshal([]operation{{"test", "/metadata/uid", uid}, {"add", "/status", sum}})
	return client.RawPatch(types.JSONPatchType, body), err
}

// publishMetrics updates the Prometheus metrics.
func (c *Controller) publishMetrics(tally status.Tally, sum v1.ClusterPolicyStatus) {
	snapshot := metrics.Snapshot{Upgrade: tally.Upgrades, Conditions: map[string]bool{}, Problems: map[string]int{}, Steps: metrics.Steps(c.lastReport.provisioning.Status())}
	if sum.Serve != nil {
		snapshot.Serve = serveCounts(c.serving)
	}
	for _, g := range tally.Groups {
		snapshot.Add(metrics.Place{Pool: g.Pool.String(), State: g.State, Status: g.Status}, g.Nodes, g.Since)
	}
	for _, kind := range []string{v1.ConditionReady, v1.ConditionProgressing, v1.ConditionDegraded, v1.ConditionUnserved, v1.ConditionContested} {
		snapshot.Conditions[kind] = meta.IsStatusConditionTrue(sum.Conditions, kind)
	}
	for _, choice := range c.desired.choices {
		if choice.Problem != nil {
			snapshot.Problems[string(choice.Problem.Reason)]++
		}
	}
	c.Metrics.SetSnapshot(snapshot)
}
