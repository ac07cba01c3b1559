// Package v1alpha1 defines NVIDIADriver of nvidia.com/v1alpha1: the driver of some of a cluster's
// nodes. It uses NVIDIA's field names, so that an NVIDIADriver written for NVIDIA's GPU operator
// keeps working. The custom resource definition is generated from these types.
//
// +kubebuilder:object:generate=true
// +groupName=nvidia.com
package v1alpha1

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
	Version  = "v1alpha1"
	Kind     = "NVIDIADriver"
	Resource = "nvidiadrivers"
	CRDName  = Resource + "." + Group
)

// GroupVersion returns nvidia.com/v1alpha1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme adds NVIDIADriver to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &NVIDIADriver{}, &NVIDIADriverList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
