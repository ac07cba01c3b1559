package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// packed returns the chart as `make chart` packs it.
func packed(t *testing.T) *chart.Chart {
	t.Helper()
	path, err := pack(dir, nil, t.TempDir())
	require.NoError(t, err)
	c, err := loader.LoadFile(path)
	require.NoError(t, err)
	return c
}

// `helm install gpuready deployments/helm/gpuready` needs no make before it.
func TestFolderInstallsWhatThePackageInstalls(t *testing.T) {
	for name, values := range map[string]object{
		"defaults":  nil,
		"simulated": {"driver": object{"simulated": object{"enabled": true, "profile": "h100-sxm"}}},
		"everything": {
			"migManager": object{"enabled": true}, "operands": object{"namespace": "gpuready-operands"}, "podMonitor": object{"enabled": true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := renderOptions{Namespace: "somewhere", Kube: "v1.34.0", Versions: []string{openshift}, Values: values}
			want, err := renderAll(packed(t), options)
			require.NoError(t, err)
			have, err := renderAll(load(t), options)
			require.NoError(t, err)
			require.Equal(t, want, have)
			require.Equal(t, definitionsOf(packed(t)), definitionsOf(load(t)))
			require.Equal(t, packed(t).Schema, load(t).Schema)
		})
	}
}

// definitionsOf returns the CustomResourceDefinitions that Helm installs, by file in their chart.
func definitionsOf(c *chart.Chart) map[string]string {
	all := map[string]string{}
	for _, crd := range c.CRDObjects() {
		all[crd.Name] = string(crd.File.Data)
	}
	return all
}

func TestFolderIsComplete(t *testing.T) {
	c := load(t)
	require.Contains(t, definitionsOf(c), policyFile)
	require.Contains(t, definitionsOf(c), driverFile)
	require.NotEmpty(t, c.Schema)
	require.Len(t, c.Dependencies(), 1)
	nfd := c.Dependencies()[0]
	require.Equal(t, c.Metadata.Dependencies[0].Name, nfd.Name())
	require.Equal(t, c.Metadata.Dependencies[0].Version, nfd.Metadata.Version)
	require.NotEmpty(t, nfd.CRDObjects())
	require.NotEmpty(t, nfd.Schema)
	require.FileExists(t, filepath.Join(dir, nfdFolder, "LICENSE"))
}

func TestDefinitionsOfTheChartAreThoseOfTheManifest(t *testing.T) {
	manifest, err := os.ReadFile("../../deployments/static/operator.yaml")
	require.NoError(t, err)
	for _, name := range []string{policyFile, driverFile} {
		require.True(t, strings.Contains(string(manifest), "\n---\n"+definitionsOf(load(t))[name]+"---\n"), name)
	}
}

func TestDependencyOfAnotherVersionIsRefused(t *testing.T) {
	files, err := readTree(filepath.Join(dir, nfdFolder))
	require.NoError(t, err)
	require.NoError(t, requireVersion(files, load(t).Metadata.Dependencies[0].Version))
	require.ErrorContains(t, requireVersion(files, "0.0.1"), "depends on 0.0.1")
	require.ErrorContains(t, acceptTexts(files), "adapt acceptTexts", "the folder's has been changed already")
}
