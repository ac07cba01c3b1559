// Package deployments embeds the definition of ClusterPolicy from the manifest that users
// apply, so that the repository has it once. It also renders what is generated below this
// folder: the static manifests, parts of the chart, and the dashboard.
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
func ClusterPolicyCRD() []byte {
	for document := range bytes.SplitSeq(operator, []byte("\n---\n")) {
		if bytes.Contains(document, []byte("\nkind: CustomResourceDefinition\n")) {
			return document
		}
	}
	return nil
}
