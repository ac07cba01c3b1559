// Package v1 defines the resource that describes a cluster's GPU stack: ClusterPolicy of
// nvidia.com/v1. It uses NVIDIA's field names, so that a policy written for NVIDIA's GPU operator
// keeps working. The custom resource definition is generated from these types;
// docs/clusterpolicy.md explains every field.
//
// +kubebuilder:object:generate=true
// +groupName=nvidia.com
package v1

//go:generate go tool -modfile=../../../.ci/crd/go.mod controller-gen object crd:allowDangerousTypes=false,crdVersions=v1 paths=. output:object:dir=. output:crd:dir=../../../bin/crds
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

// GroupVersion returns nvidia.com/v1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme adds ClusterPolicy to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &ClusterPolicy{}, &ClusterPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
