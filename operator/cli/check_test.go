package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checked runs check on a file with the given content.
func checked(t *testing.T, content string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
	var out, errors strings.Builder
	exit = Main(t.Context(), append([]string{"check", file}, args...), &out, &errors)
	return exit, strings.ReplaceAll(out.String(), file, "FILE"), errors.String()
}

const policyHead = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: gpu-cluster-policy}\nspec:\n"

func TestCheckOfAPolicyOfNVIDIAs(t *testing.T) {
	exit, out, errors := checked(t, policyHead+`
  toolkit: {enabled: true, version: v1.17.5-ubuntu20.04}
  dcgm: {enabled: true}
  dcgmExporter: {enabled: false}
  migManager: {enabled: false}
`, "--against", "25.3")
	require.Equal(t, exitUnserved, exit, errors)
	require.Equal(t, `FILE: ClusterPolicy gpu-cluster-policy: accepted

Without effect:
  toolkit.version: v1.17.5-ubuntu20.04 is NVIDIA's, which starts otherwise than ours; gpuready/toolkit:v0.1.0 is used. Nothing is to be done; to name an image of ours, set repository, image and version

  DAEMONSET                            IMAGE                                           WITH NVIDIA'S v25.3.1
  nvidia-driver-daemonset-ubuntu22.04  nvcr.io/nvidia/driver:595.91.07-ubuntu22.04     nvcr.io/nvidia/driver:570.148.08
  nvidia-operator-validator            gpuready/validator:v0.1.0                       -
  nvidia-container-toolkit-daemonset   gpuready/toolkit:v0.1.0                         nvcr.io/nvidia/k8s/container-toolkit:v1.17.5-ubuntu20.04
  nvidia-device-plugin-daemonset       gpuready/device-plugin:v0.1.0                   nvcr.io/nvidia/k8s-device-plugin:v0.17.2
  nvidia-dcgm                          nvcr.io/nvidia/cloud-native/dcgm:4.6.0-1-ubi10  nvcr.io/nvidia/cloud-native/dcgm:4.2.3-1-ubuntu22.04
`, out)
	require.Equal(t, "gpu-operator: accepted; 1 settings have no effect: see above\n", errors)
}

func TestCheckRefusesWhatTheAPIServerRefuses(t *testing.T) {
	for content, want := range map[string]string{
		policyHead + "  driver: {verson: 570.124.06}\n": `spec.driver.verson: unknown key, did you mean "version"?`,
		policyHead + "  mig: {strategy: doubled}\n":     `spec.mig.strategy: Unsupported value: "doubled"`,
		policyHead + "  driver: {enabled: [yes]}\n":     `spec.driver.enabled: Invalid value: "array"`,
		"\t{": "found character that cannot start any token",
	} {
		exit, out, _ := checked(t, content)
		require.Equal(t, 1, exit, content)
		require.Contains(t, out, want, content)
	}
}

func TestCheckFindsPoliciesAmongOtherObjects(t *testing.T) {
	list := `{apiVersion: v1, kind: List, items: [{apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: a}, spec: {}}, {apiVersion: v1, kind: Namespace, metadata: {name: b}}]}`
	exit, out, errors := checked(t, "apiVersion: v1\nkind: Namespace\n---\n"+list+"\n---\n"+policyHead+"  mig: {strategy: mixed}\n", "-o", "json")
	require.Equal(t, 0, exit, errors)
	var result struct{ Checks []Check }
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	require.Len(t, result.Checks, 2)
	require.Equal(t, "a", result.Checks[0].Name)
	require.Equal(t, "FILE (document 3)", result.Checks[1].File)
}

func TestCheckNeedsAFile(t *testing.T) {
	var out, errors strings.Builder
	require.Equal(t, 2, Main(t.Context(), []string{"check"}, &out, &errors))
	require.Contains(t, errors.String(), "check needs a file with a ClusterPolicy")
	require.Equal(t, 2, Main(t.Context(), []string{"check", "--against", "12", "-"}, &out, &errors))
	require.Contains(t, errors.String(), "--against")
	require.Equal(t, 2, Main(t.Context(), []string{"check", "/nowhere"}, &out, &errors))

	exit, _, message := checked(t, "driver: {enabled: true}\n")
	require.Equal(t, 2, exit)
	require.Contains(t, message, "holds no ClusterPolicy; if it holds Helm values, have the chart make one: helm template gpuready gpuready.tgz -f ")
}

// The chart names the values without effect in an annotation of its policy.
func TestCheckNamesTheChartsValues(t *testing.T) {
	exit, out, _ := checked(t, `{apiVersion: nvidia.com/v1, kind: ClusterPolicy, metadata: {name: a, annotations: {gpuready.io/unserved-values: "operator.cleanupCRD: the definition stays\n\n"}}, spec: {}}`)
	require.Equal(t, exitUnserved, exit)
	require.Contains(t, out, "Without effect:\n  operator.cleanupCRD: the definition stays\n\n")
}
