package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
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
	c.Metrics.SetNVIDIAs(running)
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

// servedElsewhere returns the namespace in which operands that another operator made for a
// policy still run; "" where there are none.
func (m *model) servedElsewhere(p *v1.ClusterPolicy) string {
	if ns := p.Status.OperandNamespace(); ns != m.namespace && len(m.elsewhere[ns]) > 0 {
		return ns
	}
	return ""
}
