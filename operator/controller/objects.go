package controller

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/apply"
)

// updateObject stores an object of a kind that the operator creates. Another owner's object
// only occupies its name.
func (m *model) updateObject(key apply.Key, o client.Object) {
	if have := m.objects[key]; have != nil && have.GetUID() == o.GetUID() && notNewer(o.GetResourceVersion(), have.GetResourceVersion()) {
		return
	}
	m.changed = true
	if !apply.Ours(o) {
		m.foreign[key] = true
		delete(m.objects, key)
		return
	}
	delete(m.foreign, key)
	m.objects[key] = o
}

// removeObject forgets an object, unless another has taken its name since.
func (m *model) removeObject(key apply.Key, uid types.UID) {
	m.changed = true
	delete(m.foreign, key)
	if have := m.objects[key]; have != nil && have.GetUID() == uid {
		delete(m.objects, key)
	}
}

// foreignClasses returns the handlers of the RuntimeClasses that are not the operator's.
func (m *model) foreignClasses() map[string]string {
	var classes map[string]string
	for key := range m.foreign {
		if key.Kind != runtimeClassKind {
			continue
		}
		if classes == nil {
			classes = map[string]string{}
		}
		classes[key.Name] = m.handlers[key.Name]
	}
	return classes
}

// ownedObjects returns the operator's own objects in a fixed order.
func (m *model) ownedObjects() []client.Object {
	keys := slices.SortedFunc(maps.Keys(m.objects), func(a, b apply.Key) int { return cmp.Compare(a.String(), b.String()) })
	all := make([]client.Object, 0, len(keys))
	for _, key := range keys {
		all = append(all, m.objects[key])
	}
	return all
}

// notNewer reports whether a resourceVersion equals another of the same object or is older.
// An event from a watch may be older than the response to a write.
func notNewer(now, have string) bool {
	return now == have && now != "" || older(now, have)
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
