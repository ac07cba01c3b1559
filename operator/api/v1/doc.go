// Package v1 is the resource by which a cluster's GPU stack is described: ClusterPolicy
// of nvidia.com/v1, with NVIDIA's field names, so that a policy that was written for
// NVIDIA's GPU operator goes on working. The custom resource definition is made of
// these types; docs/clusterpolicy.md explains every field.
//
// +kubebuilder:object:generate=true
// +groupName=nvidia.com
package v1

//go:generate go tool -modfile=../../../.ci/crd/go.mod controller-gen object crd:allowDangerousTypes=false,crdVersions=v1 paths=. output:object:dir=. output:crd:dir=../../../deployments/crds
//go:generate go test -tags grpcnotrace -run ^TestThePageListsTheFields$ . -update

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names of the API.
const (
	Group    = "nvidia.com"
	Version  = "v1"
	Kind     = "ClusterPolicy"
	Resource = "clusterpolicies"
	CRDName  = Resource + "." + Group
)

// GroupVersion is nvidia.com/v1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme makes ClusterPolicy known to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &ClusterPolicy{}, &ClusterPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
