package controller

import (
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
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
	if ns := p.Status.Namespace; ns != m.namespace && len(m.elsewhere[ns]) > 0 {
		return ns
	}
	return ""
}
