package operator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
)

// steps are all actions of the operator and of the chart's Jobs, in an order in which they can
// run: each restores the state that it found.
var steps = []step{
	{
		name: "it starts",
		needs: []string{
			"lease: create leases.coordination.k8s.io", "lease: get leases.coordination.k8s.io", "lease: update leases.coordination.k8s.io",
			"cluster: get customresourcedefinitions.apiextensions.k8s.io",
			"cluster: list clusterpolicies.nvidia.com", "cluster: watch clusterpolicies.nvidia.com",
			"cluster: list nvidiadrivers.nvidia.com", "cluster: watch nvidiadrivers.nvidia.com",
			"cluster: list nodes", "cluster: watch nodes",
			"cluster: list deployments.apps", "cluster: watch deployments.apps",
			"cluster: list customresourcedefinitions.apiextensions.k8s.io", "cluster: watch customresourcedefinitions.apiextensions.k8s.io",
			"cluster: list apiservices.apiregistration.k8s.io", "cluster: watch apiservices.apiregistration.k8s.io",
			"cluster: list runtimeclasses.node.k8s.io", "cluster: watch runtimeclasses.node.k8s.io",
			"cluster: list deviceclasses.resource.k8s.io", "cluster: watch deviceclasses.resource.k8s.io",
			"cluster: list resourceslices.resource.k8s.io", "cluster: watch resourceslices.resource.k8s.io",
			"operands: list daemonsets.apps", "operands: watch daemonsets.apps",
			"operands: list services", "operands: watch services",
			"operands: list servicemonitors.monitoring.coreos.com", "operands: watch servicemonitors.monitoring.coreos.com",
			"operands: list jobs.batch", "operands: watch jobs.batch",
			"operands: list configmaps", "operands: watch configmaps",
			"openshift: list imagestreams.image.openshift.io", "openshift: watch imagestreams.image.openshift.io",
		},
		happens: func(t *testing.T, b *bench) {
			b.stop()
			b.remove(t, &coordinationv1.Lease{ObjectMeta: named("kube-system", "gpu-operator.gpuready.io")})
			// Use list requests, as API servers before Kubernetes 1.34 do. Newer ones stream the list
			// as the start of a watch, for which the right to watch is enough.
			b.operate(t, "KUBE_FEATURE_WatchListClient=false")
		},
		done:       func(_ *testing.T, b *bench) error { return b.works() },
		reportedIn: inLog,
		slow:       true,
	},
	{
		name:    "a node comes",
		needs:   []string{"cluster: patch nodes"},
		happens: func(t *testing.T, b *bench) { b.create(t, gpuNode("n2")) },
		done: func(t *testing.T, b *bench) error {
			if n := object[corev1.Node](t, b, "", "n2"); n.Labels["nvidia.com/gpu.present"] != "true" {
				return fmt.Errorf("labels %v", n.Labels)
			}
			return nil
		},
		undo: func(t *testing.T, b *bench) { b.remove(t, gpuNode("n2")) },
	},
	{
		name:  "the policy is changed",
		needs: []string{"cluster: patch clusterpolicies/status.nvidia.com"},
		happens: func(t *testing.T, b *bench) {
			b.change(t, `{"operator":{"labels":{"example.com/change":"%d"}}}`, b.next())
		},
		done:       func(t *testing.T, b *bench) error { return b.observed(t) },
		reportedIn: inLog,
	},
	{
		name:  "an NVIDIADriver comes",
		needs: []string{"cluster: patch nvidiadrivers/status.nvidia.com"},
		happens: func(t *testing.T, b *bench) {
			b.create(t, &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: "gold"}})
		},
		done: func(t *testing.T, b *bench) error {
			if d := object[v1alpha1.NVIDIADriver](t, b, "", "gold"); d == nil || d.Status.State != v1.Disabled {
				return fmt.Errorf("%+v", d)
			}
			return nil
		},
		undo: func(t *testing.T, b *bench) {
			b.remove(t, &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: "gold"}})
		},
		reportedIn: inLog,
	},
	again("daemonsets.apps", "operands", "nvidia-operator-validator", object[appsv1.DaemonSet]),
	edited("daemonsets.apps", "operands", "nvidia-operator-validator", object[appsv1.DaemonSet]),
	unwanted("daemonsets.apps", "operands", "nvidia-device-plugin-daemonset", object[appsv1.DaemonSet], `{"devicePlugin":{"enabled":false}}`, `{"devicePlugin":{"enabled":true}}`),
	again("services", "operands", "nvidia-dcgm", object[corev1.Service]),
	edited("services", "operands", "nvidia-dcgm", object[corev1.Service]),
	unwanted("services", "operands", "nvidia-dcgm", object[corev1.Service], `{"dcgm":{"enabled":false}}`, `{"dcgm":{"enabled":true}}`),
	again("servicemonitors.monitoring.coreos.com", "operands", "nvidia-dcgm-exporter", object[serviceMonitor]),
	edited("servicemonitors.monitoring.coreos.com", "operands", "nvidia-dcgm-exporter", object[serviceMonitor]),
	unwanted("servicemonitors.monitoring.coreos.com", "operands", "nvidia-dcgm-exporter", object[serviceMonitor], `{"dcgmExporter":{"serviceMonitor":{"enabled":false}}}`, `{"dcgmExporter":{"serviceMonitor":{"enabled":true}}}`),
	again("runtimeclasses.node.k8s.io", "cluster", "gpu", object[nodev1.RuntimeClass]),
	edited("runtimeclasses.node.k8s.io", "cluster", "gpu", object[nodev1.RuntimeClass]),
	unwanted("runtimeclasses.node.k8s.io", "cluster", "gpu", object[nodev1.RuntimeClass], `{"operator":{"runtimeClass":"nvidia"}}`, `{"operator":{"runtimeClass":"gpu"}}`),
	again("deviceclasses.resource.k8s.io", "cluster", "gpu.nvidia.com", object[resourcev1.DeviceClass]),
	edited("deviceclasses.resource.k8s.io", "cluster", "gpu.nvidia.com", object[resourcev1.DeviceClass]),
	unwanted("deviceclasses.resource.k8s.io", "cluster", "gpu.nvidia.com", object[resourcev1.DeviceClass], `{"draDriver":{"enabled":false}}`, `{"draDriver":{"enabled":true}}`),
	{
		name:  "a precompiled driver is asked for",
		needs: []string{"operands: get secrets"},
		happens: func(t *testing.T, b *bench) {
			b.change(t, `{"driver":{"usePrecompiled":true,"repository":"127.0.0.1:1/nvidia","version":"%d","imagePullSecrets":["pull"]}}`, b.next())
		},
		done: func(t *testing.T, b *bench) error {
			return b.condition(t, policy, "Degraded", "True", "RegistryUnknown", "connection refused")
		},
		undo: func(t *testing.T, b *bench) {
			b.change(t, `{"driver":{"usePrecompiled":false,"repository":"registry.example/nvidia","version":"580.95.05","imagePullSecrets":null}}`)
			b.waitNoError(t, "that is in force", func() error { return b.observed(t) })
		},
	},
	{
		name:    "a Deployment of the name of NVIDIA's operator comes",
		needs:   []string{"cluster: create subjectaccessreviews.authorization.k8s.io"},
		happens: func(t *testing.T, b *bench) { b.create(t, otherOperator(0)) },
		done: func(t *testing.T, b *bench) error {
			require.NoError(t, b.Update(t.Context(), otherOperator(b.next()))) // this triggers a new check
			var sets appsv1.DaemonSetList
			err := b.List(t.Context(), &sets, client.InNamespace(operands))
			if err == nil && len(sets.Items) == 0 {
				err = errors.New("it counts as NVIDIA's: no DaemonSet is left")
			}
			return err
		},
		// Without the right, the operator made way and deleted its DaemonSets. The next step
		// needs the new ones.
		undo: func(t *testing.T, b *bench) {
			b.remove(t, otherOperator(0))
			b.change(t, `{"operator":{"labels":{"example.com/change":"%d"}}}`, b.next())
			b.waitNoError(t, "the operator serves the policy again", func() error { return b.observed(t) })
		},
		reportedIn: inLog,
	},
	{
		name: "a node's driver is upgraded",
		needs: []string{
			"cluster: list pods", "cluster: watch pods", "cluster: create pods/eviction", "operands: delete pods",
		},
		happens: func(t *testing.T, b *bench) { b.outdated(t, "job-1") },
		done:    func(t *testing.T, b *bench) error { return b.moved(t) },
		undo:    func(t *testing.T, b *bench) { b.removeOutdated(t) },
	},
	{
		name:  "a node's driver is upgraded, on which a pod has a claim",
		needs: []string{"cluster: get resourceclaims.resource.k8s.io"},
		happens: func(t *testing.T, b *bench) {
			claim, pod := claimed()
			b.create(t, claim)
			b.outdated(t, "job-1")
			b.create(t, pod)
		},
		done: func(t *testing.T, b *bench) error { return b.moved(t) },
		undo: func(t *testing.T, b *bench) {
			claim, pod := claimed()
			b.remove(t, pod, claim)
			b.removeOutdated(t)
		},
	},
	{
		name:       "an upgrade is told of",
		needs:      []string{"default: create events.events.k8s.io"},
		happens:    func(t *testing.T, b *bench) { b.outdated(t, "job-1") },
		done:       func(t *testing.T, b *bench) error { return b.moved(t) },
		undo:       func(t *testing.T, b *bench) { b.removeOutdated(t) },
		reportedIn: inLog,
	},
	{
		name:  "a budget keeps two pods of a node, which is told of twice",
		needs: []string{"default: patch events.events.k8s.io"},
		happens: func(t *testing.T, b *bench) {
			b.create(t, budget())
			b.outdated(t, "job-1", "job-2")
		},
		done: func(*testing.T, *bench) error { return nil }, // a refused Event is not sent again
		undo: func(t *testing.T, b *bench) {
			b.remove(t, budget())
			b.removeOutdated(t)
		},
		reportedIn: inLog,
	},
	{
		name:       "the definition of policies is upgraded",
		needs:      []string{"crds: get customresourcedefinitions.apiextensions.k8s.io", "crds: patch customresourcedefinitions.apiextensions.k8s.io"},
		happens:    func(t *testing.T, b *bench) { b.start(t, "gpuready-operator-crds", nil, "crds") },
		done:       func(t *testing.T, b *bench) error { return b.ends(t, "gpuready-operator-crds", "crds") },
		reportedIn: byExit,
	},
	{
		name: "the chart is uninstalled, and the operator has gone",
		needs: []string{
			"cleanup: list clusterpolicies.nvidia.com", "cleanup: delete clusterpolicies.nvidia.com",
			"cleanup: list daemonsets.apps", "cleanup: delete daemonsets.apps", "cleanup: list pods",
			"cleanup: list services", "cleanup: delete services",
			"cleanup: list runtimeclasses.node.k8s.io", "cleanup: delete runtimeclasses.node.k8s.io",
			"cleanup: list deviceclasses.resource.k8s.io", "cleanup: delete deviceclasses.resource.k8s.io",
			"cleanup: list nodes", "cleanup: get nodes", "cleanup: patch nodes", "cleanup: patch nodes/status",
		},
		happens:    func(t *testing.T, b *bench) { b.leave(t); b.clean(t) },
		done:       func(t *testing.T, b *bench) error { return b.ends(t, "gpuready-operator-cleanup", cleanup...) },
		undo:       func(t *testing.T, b *bench) { b.tidy(t) },
		reportedIn: byExit,
	},
	{
		name:    "the same, and a DaemonSet takes its time",
		needs:   []string{"cleanup: watch daemonsets.apps"},
		happens: func(t *testing.T, b *bench) { b.leave(t, "example.com/kept"); b.clean(t) },
		done: func(t *testing.T, b *bench) error {
			if !b.trail.used["cleanup: watch daemonsets.apps"] {
				return errors.Join(b.trail.follow(), errors.New("the DaemonSet's end has not been waited for"))
			}
			if d := object[appsv1.DaemonSet](t, b, operands, "left"); d != nil {
				b.merge(t, d, `{"metadata":{"finalizers":null}}`)
			}
			return b.ends(t, "gpuready-operator-cleanup", cleanup...)
		},
		undo:       func(t *testing.T, b *bench) { b.tidy(t) },
		reportedIn: byExit,
	},
	{
		name:    "the same, and a validator takes its time",
		needs:   []string{"cleanup: watch pods"},
		happens: func(t *testing.T, b *bench) { b.leave(t); b.create(t, validator()); b.clean(t) },
		done: func(t *testing.T, b *bench) error {
			if !b.trail.used["cleanup: watch pods"] {
				return errors.Join(b.trail.follow(), errors.New("the validator's end has not been waited for"))
			}
			b.remove(t, validator())
			return b.ends(t, "gpuready-operator-cleanup", cleanup...)
		},
		undo:       func(t *testing.T, b *bench) { b.tidy(t) },
		reportedIn: byExit,
	},
}
