package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// podFields are the policy's fields of an operand's pods.
type podFields struct {
	path string // of the operand in spec: "toolkit"
	spec *v1.PodSpec
}

// applyPodFields applies the policy's fields for all DaemonSets and those of one operand. The
// operator's own labels, annotations and placement win.
func (r *renderer) applyPodFields(s progress.State, d *appsv1.DaemonSet, own podFields) {
	spec, pod := r.spec.Daemonsets, &d.Spec.Template
	labels := r.labels("daemonsets.labels", spec.Labels)
	maps.Copy(labels, r.labels(own.path+".labels", own.spec.Labels))
	maps.Copy(labels, pod.Labels) // selectors use them
	labels[label.ManagedBy], labels[label.PartOf], labels[label.State] = label.Operator, label.Product, string(s)
	pod.Labels = labels
	annotations := r.annotations("daemonsets.annotations", spec.Annotations)
	maps.Copy(annotations, r.annotations(own.path+".annotations", own.spec.Annotations))
	maps.Copy(annotations, pod.Annotations)
	if len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 1 {
		annotations[label.DefaultContainer] = pod.Spec.Containers[0].Name
	}
	pod.Annotations = nil
	if len(annotations) > 0 {
		pod.Annotations = annotations
	}
	class := &pod.Spec.PriorityClassName
	*class = cmp.Or(r.name("daemonsets.priorityClassName", spec.PriorityClassName, *class), *class)
	*class = cmp.Or(r.name(own.path+".priorityClassName", own.spec.PriorityClassName, *class), *class)
	r.selectNodes(&pod.Spec, own)
	r.tolerate(&pod.Spec, own)
	if own.spec.UsesHostNetwork() {
		pod.Spec.HostNetwork, pod.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
	}
	r.setPodSecurity(&pod.Spec, own)
}

// tolerate adds the policy's tolerations and one for its startup taint.
func (r *renderer) tolerate(pod *corev1.PodSpec, own podFields) {
	for _, t := range r.tolerations(own.path, own.spec.Tolerations) {
		same := func(have corev1.Toleration) bool { return have.MatchToleration(&t) }
		if !slices.ContainsFunc(pod.Tolerations, same) {
			pod.Tolerations = append(pod.Tolerations, t)
		}
	}
}

// selectNodes adds the policy's node selectors and affinity to those that the operator requires.
func (r *renderer) selectNodes(pod *corev1.PodSpec, own podFields) {
	wanted := r.labels("daemonsets.nodeSelector", r.spec.Daemonsets.NodeSelector)
	maps.Copy(wanted, r.labels(own.path+".nodeSelector", own.spec.NodeSelector))
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if have, ok := pod.NodeSelector[key]; ok && have != wanted[key] {
			r.reportInvalid(own.path+".nodeSelector", fmt.Sprintf("%s=%s, which the operator itself requires to be %q,", key, wanted[key], have), "is left out")
			continue
		}
		pod.NodeSelector[key] = wanted[key]
	}
	for _, source := range []struct {
		field  string
		object *v1.Object
	}{{"daemonsets.affinity", r.spec.Daemonsets.Affinity}, {own.path + ".affinity", own.spec.Affinity}} {
		if source.object.IsEmpty() {
			continue
		}
		var affinity corev1.Affinity
		err := source.object.Decode(&affinity)
		if err == nil {
			err = validAffinity(&affinity)
		}
		if err != nil {
			r.reportInvalid(source.field, err.Error(), "is left out")
			continue
		}
		pod.Affinity = joinAffinity(&affinity, pod.Affinity)
	}
}

// joinAffinity returns the affinity of pods that have both. It changes a.
func joinAffinity(a, b *corev1.Affinity) *corev1.Affinity {
	if b == nil {
		return a
	}
	switch x, y := a.NodeAffinity, b.NodeAffinity; {
	case x == nil:
		a.NodeAffinity = y
	case y != nil:
		x.RequiredDuringSchedulingIgnoredDuringExecution = joinSelectors(x.RequiredDuringSchedulingIgnoredDuringExecution, y.RequiredDuringSchedulingIgnoredDuringExecution)
		x.PreferredDuringSchedulingIgnoredDuringExecution = append(x.PreferredDuringSchedulingIgnoredDuringExecution, y.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	switch x, y := a.PodAffinity, b.PodAffinity; {
	case x == nil:
		a.PodAffinity = y
	case y != nil:
		x.RequiredDuringSchedulingIgnoredDuringExecution = append(x.RequiredDuringSchedulingIgnoredDuringExecution, y.RequiredDuringSchedulingIgnoredDuringExecution...)
		x.PreferredDuringSchedulingIgnoredDuringExecution = append(x.PreferredDuringSchedulingIgnoredDuringExecution, y.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	switch x, y := a.PodAntiAffinity, b.PodAntiAffinity; {
	case x == nil:
		a.PodAntiAffinity = y
	case y != nil:
		x.RequiredDuringSchedulingIgnoredDuringExecution = append(x.RequiredDuringSchedulingIgnoredDuringExecution, y.RequiredDuringSchedulingIgnoredDuringExecution...)
		x.PreferredDuringSchedulingIgnoredDuringExecution = append(x.PreferredDuringSchedulingIgnoredDuringExecution, y.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	return a
}

// joinSelectors returns the selector of the nodes that both select. Of a selector's terms one
// suffices, so that each of one is joined with each of the other. A term without requirements
// selects no node and stays as it is.
func joinSelectors(a, b *corev1.NodeSelector) *corev1.NodeSelector {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	joined := &corev1.NodeSelector{}
	for _, x := range a.NodeSelectorTerms {
		if len(x.MatchExpressions)+len(x.MatchFields) == 0 {
			joined.NodeSelectorTerms = append(joined.NodeSelectorTerms, x)
			continue
		}
		for _, y := range b.NodeSelectorTerms {
			joined.NodeSelectorTerms = append(joined.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(x.MatchExpressions, y.MatchExpressions),
				MatchFields:      slices.Concat(x.MatchFields, y.MatchFields),
			})
		}
	}
	return joined
}
