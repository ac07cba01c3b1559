package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/label"
)

// newClient returns a client of a cluster with an almost empty definition that has some labels.
func newClient(t *testing.T, labels map[string]string) client.Client {
	t.Helper()
	old, err := definition(deployments.ClusterPolicyCRD())
	require.NoError(t, err)
	old.SetLabels(labels)
	require.NoError(t, unstructured.SetNestedSlice(old.Object, []any{}, "spec", "versions"))
	return fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(old).Build()
}

func versions(t *testing.T, c client.Client) []any {
	t.Helper()
	have, err := definition(deployments.ClusterPolicyCRD())
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(have), have))
	all, _, err := unstructured.NestedSlice(have.Object, "spec", "versions")
	require.NoError(t, err)
	return all
}

func TestOwnDefinitionIsUpgraded(t *testing.T) {
	c := newClient(t, map[string]string{label.PartOf: label.Product})
	require.Empty(t, versions(t, c))
	require.NoError(t, upgradeDefinition(t.Context(), c, deployments.ClusterPolicyCRD()))
	require.Len(t, versions(t, c), 1)
	require.NoError(t, upgradeDefinition(t.Context(), c, deployments.ClusterPolicyCRD()), "again")
}

func TestForeignDefinitionIsLeftAlone(t *testing.T) {
	c := newClient(t, nil)
	require.ErrorContains(t, upgradeDefinition(t.Context(), c, deployments.ClusterPolicyCRD()), "is not gpuready's")
	require.Empty(t, versions(t, c))
}

func TestMissingDefinitionIsNotCreated(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
	require.ErrorContains(t, upgradeDefinition(t.Context(), c, deployments.ClusterPolicyCRD()), "is not there")
}
