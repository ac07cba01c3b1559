package state

import (
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// decode decodes a DaemonSet; unknown fields are an error.
func decode(data []byte) (*appsv1.DaemonSet, error) {
	var d appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return nil, err
	}
	return &d, nil
}

// container returns the container or init container with a name. It exists, since the
// templates are ours.
func container(d *appsv1.DaemonSet, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{d.Spec.Template.Spec.Containers, d.Spec.Template.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return &corev1.Container{}
}

// setUpdateStrategy sets how the DaemonSet's pods are replaced, if the policy specifies it.
func (r *renderer) setUpdateStrategy(d *appsv1.DaemonSet) {
	spec := r.spec.Daemonsets
	if spec.UpdateStrategy == string(appsv1.OnDeleteDaemonSetStrategyType) {
		d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		return
	}
	if spec.RollingUpdate != nil && spec.RollingUpdate.MaxUnavailable != nil {
		unavailable, ok := spec.RollingUpdate.Unavailable()
		if !ok {
			r.reportInvalid("daemonsets.rollingUpdate.maxUnavailable", fmt.Sprintf("%q", spec.RollingUpdate.MaxUnavailable), "1 is used")
		}
		surge := intstr.FromInt32(0)
		d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable, MaxSurge: &surge},
		}
	}
}

// setPlacement confines the DaemonSet to the nodes of an operand, by the labels that the
// operator gives them. While NVIDIA's operator runs, it writes the deploy labels of all nodes.
// Then our nodes are those that were handed over, and deploy labels only exclude agents.
func (r *renderer) setPlacement(d *appsv1.DaemonSet, operand string, more map[string]string) {
	pod := &d.Spec.Template.Spec
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
	maps.Copy(pod.NodeSelector, more)
	pod.Affinity = nil
	if !r.in.Cluster.HandOver {
		pod.NodeSelector[label.Deploy+operand] = "true"
		return
	}
	pod.NodeSelector[label.HandOver] = label.Product
	away := []string{"false"}
	if operand == "driver" {
		away = append(away, label.PreInstalled)
	}
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: label.Deploy + operand, Operator: corev1.NodeSelectorOpNotIn, Values: away},
			}}},
		},
	}}
}

// newAgent decodes the DaemonSet of one of our agents for the nodes with an injection.
func (r *renderer) newAgent(a deployments.Agent, image string, i fleet.Injection, runtime bool) (*appsv1.DaemonSet, error) {
	data, err := a.Render(deployments.AgentData{
		Namespace: r.in.Cluster.Namespace, Image: image, Privileged: i != fleet.NRI, Runtime: runtime,
	})
	if err != nil {
		return nil, err
	}
	d, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	r.setInjection(d, i)
	return d, nil
}

// setInjection confines the DaemonSet to the nodes with an injection. Its name has no suffix for
// NRI, the most common one.
func (r *renderer) setInjection(d *appsv1.DaemonSet, i fleet.Injection) {
	if i != fleet.NRI {
		d.Name += "-" + string(i)
	}
	d.Labels[label.Injection] = string(i)
	d.Spec.Template.Labels[label.Injection] = string(i)
	d.Spec.Selector.MatchLabels[label.Injection] = string(i)
}

// objectMeta returns the metadata of objects without a template.
func (r *renderer) objectMeta(name, app string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: r.in.Cluster.Namespace, Labels: map[string]string{"app": app}}
}
