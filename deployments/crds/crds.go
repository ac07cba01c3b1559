// Package crds embeds the custom resource definitions of the operator.
package crds

import _ "embed"

//go:embed nvidia.com_clusterpolicies.yaml
var clusterPolicies []byte

// ClusterPolicies returns the definition of clusterpolicies.nvidia.com, in YAML. It is
// generated from the types of operator/api/v1.
func ClusterPolicies() []byte { return clusterPolicies }
