package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/apply"
)

// draObjects watches the DeviceClasses, and the ResourceSlices of the DRA driver, while the API server
// serves Dynamic Resource Allocation.
type draObjects struct {
	classes, slices *optionalWatch
}

// errSlicesPending means that the objects are being read for the first time.
var errSlicesPending = errors.New("they are being read")

func newDRAObjects(open func(func(error)) (cache.Cache, error), in *inbox, log *slog.Logger) *draObjects {
	// set replaces the error that is in the model while the objects have not been read.
	set := func(of func(*model) *error, to error) {
		in.enqueue(func(m *model) {
			if have := of(m); *have != nil {
				*have, m.changed = to, true
			}
		})
	}
	watch := func(name string, object client.Object, of func(*model) *error) *optionalWatch {
		return &optionalWatch{
			name: name, object: object, open: open, log: log, queue: newServedQueue(),
			synced: func() { set(of, nil) },
			failed: func(err error) { set(of, fmt.Errorf("read %s: %w", name, err)) },
		}
	}
	o := &draObjects{
		classes: watch("DeviceClasses", &resourcev1.DeviceClass{}, func(m *model) *error { return &m.classesError }),
		slices:  watch("ResourceSlices", &resourcev1.ResourceSlice{}, func(m *model) *error { return &m.slicesError }),
	}
	o.classes.handler = inboxHandler(in, updateDeviceClass, removeOwned[*resourcev1.DeviceClass](deviceClassKind))
	o.slices.handler = inboxHandler(in, updateSlice, removeSlice)
	return o
}

// onServed and onUnserved handle the APIService.
func (o *draObjects) onServed(m *model, _ *metav1.PartialObjectMetadata) {
	if !m.dra {
		m.dra, m.classesError, m.slicesError, m.changed = true, errSlicesPending, errSlicesPending, true
		o.classes.queue.Add(true)
		o.slices.queue.Add(true)
	}
}

func (o *draObjects) onUnserved(m *model, _ *metav1.PartialObjectMetadata) {
	m.dra, m.classesError, m.slicesError, m.changed = false, nil, nil, true
	clear(m.published)
	maps.DeleteFunc(m.objects, func(key apply.Key, _ client.Object) bool { return key.Kind == deviceClassKind })
	maps.DeleteFunc(m.foreign, func(key apply.Key, _ bool) bool { return key.Kind == deviceClassKind })
	o.classes.queue.Add(false)
	o.slices.queue.Add(false)
}

// updateDeviceClass records a DeviceClass of a name that the DRA driver's have. Others belong to their
// owners, even if they are copies with the operator's labels.
func updateDeviceClass(m *model, c *resourcev1.DeviceClass) {
	if slices.Contains(deployments.DeviceClassNames(), c.Name) {
		updateOwned[*resourcev1.DeviceClass](deviceClassKind)(m, c)
	}
}

// updateSlice records how many devices a ResourceSlice has. Only whether a node has any has
// consequences.
func updateSlice(m *model, s *resourcev1.ResourceSlice) {
	if s.Spec.NodeName == nil {
		return
	}
	node := *s.Spec.NodeName
	before := m.devicesOf(node)
	if m.published[node] == nil {
		m.published[node] = map[string]int{}
	}
	m.published[node][s.Name] = len(s.Spec.Devices)
	m.changed = m.changed || (before == 0) != (m.devicesOf(node) == 0)
}

func removeSlice(m *model, s *resourcev1.ResourceSlice) {
	if s.Spec.NodeName == nil {
		return
	}
	node := *s.Spec.NodeName
	delete(m.published[node], s.Name)
	if len(m.published[node]) == 0 {
		delete(m.published, node)
	}
	m.changed = true
}

// devicesOf returns how many devices the DRA driver has published of a node.
func (m *model) devicesOf(node string) (devices int) {
	for _, n := range m.published[node] {
		devices += n
	}
	return devices
}

// foreignDeviceClasses returns the names of the DeviceClasses that are not the operator's, sorted.
func (m *model) foreignDeviceClasses() (names []string) {
	for key := range m.foreign {
		if key.Kind == deviceClassKind {
			names = append(names, key.Name)
		}
	}
	slices.Sort(names)
	return names
}
