package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// installed is a cluster with objects that are not in a namespace.
type installed struct{ client dynamic.Interface }

func (i installed) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	version, err := apischema.ParseGroupVersion(apiVersion)
	return i.client.Resource(version.WithResource(strings.ToLower(kind) + "s")), false, err
}

func TestAnotherInstallationIsNamedWithTheWayOut(t *testing.T) {
	const rbac = "rbac.authorization.k8s.io/v1"
	binding := func(annotations object) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: object{
			"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": object{"name": "gpuready-validator", "annotations": annotations},
			"subjects": []any{object{"kind": "ServiceAccount", "name": "gpu-validator", "namespace": "agents"}},
		}}
	}
	release1 := func(name, namespace string) object {
		return object{"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace}
	}
	operator := &unstructured.Unstructured{Object: object{"apiVersion": rbac, "kind": "ClusterRole", "metadata": object{"name": "gpuready-operator"}}}
	for name, c := range map[string]struct {
		objects []runtime.Object
		values  object
		want    string
	}{
		"nothing":               {},
		"the release's own":     {objects: []runtime.Object{binding(release1("gpuready", "somewhere")), operator}},
		"another release":       {objects: []runtime.Object{binding(release1("gpus", "there")), operator}, want: "as Helm release gpus in namespace there. Upgrade it (helm upgrade gpus -n there), or remove it first (helm uninstall gpus -n there)"},
		"of another namespace":  {objects: []runtime.Object{binding(release1("gpuready", "there"))}, want: "as Helm release gpuready in namespace there."},
		"agents' manifests":     {objects: []runtime.Object{binding(nil)}, want: "gpuready's agents are installed already, in namespace agents, from manifests and not by Helm. Delete them first; pods that use GPUs continue: kubectl delete -f FILE, with the file that was applied, such as gpuready.yaml"},
		"operator's manifests":  {objects: []runtime.Object{binding(nil), operator}, want: "To hand it over with its policies and operands, add these flags: -n agents --take-ownership --force-conflicts --set takeOwnership=true --set clusterPolicy.create=false"},
		"ownership to be taken": {objects: []runtime.Object{binding(nil), operator}, values: object{"takeOwnership": true}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := installed{fake.NewSimpleDynamicClient(runtime.NewScheme(), c.objects...)}
			_, err := renderChart(load(t), renderOptions{Namespace: "somewhere", Values: c.values, Cluster: cluster})
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

// The Job runs after everything else is deleted, while nodes may still have the taints of GPU nodes.
func TestJobAfterUninstallationToleratesOurTaints(t *testing.T) {
	for _, o := range render(t, renderOptions{}, "") {
		if o["kind"] != "Job" || !strings.HasSuffix(o["metadata"].(object)["name"].(string), "-prune") {
			continue
		}
		pod, _ := dig(o, "spec", "template", "spec")
		var keys []any
		for _, toleration := range pod["tolerations"].([]any) {
			keys = append(keys, toleration.(object)["key"])
		}
		require.Equal(t, []any{
			"node-role.kubernetes.io/control-plane", "nvidia.com/gpu", "nvidia.com/gpu-not-ready", "gpuready.io/not-ready",
			"startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready",
		}, keys)
		return
	}
	t.Fatal("the chart of NFD has no such Job any more: correct docs/manifests-to-operator.md")
}
