package workload

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// How long the scheduler may say that it has no place. Of devices the kubelet tells
// the API server each ten seconds; of all else the scheduler knows at once.
const (
	deviceGrace = 15 * time.Second
	otherGrace  = 2 * time.Second
)

var errNoPlace = errors.New("the scheduler has no place for the pod")

// place gives a run up whose pod has been without a place for long enough.
type place struct {
	give    func(error)
	timer   *time.Timer
	devices bool // what the timer waits for
}

// look takes a state of the pod into account.
func (w *place) look(p *corev1.Pod) {
	message, without := unscheduled(p)
	devices := lacksDevice(p, message)
	switch {
	case !without:
		w.found()
		return
	case w.timer != nil && w.devices == devices:
		return
	}
	w.found()
	grace := otherGrace
	if devices {
		grace = deviceGrace
	}
	w.devices, w.timer = devices, time.AfterFunc(grace, func() { w.give(errNoPlace) })
}

// found stops the clock.
func (w *place) found() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// unscheduled is what the scheduler says of a pod that it has no place for.
func unscheduled(p *corev1.Pod) (message string, is bool) {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			return cond.Reason + ": " + cond.Message, true
		}
	}
	return "", false
}

// lacksDevice says whether the scheduler found too few of the devices that the
// pod requests; the words are its own.
func lacksDevice(p *corev1.Pod, message string) bool {
	for name := range p.Spec.Containers[0].Resources.Limits {
		if name != corev1.ResourceMemory && strings.Contains(message, "Insufficient "+string(name)) {
			return true
		}
	}
	return false
}

// noPlace is a pod that was not scheduled. A node may be full of other things.
func (c Config) noPlace(p *corev1.Pod, message string) error {
	message = record.Clean(message, 500)
	if !lacksDevice(p, message) {
		return beside(ReasonFull, fmt.Errorf("there is no place on this node for pod %s/%s: %s", p.Namespace, p.Name, message),
			"nothing, if the node is to be full; kubectl describe node shows of what")
	}
	return refuse(ReasonUnschedulable, "the kubelet says that a GPU is free, and a pod that requests one is not scheduled to this node: "+message,
		"compare with what kubectl describe node shows as allocatable and allocated")
}
