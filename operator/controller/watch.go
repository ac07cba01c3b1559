package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/prebuild"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/road"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// Scheme returns the kinds that the operator reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authorizationv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, nodev1.AddToScheme, metav1.AddMetaToScheme, v1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Caches returns what the operator watches, and how little of it is kept: namespace is
// that of the operands.
func Caches(namespace string) cache.Options {
	there := map[string]cache.Config{namespace: {}}
	noCopies := true // the model never changes what it was shown
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: transform(fleet.Strip), UnsafeDisableDeepCopy: &noCopies},
			&corev1.Pod{}: {
				// In all namespaces, for the operands of another operator (model.elsewhere).
				Transform: transform(progress.Strip), UnsafeDisableDeepCopy: &noCopies,
				Label: labels.SelectorFromSet(labels.Set{label.PartOf: label.Product}),
			},
			&corev1.ConfigMap{}:     {Namespaces: there, Transform: transform(stripConfigMap)},
			&appsv1.DaemonSet{}:     {Namespaces: there},
			&batchv1.Job{}:          {Namespaces: there, Label: labels.SelectorFromSet(labels.Set{label.Prebuild: "true"}), Transform: transform(stripJob)},
			&corev1.Service{}:       {Namespaces: there},
			&nodev1.RuntimeClass{}:  {},
			&appsv1.Deployment{}:    {Field: fields.OneTermEqualSelector("metadata.name", otherName), Transform: transform(stripDeployment)},
			partial(apiServiceKind): {Field: fields.OneTermEqualSelector("metadata.name", imageStreamService)},
		},
	}
}

// Streams returns what is watched while the cluster has ImageStreams; failed is called
// when that is refused.
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

func transform[T any](strip func(*T)) toolscache.TransformFunc {
	return func(in any) (any, error) {
		if o, is := in.(*T); is {
			strip(o)
		}
		return in, nil
	}
}

// stripJob leaves what package prebuild reads.
func stripJob(j *batchv1.Job) {
	j.Spec = batchv1.JobSpec{}
	j.Status = batchv1.JobStatus{Conditions: j.Status.Conditions}
}

// stripConfigMap leaves the names of the keys.
func stripConfigMap(m *corev1.ConfigMap) {
	m.ManagedFields, m.Annotations, m.Labels = nil, nil, nil
	for key := range m.Data {
		m.Data[key] = ""
	}
	for key := range m.BinaryData {
		m.BinaryData[key] = nil
	}
}

// watch has the inbox told of everything, and returns when all that there is has been.
func (c *Controller) watch(ctx context.Context) error {
	var synced []toolscache.InformerSynced
	type registration = toolscache.ResourceEventHandlerRegistration
	for _, add := range []func() (registration, error){
		func() (registration, error) { return follow(ctx, c, &v1.ClusterPolicy{}, seePolicy, losePolicy) },
		func() (registration, error) { return follow(ctx, c, &corev1.Node{}, seeNode, loseNode) },
		func() (registration, error) { return follow(ctx, c, &corev1.Pod{}, seePod, losePod) },
		func() (registration, error) { return follow(ctx, c, &corev1.ConfigMap{}, seeConfigMap, loseConfigMap) },
		func() (registration, error) { return follow(ctx, c, &batchv1.Job{}, seeJob, loseJob) },
		func() (registration, error) {
			return follow(ctx, c, &appsv1.DaemonSet{}, see[*appsv1.DaemonSet](daemonSetKind), lose[*appsv1.DaemonSet](daemonSetKind))
		},
		func() (registration, error) {
			return follow(ctx, c, &corev1.Service{}, see[*corev1.Service](serviceKind), lose[*corev1.Service](serviceKind))
		},
		func() (registration, error) {
			return follow(ctx, c, &nodev1.RuntimeClass{}, seeClass, loseClass)
		},
		func() (registration, error) {
			informer, err := c.Informers.GetInformer(ctx, &appsv1.Deployment{})
			if err != nil {
				return nil, fmt.Errorf("watch Deployments: %w", err)
			}
			return c.reviewer.watch(ctx, informer)
		},
		func() (registration, error) {
			return follow(ctx, c, partial(apiServiceKind), c.toolkit.serve, c.toolkit.unserve)
		},
	} {
		added, err := add()
		if err != nil {
			return err
		}
		synced = append(synced, added.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

// follow has see and gone called, by the owner of the model, for every object of a kind.
func follow[T client.Object](ctx context.Context, c *Controller, kind T, see, gone func(*model, T)) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, err := c.Informers.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	seen := func(o any) {
		if o, is := o.(T); is {
			c.inbox.put(func(m *model) { see(m, o) })
		}
	}
	return informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, o any) { seen(o) },
		DeleteFunc: func(o any) {
			if last, is := o.(toolscache.DeletedFinalStateUnknown); is {
				o = last.Obj
			}
			if o, is := o.(T); is {
				c.inbox.put(func(m *model) { gone(m, o) })
			}
		},
	})
}

func named(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }

func seePolicy(m *model, p *v1.ClusterPolicy) {
	if have := m.policies[p.Name]; have != nil && have.UID == p.UID && seen(p.ResourceVersion, have.ResourceVersion) {
		return
	}
	if have := m.policies[p.Name]; have == nil || have.UID != p.UID || have.Generation != p.Generation || !have.DeletionTimestamp.Equal(p.DeletionTimestamp) || !m.tells(p) {
		m.common = true
	}
	m.policies[p.Name] = p
}

// tells reports whether a policy's status is the one that is on its way to it: nothing
// follows from that.
func (m *model) tells(p *v1.ClusterPolicy) bool {
	sum, is := m.telling[p.Name]
	return is && equality.Semantic.DeepEqual(p.Status, sum)
}

func losePolicy(m *model, p *v1.ClusterPolicy) {
	delete(m.policies, p.Name)
	m.common = true
}

func seeNode(m *model, n *corev1.Node)  { m.seeNode(fleet.Observe(n)) }
func loseNode(m *model, n *corev1.Node) { m.loseNode(n.Name) }

func seePod(m *model, p *corev1.Pod) {
	if p.Namespace != m.namespace {
		if of := metav1.GetControllerOf(p); of != nil && of.Kind == daemonSetKind.Kind {
			// One that is being deleted is nobody's operand any more, though its node may be
			// gone, too, and never say that it has ended.
			ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			m.seeElsewhere(named(p), !ended)
		}
		return
	}
	if b, is := prebuild.ObservePod(p); is {
		m.seeBuilder(named(p), b)
		return
	}
	o := &operand{Pod: progress.ObservePod(p)}
	if o.State == road.Driver {
		o.driver = upgrade.ObserveDriver(p)
	}
	m.seePod(o)
}

func losePod(m *model, p *corev1.Pod) {
	if p.Namespace != m.namespace {
		m.seeElsewhere(named(p), false)
		return
	}
	if _, is := m.builders[named(p)]; is {
		delete(m.builders, named(p))
		m.common = true
		return
	}
	m.losePod(named(p))
}

func seeJob(m *model, j *batchv1.Job) {
	if b, is := prebuild.Observe(j); is && m.builds[j.Name] != b {
		m.builds[j.Name], m.common = b, true
	}
}

func loseJob(m *model, j *batchv1.Job) {
	delete(m.builds, j.Name)
	m.common = true
}

func seeConfigMap(m *model, o *corev1.ConfigMap) { m.configMaps[o.Name], m.common = o, true }

func loseConfigMap(m *model, o *corev1.ConfigMap) {
	delete(m.configMaps, o.Name)
	m.common = true
}

func seeClass(m *model, o *nodev1.RuntimeClass) {
	see[*nodev1.RuntimeClass](runtimeClassKind)(m, o)
	m.classes[o.Name] = upgrade.GPUHandler(o.Handler)
}

func loseClass(m *model, o *nodev1.RuntimeClass) {
	lose[*nodev1.RuntimeClass](runtimeClassKind)(m, o)
	delete(m.classes, o.Name)
}

// see and lose tell of objects of the kinds that the operator makes.
func see[T client.Object](kind schema.GroupVersionKind) func(*model, T) {
	return func(m *model, o T) {
		m.seeObject(apply.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, o)
	}
}

func lose[T client.Object](kind schema.GroupVersionKind) func(*model, T) {
	return func(m *model, o T) {
		m.loseObject(apply.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, o.GetUID())
	}
}
