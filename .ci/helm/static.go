package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// staticNamespace is the namespace of the static manifests.
const staticNamespace = "gpuready-system"

// parts are the chart's files for the operator's manifest, in the order in which they
// are applied.
var parts = []string{
	"agents/serviceaccounts.yaml", "agents/rights.yaml", "agents/policy.yaml", "agents/dra-driver.yaml",
	"operator/serviceaccount.yaml", "operator/rights.yaml", "operator/people.yaml",
	"operator/networkpolicy.yaml", "operator/deployment.yaml",
}

// example is a policy for users to start with.
type example struct {
	name, about string
	values      map[string]any
}

var examples = []example{
	{"clusterpolicy.yaml", "GPUs on every node that has one: the chart's own values.", nil},
	{"clusterpolicy-simulated.yaml", "A cluster without GPUs: the simulated driver on every node.\n# Label the nodes for it: kubectl label node NODE nvidia.com/gpu.present=true",
		map[string]any{"driver": map[string]any{"simulated": map[string]any{"enabled": true}}}},
	{"clusterpolicy-precompiled.yaml", "A driver image for each kernel, none is built on a node. See docs/openshift.md.",
		map[string]any{"driver": map[string]any{"usePrecompiled": true, "repository": "registry.example.com/nvidia", "image": "driver", "version": "535"}}},
}

// released matches the labels of a Helm release.
var released = regexp.MustCompile(`(?m)^ +app\.kubernetes\.io/(name|instance|version|managed-by): .*\n`)

// writeStatic renders the chart in folder from, and writes manifests of deployments/static to folder to.
// Manifests that the chart has no template for are not touched.
func writeStatic(from, to string) error {
	files, err := renderStatic(from, map[string]any{
		"migManager": map[string]any{"enabled": true}, "dcgmExporter": map[string]any{"enablePodLabels": true},
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"agents/mig-manager.yaml", "agents/dcgm-exporter.yaml", "nodefeaturerule.yaml"} {
		if files["gpuready/templates/"+name] == "" {
			return fmt.Errorf("the chart renders no templates/%s", name)
		}
	}
	documents := []string{namespace}
	for _, name := range []string{policyFile, driverFile} {
		definition, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		documents = append(documents, string(definition))
	}
	for _, part := range parts {
		text, is := files["gpuready/templates/"+part]
		if !is {
			return fmt.Errorf("the chart renders no templates/%s", part)
		}
		documents = append(documents, text)
	}
	if err := writeManifest(filepath.Join(to, "operator.yaml"), about, documents...); err != nil {
		return err
	}
	if err := writeManifest(filepath.Join(to, "mig-manager.yaml"), aboutMIG, files["gpuready/templates/agents/mig-manager.yaml"]); err != nil {
		return err
	}
	if err := writeManifest(filepath.Join(to, "dcgm-exporter.yaml"), aboutExporter, files["gpuready/templates/agents/dcgm-exporter.yaml"]); err != nil {
		return err
	}
	rule := files["gpuready/templates/nodefeaturerule.yaml"]
	if err := writeManifest(filepath.Join(to, "node-feature-rule.yaml"), "# See docs/openshift.md.\n", rule); err != nil {
		return err
	}
	for _, e := range examples {
		files, err := renderStatic(from, e.values)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if files["gpuready/templates/clusterpolicy.yaml"] == "" {
			return fmt.Errorf("%s: the chart renders no templates/clusterpolicy.yaml", e.name)
		}
		if err := writeManifest(filepath.Join(to, "examples", e.name), "# "+e.about+"\n", files["gpuready/templates/clusterpolicy.yaml"]); err != nil {
			return err
		}
	}
	return nil
}

func renderStatic(dir string, values map[string]any) (map[string]string, error) {
	c, err := loadChart(dir, nil)
	if err != nil {
		return nil, err
	}
	if values == nil {
		values = map[string]any{}
	}
	values["nfd"] = map[string]any{"enabled": false}
	return renderChart(c, renderOptions{Namespace: staticNamespace, Values: values, Versions: []string{"nfd.k8s-sigs.io/v1alpha1"}})
}

// writeManifest writes documents into a file, separated by "---" lines.
func writeManifest(path, about string, documents ...string) error {
	var b strings.Builder
	b.WriteString(about + "#\n# Made of deployments/helm/gpuready by `make generate`.\n")
	for _, text := range documents {
		text = strings.TrimSpace(released.ReplaceAllString(text, ""))
		text = strings.TrimSpace(strings.TrimPrefix(text, "---"))
		b.WriteString("---\n" + blank.ReplaceAllString(text, "\n") + "\n")
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// blank matches blank lines left by templates.
var blank = regexp.MustCompile(`\n([ \t]*\n)+`)

const about = `# The operator: its CustomResourceDefinitions, its Deployment, its rights, and those of the
# agents that it runs on nodes. Then apply a ClusterPolicy, such as examples/clusterpolicy.yaml.
# It needs the labels of Node Feature Discovery. See docs/install.md.
`

const aboutMIG = `# The rights of NVIDIA's MIG manager, on its own node. Apply it beside operator.yaml, or beside the
# OLM bundle, before a ClusterPolicy that has migManager.enabled. See docs/operator.md.
`

const aboutExporter = `# The right of NVIDIA's exporter of DCGM's metrics to read pods. Apply it beside operator.yaml, or
# beside the OLM bundle, for a ClusterPolicy that has dcgmExporter.enablePodLabels or enablePodUID.
# See docs/operator.md.
`

const namespace = `apiVersion: v1
kind: Namespace
metadata:
  name: ` + staticNamespace + `
  labels:
    app.kubernetes.io/part-of: gpuready
    # The agents mount folders of the host, and the toolkit is privileged.
    pod-security.kubernetes.io/enforce: privileged
`
