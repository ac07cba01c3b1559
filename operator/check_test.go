package main

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
	exit = runCommand(t.Context(), append([]string{"check", "--image-version=v1.2.3", file}, args...), &out, &errors)
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
  toolkit.version: v1.17.5-ubuntu20.04 is NVIDIA's, which is started in another way; gpuready/toolkit:v1.2.3 is used. No action is needed; to name an image of ours, set repository, image and version

  DAEMONSET                            IMAGE                                           WITH NVIDIA'S v25.3.1
  nvidia-driver-daemonset-ubuntu22.04  nvcr.io/nvidia/driver:595.91.07-ubuntu22.04     nvcr.io/nvidia/driver:570.148.08
  nvidia-operator-validator            gpuready/validator:v1.2.3                       -
  nvidia-container-toolkit-daemonset   gpuready/toolkit:v1.2.3                         nvcr.io/nvidia/k8s/container-toolkit:v1.17.5-ubuntu20.04
  nvidia-device-plugin-daemonset       gpuready/device-plugin:v1.2.3                   nvcr.io/nvidia/k8s-device-plugin:v0.17.2
  nvidia-dcgm                          nvcr.io/nvidia/cloud-native/dcgm:4.6.0-1-ubi10  nvcr.io/nvidia/cloud-native/dcgm:4.2.3-1-ubuntu22.04
`, out)
	require.Equal(t, "gpu-operator: accepted; settings without effect or not carried out: 1, see above\n", errors)
}

func TestCheckNamesWhatTheSimulatedDriverIgnores(t *testing.T) {
	exit, out, _ := checked(t, policyHead+`
  driver: {simulated: {enabled: true}, repository: r.example, image: driver, version: 580.95.05, env: [{name: A, value: b}], upgradePolicy: {autoUpgrade: true, maxUnavailable: 2}}
  toolkit: {enabled: false, repository: r.example, version: v1, resources: {limits: {cpu: 1}}}
`)
	require.Equal(t, exitUnserved, exit)
	require.Contains(t, out, `
Without effect:
  driver.image, driver.repository, driver.version, driver.env: the simulated driver has no driver image, version or kernel modules: remove the fields, or set driver.simulated.enabled to false
  toolkit.resources: toolkit.enabled is false: remove the fields
`)
}

func TestCheckPrintsNoControlCharacters(t *testing.T) {
	_, out, _ := checked(t, policyHead+`  toolkit: {version: "v1\e[2J", env: [{name: "A\u009b2K`+strings.Repeat("x", 5000)+`"}]}`)
	require.NotContains(t, out, "\x1b")
	require.NotContains(t, out, "\u009b")
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 1010, line)
	}
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
	var result struct{ Checks []checkResult }
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	require.Len(t, result.Checks, 2)
	require.Equal(t, "a", result.Checks[0].Name)
	require.Equal(t, "FILE (document 3)", result.Checks[1].File)
}

func TestCheckNeedsAFile(t *testing.T) {
	var out, errors strings.Builder
	require.Equal(t, 2, runCommand(t.Context(), []string{"check"}, &out, &errors))
	require.Contains(t, errors.String(), "check needs a file with a ClusterPolicy")
	require.Equal(t, 2, runCommand(t.Context(), []string{"check", "--against", "12", "-"}, &out, &errors))
	require.Contains(t, errors.String(), "--against")
	require.Equal(t, 2, runCommand(t.Context(), []string{"check", "/nowhere"}, &out, &errors))

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

// The NVIDIADrivers of the files are those of the policy, whichever comes first.
func TestCheckHasTheDriversOfNVIDIADrivers(t *testing.T) {
	const head = "\n---\napiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: gold}\nspec: "
	policy := policyHead + "  driver: {useNvidiaDriverCRD: true}\n"
	exit, out, _ := checked(t, policy+head+"{default: true, repository: r.example/a, image: driver, version: 580.95.05}")
	require.Equal(t, 0, exit, out)
	require.Contains(t, out, "NVIDIADriver gold: everything is served")
	require.Regexp(t, `nvidia-driver-daemonset-ubuntu22.04-gold +r.example/a/driver:580.95.05-ubuntu22.04 +-`, out)
	exit, out, _ = checked(t, policy+head+"{nodeSelector: {a: b}, manager: {image: m}}")
	require.Equal(t, exitUnserved, exit)
	require.Contains(t, out, "driver: NoDriverSelected: no NVIDIADriver selects node")
	require.Contains(t, out, "manager: the operator itself clears a node")
	exit, out, _ = checked(t, policy+head+"{verson: 580}")
	require.Equal(t, 1, exit)
	require.Contains(t, out, `unknown field ["spec.verson"]`)
}
