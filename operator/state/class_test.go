package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	nodev1 "k8s.io/api/node/v1"

	"github.com/gpuready/gpuready/operator/fleet"
)

// Pods with runtimeClassName: nvidia start on every node, or the policy's status has the reason.
func TestRuntimeClassHasAHandlerOfEveryNode(t *testing.T) {
	const dcgm = `dcgm: {enabled: true, repository: r, image: i, version: v}`
	type handlers = map[fleet.Injection][]string
	for _, c := range []struct {
		name     string
		spec     string
		nodes    []fleet.Injection
		handlers handlers
		classes  map[string]string // of others
		want     string            // the handler of nvidia
		operands string            // the class of NVIDIA's operands on nodes with CDI
		says     string
	}{
		{name: "containerd 2", nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "runc"},
		{name: "containerd 2 below a kubelet that reports no handlers", nodes: []fleet.Injection{fleet.NRI}, want: "runc"},
		{name: "CRI-O with crun alone", nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"crun"}}, want: "crun"},
		{name: "containerd 2 and 1.7", nodes: []fleet.Injection{fleet.NRI, fleet.CDI}, handlers: handlers{fleet.NRI: {"crun", "runc"}}, want: "runc"},
		{name: "NVIDIA's handler is on every node already", nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"nvidia", "runc"}}, want: "nvidia"},
		{name: "containerd and CRI-O without a common handler", nodes: []fleet.Injection{fleet.NRI, fleet.CDI}, handlers: handlers{fleet.NRI: {"crun"}, fleet.CDI: {"runc"}}, want: "nvidia", says: "injection=cdi,nri: the RuntimeClass has handler nvidia"},
		{name: "sandboxes are no ordinary handlers", nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"kata"}}, want: "nvidia", says: "injection=nri"},
		{name: "containerd 1.6", nodes: []fleet.Injection{fleet.Handler}, want: "nvidia"},
		{name: "CDI is off", spec: `cdi: {enabled: false}`, nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "nvidia"},
		{name: "containerd 1.6 and 2", nodes: []fleet.Injection{fleet.Handler, fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "nvidia", says: "injection=nri: the RuntimeClass has handler nvidia; omit it, or set toolkit.env CONTAINERD_RUNTIME_CLASS=nvidia"},
		{name: "the same, and the policy names the handler", spec: `toolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: nvidia}]}`, nodes: []fleet.Injection{fleet.Handler, fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "nvidia"},
		{name: "the policy names another handler", spec: `toolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: gpus}]}`, nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "gpus"},
		{name: "NVIDIA's operands on containerd 1.7", spec: dcgm, nodes: []fleet.Injection{fleet.CDI}, want: "nvidia", operands: "nvidia"},
		{name: "NVIDIA's operands on containerd 1.7, and containerd 2", spec: dcgm, nodes: []fleet.Injection{fleet.CDI, fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "runc", operands: "gpuready-nvidia"},
		{name: "NVIDIA's toolkit is on the hosts", spec: `toolkit: {enabled: false}`, nodes: []fleet.Injection{fleet.CDI}, want: "nvidia"},
		{name: "no toolkit at all", spec: `toolkit: {enabled: false}`, nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"runc"}}, want: "runc"},
		{name: "k3s brings the class", nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"crun", "runc"}}, classes: map[string]string{"nvidia": "nvidia"},
			want: "runc", says: "injection=nri: the RuntimeClass, which is not the operator's, has handler nvidia; omit it, or set toolkit.env CONTAINERD_RUNTIME_CLASS=nvidia"},
		{name: "k3s brings the class, and the toolkit the handler", spec: `toolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: nvidia}]}`, nodes: []fleet.Injection{fleet.NRI}, handlers: handlers{fleet.NRI: {"crun", "runc"}}, classes: map[string]string{"nvidia": "nvidia"}, want: "nvidia"},
		{name: "another's class, and handlers that are not known", nodes: []fleet.Injection{fleet.NRI}, classes: map[string]string{"nvidia": "nvidia"}, want: "runc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, problems := render(t, Input{Policy: policy(t, "{"+c.spec+"}"), Cluster: cluster, Injections: c.nodes, Handlers: c.handlers, Classes: c.classes})
			classes := map[string]string{}
			for _, o := range objects {
				switch o := o.Object.(type) {
				case *nodev1.RuntimeClass:
					classes[o.Name] = o.Handler
				case *appsv1.DaemonSet:
					if class := o.Spec.Template.Spec.RuntimeClassName; o.Name == "nvidia-dcgm-cdi" {
						require.Equal(t, c.operands, *class)
					} else {
						require.Nil(t, class, o.Name)
					}
				}
			}
			require.Equal(t, c.want, classes["nvidia"])
			delete(classes, "nvidia")
			if c.operands == "gpuready-nvidia" {
				require.Equal(t, map[string]string{"gpuready-nvidia": "nvidia"}, classes)
			} else {
				require.Empty(t, classes)
			}
			said, _ := splitMessages(problems)
			require.Equal(t, c.says == "", said == "", said)
			require.Contains(t, said, c.says)
			require.LessOrEqual(t, len(said), 200, "the status has room for it")
		})
	}
	objects, _ := render(t, Input{Policy: policy(t, `{cdi: {enabled: true}}`), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI}})
	handlersOf := map[string]string{}
	for _, o := range objects {
		if class, ok := o.Object.(*nodev1.RuntimeClass); ok {
			handlersOf[class.Name] = class.Handler
		}
	}
	require.Equal(t, map[string]string{"nvidia": "runc", "nvidia-cdi": "runc", "nvidia-legacy": "runc"}, handlersOf)

	objects, _ = render(t, Input{Policy: policy(t, `{}`), Cluster: cluster})
	for _, o := range objects {
		require.NotEqual(t, "RuntimeClass", o.Object.GetObjectKind().GroupVersionKind().Kind, "without a node nothing is known of handlers")
	}
}
