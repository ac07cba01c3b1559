package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/fleet"
)

// Selection selects the NVIDIADriver of each node. nil selects none: the ClusterPolicy has the
// driver of every node.
type Selection struct {
	drivers []selector        // by name
	byName  map[string]source // by name
	unread  string            // why the NVIDIADrivers are not known; "" if they are
}

// source is an NVIDIADriver in the form of a policy.
type source struct {
	spec    *v1.ClusterPolicySpec
	problem *Problem // why no node can get the driver
}

// selector selects the nodes of one NVIDIADriver.
type selector struct {
	name      string
	isDefault bool
	labels    map[string]string
	terms     [][]requirement // nil: all nodes; else a node meets all requirements of one of them
}

// requirement is one on a node's labels or, if it has no selector, on its name.
type requirement struct {
	labels labels.Selector
	names  []string
	not    bool
}

// NewSelection returns the Selection of NVIDIADrivers, for a policy that leaves drivers to them.
// Those that are being deleted select no node. unread is why the NVIDIADrivers are not known, or "".
func NewSelection(policy *v1.ClusterPolicySpec, drivers []*v1alpha1.NVIDIADriver, unread string) *Selection {
	s := &Selection{byName: map[string]source{}, unread: unread}
	for _, d := range drivers {
		if d.DeletionTimestamp != nil {
			continue
		}
		one := selector{name: d.Name, isDefault: d.Spec.Default, labels: d.Spec.NodeSelector}
		of := source{spec: d.PolicySpec(policy)}
		var err error
		if one.terms, err = parseAffinity(d.Spec.NodeAffinity); err != nil {
			of.problem = &Problem{Reason: SelectorInvalid, Message: fmt.Sprintf("spec.nodeAffinity is not valid in Kubernetes: %v; correct it", err), Keep: true}
		} else if d.Spec.DriverType == v1alpha1.TypeHostManager {
			of.problem = &Problem{Reason: DriverTypeNotServed, Message: "driverType is vgpu-host-manager, and gpuready serves containers only: keep NVIDIA's operator for nodes with virtual machines", Keep: true}
		}
		s.drivers = append(s.drivers, one)
		s.byName[d.Name] = of
	}
	slices.SortFunc(s.drivers, func(a, b selector) int { return cmp.Compare(a.name, b.name) })
	return s
}

// maxTerms bounds the terms of an affinity, and the requirements of each: they are compared with the
// labels of thousands of nodes.
const maxTerms = 64

// maxSelecting bounds how many NVIDIADrivers that select one node are named.
const maxSelecting = 10

// Of returns the names of the NVIDIADrivers that select a node, as fleet.Pool.Drivers has them.
// Defaults count only if no other one selects the node.
func (s *Selection) Of(node string, all map[string]string) string {
	if s == nil {
		return ""
	}
	var names []string
	for _, byDefault := range []bool{false, true} {
		for i := range s.drivers {
			if d := &s.drivers[i]; d.isDefault == byDefault && d.selects(node, all) {
				names = append(names, d.name)
			}
		}
		if len(names) > 0 {
			return strings.Join(names[:min(len(names), maxSelecting)], ", ")
		}
	}
	return fleet.NoDriver
}

func (d *selector) selects(node string, all map[string]string) bool {
	for key, value := range d.labels {
		if have, ok := all[key]; !ok || have != value {
			return false
		}
	}
	return d.terms == nil || slices.ContainsFunc(d.terms, func(term []requirement) bool {
		return len(term) > 0 && !slices.ContainsFunc(term, func(r requirement) bool { return !r.matchesNode(node, all) })
	})
}

func (r requirement) matchesNode(node string, all map[string]string) bool {
	if r.labels == nil {
		return slices.Contains(r.names, node) != r.not
	}
	return r.labels.Matches(labels.Set(all))
}

// parseAffinity parses the required part of a node affinity. An error leaves the nodes to the
// nodeSelector alone.
func parseAffinity(object *v1.Object) (terms [][]requirement, err error) {
	var affinity corev1.NodeAffinity
	if err := object.Decode(&affinity); err != nil {
		return nil, err
	}
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return nil, nil
	}
	if n := len(required.NodeSelectorTerms); n > maxTerms {
		return nil, fmt.Errorf("%d nodeSelectorTerms are more than %d", n, maxTerms)
	}
	terms = [][]requirement{}
	for _, t := range required.NodeSelectorTerms {
		if n := len(t.MatchExpressions) + len(t.MatchFields); n > maxTerms {
			return nil, fmt.Errorf("%d requirements of a nodeSelectorTerm are more than %d", n, maxTerms)
		}
		var term []requirement
		for _, e := range t.MatchExpressions {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil {
				return nil, err
			}
			term = append(term, requirement{labels: labels.NewSelector().Add(*r)})
		}
		for _, f := range t.MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn && f.Operator != corev1.NodeSelectorOpNotIn {
				return nil, fmt.Errorf("requirement %s %s of a node's fields", f.Key, f.Operator)
			}
			term = append(term, requirement{names: f.Values, not: f.Operator == corev1.NodeSelectorOpNotIn})
		}
		terms = append(terms, term)
	}
	return terms, nil
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// Specs returns the policies' specs with the drivers of the NVIDIADrivers, by their names.
func (s *Selection) Specs() map[string]*v1.ClusterPolicySpec {
	if s == nil {
		return nil
	}
	specs := map[string]*v1.ClusterPolicySpec{}
	for name, of := range s.byName {
		specs[name] = of.spec
	}
	return specs
}

// Choose chooses the driver of a pool: that of the NVIDIADriver that selects its nodes, or the
// policy's if s is nil. node is the name of one of the pool's nodes, for messages. facts returns the
// facts for a policy.
func (s *Selection) Choose(policy *v1.ClusterPolicySpec, pool fleet.Pool, node string, facts func(*v1.ClusterPolicySpec) Facts) Choice {
	if s == nil || !policy.Driver.IsEnabled() {
		return Choose(policy, pool, node, facts(policy))
	}
	none := func(reason Reason, format string, args ...any) Choice {
		return Choice{Pool: pool, Problem: &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Keep: true}}
	}
	name := pool.NVIDIADriver()
	of, known := s.byName[name]
	switch {
	case pool.NotServed && (!known || !of.spec.Driver.IsSimulated()):
		return chooseNone(pool, node)
	case s.unread != "":
		return none(DriversUnknown, "spec.driver.useNvidiaDriverCRD is set, and the NVIDIADrivers are not known: %s", s.unread)
	case pool.Drivers == fleet.NoDriver && len(s.drivers) == 0:
		return none(NoDriverSelected, "spec.driver.useNvidiaDriverCRD is set, and there is no NVIDIADriver: nodes such as %s keep what they have; create one, or set it to false", node)
	case pool.Drivers == fleet.NoDriver:
		return none(NoDriverSelected, "no NVIDIADriver selects node %s, which keeps what it has: label the node, or create an NVIDIADriver with spec.default", node)
	case !known:
		return none(Conflict, "NVIDIADrivers %s select node %s, which keeps what it has: change a nodeSelector, or the node's labels", pool.Drivers, node)
	case of.problem != nil:
		return none(of.problem.Reason, "NVIDIADriver %s: %s", name, of.problem.Message)
	}
	choice := Choose(of.spec, pool, node, facts(of.spec))
	if choice.Problem != nil {
		problem := *choice.Problem
		problem.Message = "NVIDIADriver " + name + ": " + fieldsOf.Replace(problem.Message)
		choice.Problem = &problem
	}
	return choice
}

// fieldsOf replaces the policy's fields by those of an NVIDIADriver.
var fieldsOf = strings.NewReplacer("spec.driver's", "its spec's", "spec.driver.enabled=false", "nvidia.com/gpu.deploy.driver=false on the nodes", "spec.driver.", "spec.", "in spec.driver ", "in its spec ")

// FieldsOf returns a message about an NVIDIADriver's fields that was written about a policy's.
func FieldsOf(name, message string) string {
	return "NVIDIADriver " + name + ": " + fieldsOf.Replace(strings.TrimPrefix(message, "driver."))
}

// Unread reports whether the NVIDIADrivers are needed and not known.
func (s *Selection) Unread() bool { return s != nil && s.unread != "" }
