// Package deployments renders the DaemonSets of nodes with GPUs, and embeds the definitions of
// ClusterPolicy and NVIDIADriver from the chart. It also renders what is generated below this folder:
// the static manifests, parts of the chart, and the dashboard.
package deployments

import _ "embed"

// Made from the types of operator/api/v1 and operator/api/v1alpha1 by `make generate`.
var (
	//go:embed helm/gpuready/crds/nvidia.com_clusterpolicies.yaml
	clusterPolicyCRD []byte
	//go:embed helm/gpuready/crds/nvidia.com_nvidiadrivers.yaml
	nvidiaDriverCRD []byte
)

// The chart's parts come first, because the static manifests embed them.
//
//go:generate go test -tags grpcnotrace -run ^TestChartIsCurrent$ . -update
//go:generate go test -tags grpcnotrace -run ^TestManifestsAreCurrent$|^TestDashboardIsCurrent$ . -update

// ClusterPolicyCRD returns the CustomResourceDefinition clusterpolicies.nvidia.com, in YAML.
func ClusterPolicyCRD() []byte { return clusterPolicyCRD }

// NVIDIADriverCRD returns the CustomResourceDefinition nvidiadrivers.nvidia.com, in YAML.
func NVIDIADriverCRD() []byte { return nvidiaDriverCRD }
