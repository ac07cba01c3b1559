package workload

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// The time that a pod may stay unschedulable. The kubelet reports devices to the API
// server every ten seconds; the scheduler knows everything else at once.
const (
	deviceGrace = 15 * time.Second
	otherGrace  = 2 * time.Second
)

var errUnschedulable = errors.New("the scheduler has no place for the pod")

// place cancels a run whose pod has been unschedulable for long enough.
type place struct {
	cancel  func(error)
	timer   *time.Timer
	devices bool // the timer waits for devices
}

// observe starts or stops the timer by a state of the pod.
func (w *place) observe(p *corev1.Pod) {
	message, unplaced := unscheduled(p)
	devices := lacksDevice(p, message)
	switch {
	case !unplaced:
		w.stop()
		return
	case w.timer != nil && w.devices == devices:
		return
	}
	w.stop()
	grace := otherGrace
	if devices {
		grace = deviceGrace
	}
	w.devices, w.timer = devices, time.AfterFunc(grace, func() { w.cancel(errUnschedulable) })
}

// stop stops the timer.
func (w *place) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// unscheduled returns the scheduler's message about a pod that it cannot place.
func unscheduled(p *corev1.Pod) (message string, is bool) {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			return cond.Reason + ": " + cond.Message, true
		}
	}
	return "", false
}

// lacksDevice reports whether the scheduler found too few of the devices that the
// pod requests. The text matched is the scheduler's.
func lacksDevice(p *corev1.Pod, message string) bool {
	for name := range p.Spec.Containers[0].Resources.Limits {
		if name != corev1.ResourceMemory && strings.Contains(message, "Insufficient "+string(name)) {
			return true
		}
	}
	return false
}

// unschedulableError returns the error of a pod that was not scheduled. The node may lack something
// other than devices.
func (c Config) unschedulableError(p *corev1.Pod, message string) error {
	message = record.Clean(message, 500)
	if !lacksDevice(p, message) {
		return newUnproven(ReasonFull, fmt.Errorf("there is no place on this node for pod %s/%s: %s", p.Namespace, p.Name, message),
			"nothing, if the node is to be full; kubectl describe node shows of what")
	}
	return refuse(ReasonUnschedulable, "the kubelet says that a GPU is free, and a pod that requests one is not scheduled to this node: "+message,
		"compare with what kubectl describe node shows as allocatable and allocated")
}
