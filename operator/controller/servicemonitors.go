package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/state"
)

// monitors watches the ServiceMonitors in the operands' namespace, while the cluster has the
// prometheus-operator's kind.
type monitors struct {
	*optionalWatch
}

// errMonitorsPending means that the ServiceMonitors are being read for the first time.
var errMonitorsPending = errors.New("they are being read")

func newMonitors(open func(func(error)) (cache.Cache, error), in *inbox, log *slog.Logger) *monitors {
	return &monitors{&optionalWatch{
		name: "ServiceMonitors", object: untyped(state.ServiceMonitor), open: open, log: log, queue: newServedQueue(),
		handler: inboxHandler(in, updateOwned[*unstructured.Unstructured](state.ServiceMonitor), removeOwned[*unstructured.Unstructured](state.ServiceMonitor)),
		synced:  func() { in.enqueue(func(m *model) { m.monitorsError, m.changed = nil, true }) },
		failed: func(err error) {
			in.enqueue(func(m *model) {
				if m.monitorsError != nil {
					m.monitorsError, m.changed = fmt.Errorf("read ServiceMonitors: %w", err), true
				}
			})
		},
	}}
}

// onServed and onUnserved handle the definition of the kind.
func (w *monitors) onServed(m *model, _ *metav1.PartialObjectMetadata) {
	if !m.serviceMonitors {
		m.serviceMonitors, m.monitorsError, m.changed = true, errMonitorsPending, true
		w.queue.Add(true)
	}
}

func (w *monitors) onUnserved(m *model, _ *metav1.PartialObjectMetadata) {
	m.serviceMonitors, m.monitorsError, m.changed = false, nil, true
	gone := func(key apply.Key) bool { return key.Kind == state.ServiceMonitor }
	maps.DeleteFunc(m.objects, func(key apply.Key, _ client.Object) bool { return gone(key) })
	maps.DeleteFunc(m.foreign, func(key apply.Key, _ bool) bool { return gone(key) })
	w.queue.Add(false)
}

// withoutUnread returns the wanted objects except ServiceMonitors and DeviceClasses that cannot be
// compared yet, and why they cannot be.
func (m *model) withoutUnread(wanted []apply.Object) (readable []apply.Object, err error) {
	unread := map[schema.GroupVersionKind]error{state.ServiceMonitor: m.monitorsError, deviceClassKind: m.classesError}
	for _, w := range wanted {
		switch why := unread[w.Object.GetObjectKind().GroupVersionKind()]; {
		case why == nil:
			readable = append(readable, w)
		case !errors.Is(why, errMonitorsPending) && !errors.Is(why, errSlicesPending):
			err = errors.Join(err, why)
		}
	}
	return readable, err
}
