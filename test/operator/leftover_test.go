package operator

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// passing are kinds of objects that are created and deleted by themselves, and so are not
// compared. All Leases except the operator's are skipped too, and NFD's pods.
var passing = map[string]bool{"componentstatuses": true, "events": true, "endpoints": true, "endpointslices": true, "nodefeatures": true, "controllerrevisions": true}

// objects returns all objects of the cluster, as "resource.group namespace/name".
func (s *suite) objects(t *testing.T) map[string]bool {
	t.Helper()
	client, err := metadata.NewForConfig(s.World.Config)
	require.NoError(t, err)
	lists, err := s.World.Client.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	all := map[string]bool{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		require.NoError(t, err)
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "list") || passing[r.Name] || gv.Group == "metrics.k8s.io" {
				continue
			}
			got, err := client.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // its definition has been deleted since
			}
			require.NoErrorf(t, err, "list %s", r.Name)
			for _, o := range got.Items {
				if r.Name == "leases" && o.Name != "gpu-operator.gpuready.io" || r.Name == "pods" && o.Namespace == nfdNamespace {
					continue
				}
				all[fmt.Sprintf("%s.%s %s/%s", r.Name, gv.Group, o.Namespace, o.Name)] = true
			}
		}
	}
	return all
}

// marks returns the labels, annotations, taints and conditions of nodes, and whether they are cordoned.
// It skips what kubelets and controllers write by themselves.
func (s *suite) marks(t *testing.T) map[string]bool {
	t.Helper()
	nodes, err := s.World.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	all := map[string]bool{}
	for _, n := range nodes.Items {
		for k, v := range n.Labels {
			all[fmt.Sprintf("%s label %s=%s", n.Name, k, v)] = true
		}
		for k, v := range n.Annotations {
			if !strings.HasPrefix(k, "nfd.node.kubernetes.io/") {
				all[fmt.Sprintf("%s annotation %s=%s", n.Name, k, v)] = true
			}
		}
		for _, taint := range n.Spec.Taints {
			all[fmt.Sprintf("%s taint %s", n.Name, taint.ToString())] = true
		}
		for _, c := range n.Status.Conditions {
			all[fmt.Sprintf("%s condition %s", n.Name, c.Type)] = true
		}
		all[fmt.Sprintf("%s unschedulable %v", n.Name, n.Spec.Unschedulable)] = true
	}
	return all
}

// cleansNodes removes the toolkit's installation from the nodes with the manifest for that,
// and compares the first node's files with those of before. docs/install.md lists what stays:
// /run/nvidia, until the next reboot, and empty folders.
func (s *suite) cleansNodes(t *testing.T, before []string) {
	t.Helper()
	s.Apply(t, "uninstall.yaml")
	s.Kubectl(t, "-n", "gpuready-uninstall", "rollout", "status", "daemonset/gpuready-uninstall", "--timeout=120s")
	s.Delete(t, "uninstall.yaml")
	node := s.Nodes[0].Name
	var left []string
	for _, f := range s.Files(t, node) {
		info, err := os.Lstat(s.Node(node).PathOnNode(f))
		if err == nil && !info.IsDir() && !strings.HasPrefix(f, "/run/nvidia") && !strings.HasSuffix(f, "/kubelet_internal_checkpoint") && !slices.Contains(before, f) {
			left = append(left, f)
		}
	}
	assert.Empty(t, left, "files that are left")
}

// beyond returns the entries of now that before lacks.
func beyond(now, before map[string]bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(now)), func(s string) bool { return before[s] })
}
