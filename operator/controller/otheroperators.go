package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/status"
)

// operatorKind is the kind of a Deployment that has an operator's name.
type operatorKind int

const (
	none    operatorKind = iota // no operator, or deleted
	nvidias                     // NVIDIA's operator
	sibling                     // one of this product, this one included
	standby                     // a sibling with a ready pod
)

// setOperator records the kind of a Deployment.
func (m *model) setOperator(key types.NamespacedName, kind operatorKind) {
	ready, known := m.siblings[key]
	if m.nvidiaOperators[key] == (kind == nvidias) && known == (kind >= sibling) && ready == (kind == standby) {
		return
	}
	m.changed = true
	delete(m.nvidiaOperators, key)
	delete(m.siblings, key)
	switch kind {
	case nvidias:
		m.nvidiaOperators[key] = true
	case sibling, standby:
		m.siblings[key] = kind == standby
	}
}

// handOver reports whether NVIDIA's operator runs, so that nodes are handed over one by one.
func (m *model) handOver() bool { return len(m.nvidiaOperators) > 0 }

// isLabelMissing reports whether a Node that was handed over while NVIDIA's operator ran lacks the
// label of an operand. DaemonSets that are placed by these labels already would delete their pods
// there, drivers included. A Node that could not be patched for long does not count.
func (m *model) isLabelMissing(operands []string) bool {
	for name, on := range m.nodes {
		n := on.node
		if _, refused := m.refused[name]; refused || !n.HandedOver() || !n.Served(false) {
			continue
		}
		for _, operand := range operands {
			if _, ok := n.Labels[label.Deploy+operand]; !ok {
				return true
			}
		}
	}
	return false
}

// isPlacedByHandOver reports whether a DaemonSet selects nodes by label.HandOver. Where none does,
// none may do so again: nodes that were never handed over would lose their pods.
func (m *model) isPlacedByHandOver() bool {
	for _, o := range m.objects {
		if d := daemonSet(o); d != nil && d.Spec.Template.Spec.NodeSelector[label.HandOver] == label.Product {
			return true
		}
	}
	return false
}

// nvidiasOperator returns the Deployment of NVIDIA's operator, as namespace/name, or "".
func (m *model) nvidiasOperator() (name string) {
	for key := range m.nvidiaOperators {
		name = max(name, key.String())
	}
	return name
}

// mayWrite reports whether the operator may write to a policy. While NVIDIA's operator runs, it
// writes the status of the policy that it serves, whenever it finds another one there. Of the
// others, those that came with this product are ours.
func (m *model) mayWrite(p, inForce *v1.ClusterPolicy) bool {
	if !m.handOver() {
		return true
	}
	return p.Name != inForce.Name && p.Labels[label.PartOf] == label.Product && !p.Status.Foreign()
}

// reportNVIDIAs reports in the log, by an Event and in the metrics that NVIDIA's operator serves
// the cluster: the status of the policy cannot tell. Nothing is repeated.
func (c *Controller) reportNVIDIAs(p *v1.ClusterPolicy) {
	running, r := c.model.nvidiasOperator(), &c.lastReport
	c.Metrics.SetNVIDIAOperator(running)
	told := nvidiasReport{operator: running}
	if running != "" && p != nil {
		told.policy = p.UID
	}
	before := r.nvidias
	if r.nvidias = told; told == before {
		return
	}
	if running == "" {
		c.Log.Info("NVIDIA's operator does not run any more: this operator serves the cluster", "deployment", before.operator)
		return
	}
	message := status.OtherOperator("Deployment "+running, label.HandOver+"="+label.Product).Message
	if p == nil {
		c.Log.Warn(message, "reason", status.ReasonOtherOperator)
		return
	}
	message += "; the status of this policy is left to it"
	c.Log.Warn(message, "reason", status.ReasonOtherOperator, "policy", p.Name)
	c.recordEvent(p, status.Event{Type: corev1.EventTypeWarning, Reason: status.ReasonOtherOperator, Message: message})
}

// nvidiasReport identifies what reportNVIDIAs has reported.
type nvidiasReport struct {
	operator string
	policy   types.UID
}

// updateElsewhere records whether an operand's pod exists in another namespace. Only the
// namespace that serves a policy matters: anybody can create such pods elsewhere.
func (m *model) updateElsewhere(key types.NamespacedName, exists bool) {
	pods := m.elsewhere[key.Namespace]
	if pods[key] == exists {
		return
	}
	if pods == nil {
		pods = map[types.NamespacedName]bool{}
		m.elsewhere[key.Namespace] = pods
	}
	pods[key] = true
	if !exists {
		delete(pods, key)
	}
	if len(pods) == 0 {
		delete(m.elsewhere, key.Namespace)
	}
	for _, p := range m.policies {
		m.changed = m.changed || p.Status.Namespace == key.Namespace
	}
}

// otherPlugin describes a pod of gpuready's device plugin that this operator did not create, for
// example one of the static manifests.
type otherPlugin struct{ daemonSet, node string }

// updateOtherPlugin records whether a device plugin's pod exists in another namespace. Anybody can
// create such pods, so the operator only reports them. The API server does not check the names of
// owners: one that no DaemonSet can have is a text for whoever reads the report.
func (m *model) updateOtherPlugin(p *corev1.Pod, daemonSet string, exists bool) {
	key, observed := objectKey(p), progress.ObservePod(p)
	now := otherPlugin{daemonSet, observed.Node}
	if !exists || observed.State != progress.DevicePlugin || now.node == "" || len(validation.IsDNS1123Subdomain(daemonSet)) > 0 {
		now = otherPlugin{}
	}
	if m.otherPluginPods[key] == now {
		return
	}
	m.changed = true
	m.otherPluginPods[key] = now
	if now == (otherPlugin{}) {
		delete(m.otherPluginPods, key)
	}
}

// otherPlugins returns the DaemonSets of device plugins in other namespaces that run on GPU nodes,
// each with one of these nodes. The kubelet uses only one plugin for a resource: the one that
// registered last.
func (m *model) otherPlugins() map[types.NamespacedName]string {
	all := map[types.NamespacedName]string{}
	for pod, of := range m.otherPluginPods {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: of.daemonSet}
		if on := m.nodes[of.node]; on != nil && on.node.Served(m.handOver()) && (all[key] == "" || of.node < all[key]) {
			all[key] = of.node
		}
	}
	return all
}

// servedElsewhere returns the namespace in which operands that another operator made for a
// policy still run; "" where there are none.
func (m *model) servedElsewhere(p *v1.ClusterPolicy) string {
	if ns := p.Status.OperandNamespace(); ns != m.namespace && len(m.elsewhere[ns]) > 0 {
		return ns
	}
	return ""
}
