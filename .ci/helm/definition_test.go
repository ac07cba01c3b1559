package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// definitions is a cluster with a CustomResourceDefinition.
type definitions struct{ client dynamic.Interface }

func (d definitions) GetClientFor(apiVersion, _ string) (dynamic.NamespaceableResourceInterface, bool, error) {
	version, err := apischema.ParseGroupVersion(apiVersion)
	return d.client.Resource(version.WithResource("customresourcedefinitions")), false, err
}

// nvidias returns a cluster with the definition of NVIDIA's operator, as far as its fields go.
func nvidias(t *testing.T) definitions {
	t.Helper()
	data, err := os.ReadFile("../../deployments/testdata/nvidia-24.3-fields.txt")
	require.NoError(t, err)
	spec := object{}
	for line := range strings.Lines(string(data)) {
		path := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(line), "[]"), ".*")
		if strings.ContainsAny(path, "#[*") {
			continue // a remark, or a field of a list's items
		}
		at := spec
		for name := range strings.SplitSeq(path, ".") {
			properties, _ := at["properties"].(object)
			if properties == nil {
				properties = object{}
				at["properties"] = properties
			}
			if properties[name] == nil {
				properties[name] = object{}
			}
			at = properties[name].(object)
		}
	}
	crd := &unstructured.Unstructured{Object: object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "clusterpolicies.nvidia.com"},
		"spec": object{"versions": []any{object{"name": "v1", "schema": object{"openAPIV3Schema": object{"properties": object{"spec": spec}}}}}},
	}}
	return definitions{fake.NewSimpleDynamicClient(runtime.NewScheme(), crd)}
}

func TestDefaultPolicyFitsTheDefinitionOfNVIDIAsOperator(t *testing.T) {
	cluster := nvidias(t)
	for _, values := range []object{nil, {"driver": object{"usePrecompiled": true, "repository": "a", "image": "b", "version": "535"}}} {
		_, err := renderChart(load(t), renderOptions{Namespace: "somewhere", Values: values, Cluster: cluster})
		require.NoError(t, err)
	}
	for want, values := range map[string]object{
		"driver.simulated":           {"driver": object{"simulated": object{"enabled": true}}},
		"driver.moduleSigning, node": {"driver": object{"moduleSigning": object{"secret": "a"}}, "node": object{"startupTaint": object{"manage": true}}},
		"hostPaths":                  {"hostPaths": object{"rootFS": "/host"}},
		"driver.kernelModuleType, driver.prebuild, node": {"driver": object{"kernelModuleType": "open", "prebuild": object{"repository": "r.example/a"}}, "node": object{"startupTaint": object{"key": "a"}}},
	} {
		_, err := renderChart(load(t), renderOptions{Namespace: "somewhere", Values: values, Cluster: cluster})
		require.ErrorContains(t, err, "the cluster's CustomResourceDefinition clusterpolicies.nvidia.com, which is not this chart's, lacks these fields of the policy: "+want+". Install the chart's (without --skip-crds, with --force-conflicts), or remove these values")
	}
	_, err := renderChart(load(t), renderOptions{Namespace: "somewhere", Values: object{"clusterPolicy": object{"create": false}, "driver": object{"simulated": object{"enabled": true}}}, Cluster: cluster})
	require.NoError(t, err, "somebody else creates the policy")
}
