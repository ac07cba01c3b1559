package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		name: "ServiceMonitors", kind: state.ServiceMonitor, open: open, log: log, queue: newServedQueue(),
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

// withoutUnread returns the wanted objects except ServiceMonitors that cannot be compared yet, and
// why they cannot be.
func (m *model) withoutUnread(wanted []apply.Object) (readable []apply.Object, err error) {
	for _, w := range wanted {
		if m.monitorsError == nil || w.Object.GetObjectKind().GroupVersionKind() != state.ServiceMonitor {
			readable = append(readable, w)
		} else if !errors.Is(m.monitorsError, errMonitorsPending) {
			err = m.monitorsError
		}
	}
	return readable, err
}
