// Package crds is the custom resource definitions that the operator needs.
package crds

import _ "embed"

//go:embed nvidia.com_clusterpolicies.yaml
var clusterPolicies []byte

// ClusterPolicies is that of clusterpolicies.nvidia.com, in YAML. It is made of the
// types of operator/api/v1.
func ClusterPolicies() []byte { return clusterPolicies }
