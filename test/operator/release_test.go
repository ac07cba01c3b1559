package operator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments"
)

// release installs, upgrades, rolls back and uninstalls the release on a one-node cluster.
// The operator and its operands have different namespaces, and a foreign CRD exists.
func (s *suite) release(t *testing.T, before, marks map[string]bool) {
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present=true")
	s.play(t,
		scenario{"ADefinitionOfSomebodyElse", plain((*suite).definitionOfOthers)},
		scenario{"TwoNamespaces", plain((*suite).twoNamespaces)},
		scenario{"HelmUpgrade", plain((*suite).helmUpgrades)},
		scenario{"HelmRollback", plain((*suite).helmRollsBack)},
		scenario{"Uninstall", func(t *testing.T, s *suite) { s.releaseGoes(t, before, marks) }},
	)
}

// property is the path of a property that the older CRD lacks.
var property = []string{"status", "properties", "upgrade", "properties", "waiting"}

// olderDefinition writes the older CRD, the chart's with one property fewer, and returns its
// path.
func olderDefinition(t *testing.T) string {
	t.Helper()
	var crd unstructured.Unstructured
	require.NoError(t, yaml.Unmarshal(deployments.ClusterPolicyCRD(), &crd.Object))
	schema := schemaOf(t, &crd)
	_, has, err := unstructured.NestedMap(schema, property...)
	require.NoError(t, err)
	require.True(t, has, "the CRD has no %v", property)
	unstructured.RemoveNestedField(schema, property...)
	older, err := crd.MarshalJSON()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "crd.json")
	require.NoError(t, os.WriteFile(file, older, 0o644))
	return file
}

// definitionOfOthers creates a CRD with kubectl. helm install must leave it as it is and
// report that.
func (s *suite) definitionOfOthers(t *testing.T) {
	s.Kubectl(t, "create", "-f", olderDefinition(t))
	out, err := s.run(t, "tools/helm", "install", "gpuready", chart(), "--namespace", namespace, "--create-namespace")
	require.Error(t, err)
	assert.Contains(t, out, `conflict with "kubectl-create"`)
	assert.Contains(t, out, "failed to install CRD")
	assert.False(t, s.crdHasProperty(t))
}

// schemaOf returns the schema of a CRD's only version, without copying it.
func schemaOf(t *testing.T, crd *unstructured.Unstructured) map[string]any {
	t.Helper()
	versions := crd.Object["spec"].(map[string]any)["versions"].([]any)
	require.Len(t, versions, 1)
	return versions[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
}

// crdHasProperty reports whether the cluster's CRD has the property.
func (s *suite) crdHasProperty(t *testing.T) bool {
	t.Helper()
	var crd unstructured.Unstructured
	require.NoError(t, json.Unmarshal([]byte(s.Kubectl(t, "get", "crd", "clusterpolicies.nvidia.com", "-o", "json")), &crd.Object))
	_, has, err := unstructured.NestedMap(schemaOf(t, &crd), property...)
	require.NoError(t, err)
	return has
}

// twoNamespaces installs the release in one namespace and its operands in another. The
// release takes over the existing CRD.
func (s *suite) twoNamespaces(t *testing.T) {
	args := append([]string{"install", "gpuready", chart(), "--set", "nfd.enabled=false", "--set", "operands.namespace=" + operands,
		"--namespace", namespace, "--create-namespace", "--wait", "--timeout", "3m", "--force-conflicts"}, simulated...)
	s.helm(t, args...)
	s.proven(t)
	for _, p := range s.World.Pods("", "app.kubernetes.io/part-of=gpuready") {
		want := operands
		if p.Labels["app"] == "gpuready-operator" {
			want = namespace
		}
		assert.Equal(t, want, p.Namespace, p.Name)
	}
	s.delivers(t, oldDriver, "")
	assert.True(t, s.crdHasProperty(t))
}

// delivers waits until the driver and the device plugin match the given values.
func (s *suite) delivers(t *testing.T, driver, memory string) {
	t.Helper()
	s.until(t, fmt.Sprintf("the driver is %s, and the plugin's memory limit %q", driver, memory), func() error {
		pods := s.World.Pods(operands, "app=nvidia-driver-daemonset")
		if len(pods) != 1 || pods[0].DeletionTimestamp != nil || !strings.HasSuffix(pods[0].Spec.Containers[0].Image, ":"+driver) {
			return fmt.Errorf("%d driver pods are there", len(pods))
		}
		plugins := s.World.Pods(operands, "app=nvidia-device-plugin-daemonset")
		if len(plugins) != 1 || plugins[0].DeletionTimestamp != nil {
			return fmt.Errorf("%d plugin pods are there", len(plugins))
		}
		if limit, has := plugins[0].Spec.Containers[0].Resources.Limits["memory"]; memory != "" && (!has || limit.String() != memory) || memory == "" && limit.String() == changedMemory {
			return fmt.Errorf("the plugin's limit is %v", limit.String())
		}
		if s.World.Node("n1").Spec.Unschedulable {
			return fmt.Errorf("n1 is cordoned")
		}
		return nil
	})
	s.proven(t)
}

const changedMemory = "333Mi"

// helmUpgrades changes values of the operator, the driver and the device plugin. The chart
// updates the CRD first, because helm upgrade changes no CRDs.
func (s *suite) helmUpgrades(t *testing.T) {
	s.Kubectl(t, "replace", "-f", olderDefinition(t))
	require.False(t, s.crdHasProperty(t))
	s.helm(t, "upgrade", "gpuready", chart(), "--namespace", namespace, "--wait", "--timeout", "3m", "--reuse-values",
		"--set", "operator.logging.level=debug", "--set", "driver.simulated.version="+newDriver, "--set", "devicePlugin.resources.limits.memory="+changedMemory)
	assert.True(t, s.crdHasProperty(t), "the chart's Job brings the CRD up to date")
	assert.Equal(t, "debug", s.logLevel(t))
	s.delivers(t, newDriver, changedMemory)
	out, err := s.TryKubectl(t, "-n", namespace, "get", "job/gpuready-operator-crds", "clusterrole/gpuready-operator-crds")
	assert.Error(t, err, "what brought the CRD up to date is gone: %s", out)
}

func (s *suite) logLevel(t *testing.T) string {
	t.Helper()
	return s.Kubectl(t, "-n", namespace, "get", "deployment", "gpuready-operator", "-o", `jsonpath={.spec.template.spec.containers[0].env[?(@.name=="LOG_LEVEL")].value}`)
}

// helmRollsBack rolls back to the first values; the CRD stays.
func (s *suite) helmRollsBack(t *testing.T) {
	s.helm(t, "rollback", "gpuready", "1", "--namespace", namespace, "--wait", "--timeout", "3m")
	assert.Equal(t, "info", s.logLevel(t))
	s.delivers(t, oldDriver, "")
	assert.True(t, s.crdHasProperty(t), "a CRD does not go back")
}

// releaseGoes uninstalls the release and checks that nothing is left in either namespace.
func (s *suite) releaseGoes(t *testing.T, before, marks map[string]bool) {
	s.helm(t, "uninstall", "gpuready", "--namespace", namespace, "--wait", "--timeout", "3m")
	s.until(t, "the operands' namespace, which the chart made, is gone", func() error {
		if out, err := s.TryKubectl(t, "get", "namespace", operands); err == nil {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	s.until(t, "nothing is left in the release's namespace", func() error {
		var left []string
		for object := range s.objects(t) {
			_, at, _ := strings.Cut(object, " ")
			if in, name, _ := strings.Cut(at, "/"); in == namespace && name != "default" && name != "kube-root-ca.crt" {
				left = append(left, object)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	s.Kubectl(t, "label", "node", "n1", "nvidia.com/gpu.present-")
	s.leavesNothing(t, before, marks)
}
