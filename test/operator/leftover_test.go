package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// passing are kinds of objects that come and go by themselves.
var passing = map[string]bool{"componentstatuses": true, "events": true, "leases": true, "endpoints": true, "endpointslices": true, "nodefeatures": true, "controllerrevisions": true}

// objects are all that the cluster has, "resource.group namespace/name".
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
			require.NoErrorf(t, err, "list %s", r.Name)
			for _, o := range got.Items {
				all[fmt.Sprintf("%s.%s %s/%s", r.Name, gv.Group, o.Namespace, o.Name)] = true
			}
		}
	}
	return all
}

// marks are the labels, annotations and taints of nodes, and whether they are cordoned;
// what kubelets and controllers write by themselves is left out.
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

// beyond is what is in one and not in another.
func beyond(now, before map[string]bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(now)), func(s string) bool { return before[s] })
}

// patch changes an object as the command in the documentation does.
func jsonPatch(t *testing.T, ops ...map[string]any) string {
	t.Helper()
	out, err := json.Marshal(ops)
	require.NoError(t, err)
	return string(out)
}
