// Package deployments renders the DaemonSets of nodes with GPUs, and embeds the definitions of
// ClusterPolicy and NVIDIADriver from the manifest that users apply, so that the repository has them
// once. It also renders what is generated below this folder: the static manifests, parts of the chart,
// and the dashboard.
package deployments

import (
	"bytes"
	_ "embed"
)

//go:embed static/operator.yaml
var operator []byte

// The chart's parts come first, because the static manifests embed them.
//
//go:generate go test -tags grpcnotrace -run ^TestChartIsCurrent$ . -update
//go:generate go test -tags grpcnotrace -run ^TestManifestsAreCurrent$|^TestDashboardIsCurrent$ . -update

// ClusterPolicyCRD returns the CustomResourceDefinition clusterpolicies.nvidia.com, in YAML.
// `make generate` writes it, from the types of operator/api/v1.
func ClusterPolicyCRD() []byte { return definition("clusterpolicies.nvidia.com") }

// NVIDIADriverCRD returns the CustomResourceDefinition nvidiadrivers.nvidia.com, in YAML. It is made
// from the types of operator/api/v1alpha1.
func NVIDIADriverCRD() []byte { return definition("nvidiadrivers.nvidia.com") }

// definition returns the CustomResourceDefinition of a name.
func definition(name string) []byte {
	for document := range bytes.SplitSeq(operator, []byte("\n---\n")) {
		if bytes.Contains(document, []byte("\nkind: CustomResourceDefinition\n")) && bytes.Contains(document, []byte("\n  name: "+name+"\n")) {
			return document
		}
	}
	return nil
}
