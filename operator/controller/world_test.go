package controller

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/evict"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/registry"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

const (
	namespace = "gpuready"
	kernel    = "5.15.0-105-generic"
)

// world is a Controller with a fake cluster whose watches are immediate. The test is the
// goroutine that owns the model, and a step does what events would cause.
type world struct {
	testing.TB
	client.Client
	*Controller
	now      time.Time
	writes   []string         // "patch Node n1"
	refuse   error            // of every write
	locked   map[string]error // of writes of a Node
	images   map[string]driver.Presence
	removed  []string          // pods
	blocked  map[string]string // evictions, by node
	onNodes  map[string][]*upgrade.Pod
	query    func(context.Context, string, registry.Access) driver.Presence // nil: images is the registry's content
	notified chan string                                                    // images that query has reported
	events   *events.FakeRecorder
}

func newWorld(t testing.TB) *world {
	scheme, err := Scheme()
	require.NoError(t, err)
	w := &world{TB: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), images: map[string]driver.Presence{}, events: events.NewFakeRecorder(1000)}
	w.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1.ClusterPolicy{}, &v1alpha1.NVIDIADriver{}).WithIndex(&corev1.ConfigMap{}, "metadata.name", byOwnName).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			named := o.(interface {
				GetName() string
				GetKind() string
			})
			w.writes = append(w.writes, "apply "+named.GetName())
			if w.refuse != nil {
				return w.refuse
			}
			return c.Apply(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.writes = append(w.writes, "patch "+o.GetName())
			if err := w.locked[o.GetName()]; err != nil {
				return err
			}
			if w.refuse != nil {
				return w.refuse
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			w.writes = append(w.writes, "delete "+o.GetName())
			return c.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes = append(w.writes, sub+" "+o.GetName())
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}).Build()
	w.start()
	return w
}

// byOwnName returns the field that every API server can select by.
func byOwnName(o client.Object) []string { return []string{o.GetName()} }

// start starts a new Controller with an empty model.
func (w *world) start() {
	w.Controller = New(Config{
		Client: w.Client, Events: w.events, Metrics: metrics.New(prometheus.NewRegistry()), Evictor: func(func(), func(*corev1.Node, upgrade.Event)) Evictor { return w },
		Cluster: state.Cluster{Namespace: namespace, ImageRepository: "gpuready", ImageVersion: "v0"},
		Registry: func(changed func(string)) Registry {
			if w.query != nil {
				return registry.NewCache(w.query, func(image string) {
					changed(image)
					w.notified <- image
				})
			}
			return images(w.images)
		},
		Now: func() time.Time { return w.now },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	w.spawn = func(request func()) { request() }
	w.Cleanup(w.writer.queue.ShutDown)
	w.Cleanup(w.toolkit.queue.ShutDown)
	w.Cleanup(w.monitors.queue.ShutDown)
	w.Cleanup(w.drivers.queue.ShutDown)
	w.Cleanup(w.slices.classes.queue.ShutDown)
	w.Cleanup(w.slices.slices.queue.ShutDown)
}

// Pods, Remove and Start implement Evictor.
func (w *world) Pods() map[string][]*upgrade.Pod { return w.onNodes }
func (w *world) Remove(p *upgrade.Plan, _ func(string) bool) evict.Outcome {
	for _, r := range append(p.Evict, p.Delete...) {
		w.removed = append(w.removed, r.Name)
	}
	return evict.Outcome{Blocked: w.blocked}
}
func (w *world) Start(context.Context) error { return nil }

// images is a registry that has all images which are not built for one kernel.
type images map[string]driver.Presence

func (i images) Lookup(image string, _ registry.Access) driver.Presence {
	if said, ok := i[image]; ok || strings.Contains(image, kernel) {
		return said
	}
	return driver.Presence{State: driver.Present}
}
func (i images) Prune()                    {}
func (i images) Run(context.Context) error { return nil }

// syncModel updates the model with all that the API server has, as watches would.
func (w *world) syncModel() {
	var nodes corev1.NodeList
	var pods corev1.PodList
	var sets appsv1.DaemonSetList
	var services corev1.ServiceList
	var classes nodev1.RuntimeClassList
	var policies v1.ClusterPolicyList
	var configs corev1.ConfigMapList
	var jobs batchv1.JobList
	for _, list := range []client.ObjectList{&nodes, &pods, &sets, &services, &classes, &policies, &configs, &jobs} {
		require.NoError(w, w.List(w.Context(), list))
	}
	m := w.model
	there := map[string]bool{}
	for i := range nodes.Items {
		n := nodes.Items[i].DeepCopy()
		there[n.Name] = true
		fleet.Strip(n)
		updateNode(m, n)
	}
	for name := range m.nodes {
		if !there[name] {
			m.removeNode(name)
		}
	}
	seen := map[types.NamespacedName]bool{}
	for i := range pods.Items {
		p := pods.Items[i].DeepCopy()
		seen[objectKey(p)] = true
		progress.Strip(p)
		updatePod(m, p)
	}
	for key := range m.pods {
		if !seen[key] {
			m.removePod(key)
		}
	}
	objects := map[apply.Key]bool{}
	found := func(kind schema.GroupVersionKind, o client.Object) {
		objects[apply.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}] = true
	}
	for i := range sets.Items {
		updateOwned[*appsv1.DaemonSet](daemonSetKind)(m, &sets.Items[i])
		found(daemonSetKind, &sets.Items[i])
	}
	for i := range services.Items {
		updateOwned[*corev1.Service](serviceKind)(m, &services.Items[i])
		found(serviceKind, &services.Items[i])
	}
	for i := range classes.Items {
		updateOwned[*nodev1.RuntimeClass](runtimeClassKind)(m, &classes.Items[i])
		found(runtimeClassKind, &classes.Items[i])
	}
	if m.serviceMonitors {
		var monitors unstructured.UnstructuredList
		monitors.SetGroupVersionKind(state.ServiceMonitor)
		require.NoError(w, w.List(w.Context(), &monitors))
		for i := range monitors.Items {
			updateOwned[*unstructured.Unstructured](state.ServiceMonitor)(m, &monitors.Items[i])
			found(state.ServiceMonitor, &monitors.Items[i])
		}
	}
	if m.dra && m.classesError == nil {
		var classes resourcev1.DeviceClassList
		require.NoError(w, w.List(w.Context(), &classes))
		for i := range classes.Items {
			updateDeviceClass(m, &classes.Items[i])
			found(deviceClassKind, &classes.Items[i])
		}
	}
	if m.driversError == nil {
		w.syncDrivers()
	}
	clear(m.builds)
	for i := range jobs.Items {
		stripJob(&jobs.Items[i])
		updateJob(m, &jobs.Items[i])
	}
	clear(m.configMaps)
	for i := range configs.Items {
		stripConfigMap(&configs.Items[i])
		updateConfigMap(m, &configs.Items[i])
	}
	for key, o := range m.objects {
		if !objects[key] {
			m.removeObject(key, o.GetUID())
		}
	}
	named := map[string]bool{}
	for i := range policies.Items {
		updatePolicy(m, &policies.Items[i])
		named[policies.Items[i].Name] = true
	}
	for name, p := range m.policies {
		if !named[name] {
			removePolicy(m, p)
		}
	}
}

// markChanged requests a full pass, as a registry's response does.
func (w *world) markChanged() { w.model.changed = true }

// runDue drains the inbox first.
func (w *world) runDue(ctx context.Context) {
	w.drainInbox()
	w.Controller.runDue(ctx)
}

// settle runs passes until nothing is due, and returns the writes.
func (w *world) settle() []string {
	w.writes = nil
	for range 10 {
		before := len(w.writes)
		w.now = w.now.Add(reportEvery)
		w.syncModel()
		w.runDue(w.Context())
		w.writePatches()
		w.now = w.now.Add(minRest)
		w.runDue(w.Context())
		if len(w.writes) == before {
			return w.writes
		}
	}
	require.Fail(w, "it goes on writing", "%v", w.writes)
	return nil
}

// writePatches writes all queued patches.
func (w *world) writePatches() {
	for w.writer.queue.Len() > 0 {
		name, _ := w.writer.queue.Get()
		w.writer.write(w.Context(), name)
		w.writer.queue.Done(name)
	}
}

func (w *world) create(objects ...client.Object) {
	for _, o := range objects {
		require.NoError(w, w.Create(w.Context(), o))
	}
}

func (w *world) node(name string) *corev1.Node {
	var n corev1.Node
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Name: name}, &n))
	return &n
}

// change edits a Node as another client would.
func (w *world) change(name string, edit func(*corev1.Node)) {
	n := w.node(name)
	edit(n)
	status := n.Status
	require.NoError(w, w.Update(w.Context(), n))
	n.Status = status
	require.NoError(w, w.Status().Update(w.Context(), n))
}

func (w *world) sets() (names []string) {
	var sets appsv1.DaemonSetList
	require.NoError(w, w.List(w.Context(), &sets))
	for _, s := range sets.Items {
		names = append(names, s.Name)
	}
	return names
}

func (w *world) policy(name string) *v1.ClusterPolicy {
	var p v1.ClusterPolicy
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Name: name}, &p))
	return &p
}

func gpuNode(name string, more ...string) *corev1.Node {
	labels := map[string]string{
		label.PCI: "true", label.Kernel: kernel, label.OSID: "ubuntu", label.OSVersion: "22.04",
	}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64", KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.1.0", KernelVersion: kernel},
		},
	}
}

func simulated(name string) *v1.ClusterPolicy {
	yes := true
	p := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	p.Spec.Driver.Simulated = &v1.SimulatedSpec{}
	p.Spec.Driver.Simulated.Enabled = &yes
	return p
}

func (w *world) deleteObject(o client.Object) {
	require.NoError(w, client.IgnoreNotFound(w.Delete(w.Context(), o)))
}
