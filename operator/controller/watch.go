package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// watch sends all events to the inbox, except for those of Deployments: they are for the reviewer, which
// looks for other operators. It returns when the caches have synced. A kind of which objects with two
// names matter is watched twice, in Informers and in Others (see OtherCaches).
func (c *Controller) watch(ctx context.Context) error {
	in := c.inbox
	var synced []toolscache.InformerSynced
	for _, w := range []struct {
		of      cache.Informers
		kind    client.Object
		handler toolscache.ResourceEventHandler
	}{
		{c.Informers, &v1.ClusterPolicy{}, inboxHandler(in, updatePolicy, removePolicy)},
		{c.Informers, &corev1.Node{}, inboxHandler(in, updateNode, removeNode)},
		{c.Informers, &corev1.Pod{}, inboxHandler(in, updatePod, removePod)},
		{c.Informers, &corev1.ConfigMap{}, inboxHandler(in, updateConfigMap, removeConfigMap)},
		{c.Informers, &batchv1.Job{}, inboxHandler(in, updateJob, removeJob)},
		{c.Informers, &appsv1.DaemonSet{}, inboxHandler(in, updateOwned[*appsv1.DaemonSet](daemonSetKind), removeOwned[*appsv1.DaemonSet](daemonSetKind))},
		{c.Informers, &corev1.Service{}, inboxHandler(in, updateOwned[*corev1.Service](serviceKind), removeOwned[*corev1.Service](serviceKind))},
		{c.Informers, &nodev1.RuntimeClass{}, inboxHandler(in, updateClass, removeClass)},
		{c.Informers, &appsv1.Deployment{}, c.reviewer.eventHandler(ctx)},
		{c.Others, &appsv1.Deployment{}, c.reviewer.eventHandler(ctx)},
		// These notice when the cluster starts or stops serving an optional kind.
		{c.Informers, partial(apiServiceKind), inboxHandler(in, c.toolkit.onServed, c.toolkit.onUnserved)},
		{c.Informers, partial(definitionKind), inboxHandler(in, c.monitors.onServed, c.monitors.onUnserved)},
		{c.Others, partial(apiServiceKind), inboxHandler(in, c.slices.onServed, c.slices.onUnserved)},
		{c.Others, partial(definitionKind), inboxHandler(in, c.drivers.onServed, c.drivers.onUnserved)},
	} {
		informer, err := w.of.GetInformer(ctx, w.kind)
		if err != nil {
			return fmt.Errorf("watch %T: %w", w.kind, err)
		}
		added, err := informer.AddEventHandler(w.handler)
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

// inboxHandler calls update and remove for every event of a kind, in the goroutine that owns the model:
// what the operator knows about the cluster.
func inboxHandler[T client.Object](in *inbox, update, remove func(*model, T)) toolscache.ResourceEventHandler {
	return eventHandler(
		func(o T) { in.enqueue(func(m *model) { update(m, o) }) },
		func(o T) { in.enqueue(func(m *model) { remove(m, o) }) },
	)
}

// eventHandler calls update with each new or changed object, and remove with each deleted one.
func eventHandler[T client.Object](update, remove func(T)) toolscache.ResourceEventHandler {
	handle := func(o any, with func(T)) {
		if o, ok := o.(T); ok {
			with(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { handle(o, update) },
		UpdateFunc: func(_, o any) { handle(o, update) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			handle(o, remove)
		},
	}
}

func objectKey(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }

func updatePolicy(m *model, p *v1.ClusterPolicy) {
	have := m.policies[p.Name]
	if have != nil && have.UID == p.UID && notNewer(p.ResourceVersion, have.ResourceVersion) {
		return
	}
	if have == nil || have.UID != p.UID || have.Generation != p.Generation || !have.DeletionTimestamp.Equal(p.DeletionTimestamp) || !m.statusPending(p) {
		m.changed = true
	}
	m.policies[p.Name] = p
}

// statusPending reports whether a policy's status is the one that is being written. Such an
// update has no consequences.
func (m *model) statusPending(p *v1.ClusterPolicy) bool {
	written, ok := m.pendingStatus[p.Name]
	return ok && equality.Semantic.DeepEqual(p.Status, written)
}

func removePolicy(m *model, p *v1.ClusterPolicy) {
	delete(m.policies, p.Name)
	m.changed = true
}

func updateNode(m *model, n *corev1.Node) { m.updateNode(fleet.Observe(n)) }
func removeNode(m *model, n *corev1.Node) { m.removeNode(n.Name) }

func updatePod(m *model, p *corev1.Pod) {
	if p.Namespace != m.namespace {
		if of := metav1.GetControllerOf(p); of != nil && of.Kind == daemonSetKind.Kind {
			// It may be an operand of another installation. A pod that is being deleted counts as
			// ended: if its node is gone, nobody reports its end.
			ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			m.updateElsewhere(objectKey(p), !ended)
			m.updateOtherPlugin(p, of.Name, !ended)
		}
		return
	}
	if b, is := driver.ObserveBuildPod(p); is {
		m.updateBuilder(objectKey(p), b)
		return
	}
	o := &operand{Pod: progress.ObservePod(p)}
	if o.State == progress.Driver {
		o.driver = upgrade.ObserveDriver(p)
	}
	m.updatePod(o)
}

func removePod(m *model, p *corev1.Pod) {
	if p.Namespace != m.namespace {
		m.updateElsewhere(objectKey(p), false)
		m.updateOtherPlugin(p, "", false)
		return
	}
	if _, is := m.builders[objectKey(p)]; is {
		delete(m.builders, objectKey(p))
		m.changed = true
		return
	}
	m.removePod(objectKey(p))
}

func updateJob(m *model, j *batchv1.Job) {
	if b, is := driver.ObserveBuild(j); is && m.builds[j.Name] != b {
		m.builds[j.Name], m.changed = b, true
	}
}

func removeJob(m *model, j *batchv1.Job) {
	delete(m.builds, j.Name)
	m.changed = true
}

func updateConfigMap(m *model, o *corev1.ConfigMap) { m.configMaps[o.Name], m.changed = o, true }

func removeConfigMap(m *model, o *corev1.ConfigMap) {
	delete(m.configMaps, o.Name)
	m.changed = true
}

func updateClass(m *model, o *nodev1.RuntimeClass) {
	updateOwned[*nodev1.RuntimeClass](runtimeClassKind)(m, o)
	m.classes[o.Name], m.handlers[o.Name] = upgrade.GPUHandler(o.Handler), o.Handler
}

func removeClass(m *model, o *nodev1.RuntimeClass) {
	removeOwned[*nodev1.RuntimeClass](runtimeClassKind)(m, o)
	delete(m.classes, o.Name)
	delete(m.handlers, o.Name)
}

// updateOwned and removeOwned handle objects of the kinds that the operator creates, whoever made them.
func updateOwned[T client.Object](kind schema.GroupVersionKind) func(*model, T) {
	return func(m *model, o T) {
		m.updateObject(apply.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, o)
	}
}

func removeOwned[T client.Object](kind schema.GroupVersionKind) func(*model, T) {
	return func(m *model, o T) {
		m.removeObject(apply.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, o.GetUID())
	}
}

// updateBuilder records a pod of a Job that builds kernel modules.
func (m *model) updateBuilder(key types.NamespacedName, b driver.BuildPod) {
	if m.builders[key] != b {
		m.builders[key], m.changed = b, true
	}
}

// prebuildStatus returns the results of the Jobs that build kernel modules.
func (m *model) prebuildStatus(lookup func(image string) driver.Presence) []v1.PrebuiltStatus {
	return driver.ReportBuilds(slices.Collect(maps.Values(m.builds)), slices.Collect(maps.Values(m.builders)), lookup)
}
