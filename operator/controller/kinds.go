package controller

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpuready/gpuready/operator/api/v1alpha1"
)

// Kinds that are watched without their types.
var (
	serviceKind      = corev1.SchemeGroupVersion.WithKind("Service")
	runtimeClassKind = nodev1.SchemeGroupVersion.WithKind("RuntimeClass")
	daemonSetKind    = appsv1.SchemeGroupVersion.WithKind("DaemonSet")
	deviceClassKind  = resourcev1.SchemeGroupVersion.WithKind("DeviceClass")
	apiServiceKind   = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}
	definitionKind   = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	nvidiaDriverKind = v1alpha1.GroupVersion().WithKind(v1alpha1.Kind)
	imageStreamKind  = schema.GroupVersionKind{Group: "image.openshift.io", Version: "v1", Kind: "ImageStream"}
)

const (
	// imageStreamService is the APIService that exists once ImageStreams are served, by
	// OpenShift's own API server or by a custom resource definition.
	imageStreamService = "v1.image.openshift.io"
	// resourceService is the APIService that exists while Dynamic Resource Allocation is served as it
	// is since Kubernetes 1.34.
	resourceService = "v1.resource.k8s.io"
	// draDriver is the name of the DRA driver in ResourceSlices.
	draDriver = "gpu.nvidia.com"
	// serviceMonitors is the definition of the prometheus-operator's kind.
	serviceMonitors  = "servicemonitors.monitoring.coreos.com"
	toolkitNamespace = "openshift"
	toolkitStream    = "driver-toolkit"
)

// partial returns an object of a kind with metadata alone.
func partial(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// untyped returns an object of a kind that has no Go type here.
func untyped(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}
