package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

// images returns a file with the images of a release of the chart's version.
func images(t *testing.T) string {
	t.Helper()
	p := pinned{Registry: "registry.example.com/gpu/ready", Version: load(t).Metadata.AppVersion, Digests: map[string]string{}}
	for i, name := range []string{"operator", "device-plugin", "toolkit"} {
		p.Digests[name] = "sha256:" + strings.Repeat(fmt.Sprint(i), 64)
	}
	data, err := json.Marshal(p)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "images.json")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

// renderLoaded returns the objects of a chart with a value of operator.operandVersion.
func renderLoaded(t *testing.T, c *chart.Chart, version string) []object {
	t.Helper()
	files, err := renderChart(c, renderOptions{Namespace: "somewhere", Kube: "v1.34.0", Values: object{"operator": object{"operandVersion": version}}})
	require.NoError(t, err)
	return split(t, files)
}

func toYAML(t *testing.T, o object) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	require.NoError(t, err)
	return string(text)
}

func TestTheChartOfAReleaseDeploysItsDigests(t *testing.T) {
	p, err := readPinned(images(t))
	require.NoError(t, err)
	var archives [2][]byte
	for i := range archives {
		path, err := pack(dir, p, t.TempDir())
		require.NoError(t, err)
		archives[i], err = os.ReadFile(path)
		require.NoError(t, err)
		c, err := loader.LoadFile(path)
		require.NoError(t, err)
		for _, o := range renderLoaded(t, c, "") {
			if o["kind"] == "Deployment" && o["metadata"].(object)["name"] == "gpuready-operator" {
				text := toYAML(t, o)
				require.Contains(t, text, "image: registry.example.com/gpu/ready/operator@sha256:000")
				require.Contains(t, text, "name: RELATED_IMAGE_DEVICE_PLUGIN\n          value: registry.example.com/gpu/ready/device-plugin@sha256:111")
				require.Contains(t, text, "name: RELATED_IMAGE_TOOLKIT\n")
				require.NotContains(t, text, "RELATED_IMAGE_OPERATOR")
			}
		}
		for _, o := range renderLoaded(t, c, "v9.0.0") {
			require.NotContains(t, toYAML(t, o), "RELATED_IMAGE", "another version has other digests")
		}
	}
	require.Equal(t, archives[0], archives[1], "the same content gives the same bytes")
}

// operatorImage returns the image of the operator in a rendered chart.
func operatorImage(t *testing.T, c *chart.Chart, values object) string {
	t.Helper()
	files, err := renderChart(c, renderOptions{Namespace: "somewhere", Kube: "v1.34.0", Values: values})
	require.NoError(t, err)
	for _, o := range split(t, files) {
		if o["kind"] == "Deployment" && o["metadata"].(object)["name"] == "gpuready-operator" {
			pod := o["spec"].(object)["template"].(object)["spec"].(object)
			return pod["containers"].([]any)[0].(object)["image"].(string)
		}
	}
	t.Fatal("no operator")
	return ""
}

// Helm's flag --reuse-values takes the values of the chart that is installed, defaults included, in
// place of the new chart's.
func TestReusedValuesDoNotKeepTheImagesOfTheReleaseBefore(t *testing.T) {
	p, err := readPinned(images(t))
	require.NoError(t, err)
	before, err := loadChart(dir, p)
	require.NoError(t, err)
	p.Digests["operator"] = "sha256:" + strings.Repeat("f", 64)
	next, err := loadChart(dir, p)
	require.NoError(t, err)
	next.Values = before.Values
	require.Equal(t, "registry.example.com/gpu/ready/operator@"+p.Digests["operator"], operatorImage(t, next, nil))
}

func TestValuesOfNVIDIAsChartGetTheImagesOfTheRelease(t *testing.T) {
	p, err := readPinned(images(t))
	require.NoError(t, err)
	want := "registry.example.com/gpu/ready/operator@" + p.Digests["operator"]
	for _, operator := range []object{
		{"repository": "nvcr.io/nvidia", "image": "gpu-operator", "version": "v25.3.1"},
		{"repository": "nvcr.io/nvidia"},
		{"repository": nil, "digests": nil},
	} {
		c, err := loadChart(dir, p)
		require.NoError(t, err)
		require.Equal(t, want, operatorImage(t, c, object{"operator": operator}), operator)
	}
	c, err := loadChart(dir, p)
	require.NoError(t, err)
	own := "sha256:" + strings.Repeat("e", 64)
	require.Equal(t, "registry.example.com/gpu/ready/operator@"+own, operatorImage(t, c, object{"operator": object{"digests": object{"operator": own}}}))
}

func TestImagesOfAReleaseAreChecked(t *testing.T) {
	for text, says := range map[string]string{
		`{}`:                "registry, version and digests are required",
		`{"registries": 1}`: "registries",
		`{"registry": "a/b", "version": "v1.0.0", "digests": {"operator": "v1"}}`: "digests.operator",
	} {
		path := filepath.Join(t.TempDir(), "images.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		_, err := readPinned(path)
		require.ErrorContains(t, err, says)
	}
	p, err := readPinned(images(t))
	require.NoError(t, err)
	p.Version = "v0.0.1"
	_, err = pack(dir, p, t.TempDir())
	require.ErrorContains(t, err, "set the version first")
}
