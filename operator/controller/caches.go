package controller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
)

// Scheme returns the scheme of the kinds that the operator reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authorizationv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, nodev1.AddToScheme, resourcev1.AddToScheme, metav1.AddMetaToScheme, v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Caches returns what the operator watches and how each object is stripped. namespace is
// that of the operands.
func Caches(namespace string) cache.Options {
	ownNamespace := map[string]cache.Config{namespace: {}}
	noCopies := true // this package never changes the objects that it receives
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: transform(fleet.Strip), UnsafeDisableDeepCopy: &noCopies},
			&corev1.Pod{}: {
				// In all namespaces, to notice the operands of a second installation (model.elsewhere).
				Transform: transform(progress.Strip), UnsafeDisableDeepCopy: &noCopies,
				Label: labels.SelectorFromSet(labels.Set{label.PartOf: label.Product}),
			},
			&corev1.ConfigMap{}:     {Namespaces: ownNamespace, Transform: transform(stripConfigMap)},
			&appsv1.DaemonSet{}:     {Namespaces: ownNamespace},
			&batchv1.Job{}:          {Namespaces: ownNamespace, Label: labels.SelectorFromSet(labels.Set{label.Prebuild: "true"}), Transform: transform(stripJob)},
			&corev1.Service{}:       {Namespaces: ownNamespace},
			&nodev1.RuntimeClass{}:  {},
			&appsv1.Deployment{}:    {Field: fields.OneTermEqualSelector("metadata.name", label.NVIDIADeployment), Transform: transform(stripDeployment)},
			partial(apiServiceKind): {Field: fields.OneTermEqualSelector("metadata.name", imageStreamService)},
			partial(definitionKind): {Field: fields.OneTermEqualSelector("metadata.name", serviceMonitors)},
		},
	}
}

// OtherCaches returns a second cache. A watch can select only one name: that of Deployments in Caches
// selects NVIDIA's operator, whose name earlier versions of this product have, too, and this one
// selects this product's. So it is with the definitions of ServiceMonitors and NVIDIADrivers, and with
// the APIs of ImageStreams and of Dynamic Resource Allocation.
func OtherCaches() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:    {Field: fields.OneTermEqualSelector("metadata.name", label.Deployment), Transform: transform(stripDeployment)},
			partial(definitionKind): {Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.CRDName)},
			partial(apiServiceKind): {Field: fields.OneTermEqualSelector("metadata.name", resourceService)},
		},
	}
}

// Streams returns the cache to open while the cluster has ImageStreams. It calls failed
// when a list or watch is refused.
func Streams(failed func(error)) cache.Options {
	refused := func(ctx context.Context, r *toolscache.Reflector, err error) {
		failed(err)
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
	return cache.Options{DefaultWatchErrorHandler: refused, ByObject: map[client.Object]cache.ByObject{
		untyped(imageStreamKind): {
			Namespaces: map[string]cache.Config{toolkitNamespace: {}}, Field: fields.OneTermEqualSelector("metadata.name", toolkitStream),
			Transform: stripImageStream,
		},
	}}
}

// Drivers returns the cache to open while the cluster has NVIDIADrivers. It calls failed when a list
// or watch is refused.
func Drivers(failed func(error)) cache.Options {
	options := Streams(failed)
	options.DefaultTransform = cache.TransformStripManagedFields()
	options.ByObject = map[client.Object]cache.ByObject{untyped(nvidiaDriverKind): {}}
	return options
}

// Monitors returns the cache to open while the cluster has ServiceMonitors. It calls failed when a
// list or watch is refused.
func Monitors(namespace string, failed func(error)) cache.Options {
	options := Streams(failed)
	options.DefaultTransform = cache.TransformStripManagedFields()
	options.ByObject = map[client.Object]cache.ByObject{untyped(state.ServiceMonitor): {Namespaces: map[string]cache.Config{namespace: {}}}}
	return options
}

// Slices returns the cache to open while the API of Dynamic Resource Allocation is served: all
// DeviceClasses, and the ResourceSlices of the DRA driver. It calls failed when a list or watch is
// refused.
func Slices(failed func(error)) cache.Options {
	options := Streams(failed)
	options.DefaultTransform = cache.TransformStripManagedFields()
	options.ByObject = map[client.Object]cache.ByObject{
		&resourcev1.DeviceClass{}:   {},
		&resourcev1.ResourceSlice{}: {Field: fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, draDriver), Transform: transform(stripSlice)},
	}
	return options
}

// stripSlice keeps of a ResourceSlice its node and how many devices it has.
func stripSlice(s *resourcev1.ResourceSlice) {
	s.ObjectMeta = metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}
	s.Spec = resourcev1.ResourceSliceSpec{NodeName: s.Spec.NodeName, Devices: make([]resourcev1.Device, len(s.Spec.Devices))}
}

func transform[T any](strip func(*T)) toolscache.TransformFunc {
	return func(in any) (any, error) {
		if o, is := in.(*T); is {
			strip(o)
		}
		return in, nil
	}
}

// stripJob keeps only the fields of a Job that builds modules which package driver reads.
func stripJob(j *batchv1.Job) {
	j.Spec = batchv1.JobSpec{}
	j.Status = batchv1.JobStatus{Conditions: j.Status.Conditions}
}

// stripConfigMap keeps only the names of the keys.
func stripConfigMap(m *corev1.ConfigMap) {
	m.ManagedFields, m.Annotations, m.Labels = nil, nil, nil
	for key := range m.Data {
		m.Data[key] = ""
	}
	for key := range m.BinaryData {
		m.BinaryData[key] = nil
	}
}
