package upgrade

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpuready/gpuready/operator/label"
)

// waitForJobs waits for the pods that the policy selects. After the timeout they are treated
// like any other pods.
func (w *planner) waitForJobs(n *node) State {
	if w.Policy.Jobs == nil {
		return PodDeletion
	}
	pods, ok := w.Pods[n.Name]
	if !ok {
		w.setWaiting(n, "its pods to be known")
		return WaitForJobs
	}
	var jobs []*Pod
	for _, p := range pods {
		if !p.Finished && !p.Agent && matches(w.Policy.Jobs, p) {
			jobs = append(jobs, p)
		}
	}
	if len(jobs) == 0 || w.expired(n, w.Policy.JobsTimeout) {
		return PodDeletion
	}
	w.setWaiting(n, podNames(jobs)+" to finish")
	return WaitForJobs
}

// deletePods evicts the pods that use GPUs.
func (w *planner) deletePods(n *node) (State, string) {
	next := PodRestart
	if w.Policy.Drain != nil {
		next = DrainRequired
	}
	done, why := w.evict(n, w.Policy.Deletion, w.deletes)
	switch {
	case done || why != "" && next == DrainRequired:
		return next, "" // the drain may do what the deletion is not allowed to
	case why != "":
		return Required, why
	}
	return PodDeletion, ""
}

// deletes reports whether deletePods evicts a pod. Pods of this product without a controller
// are the validator's jobs, which use GPUs without requesting them.
func (w *planner) deletes(p *Pod) bool {
	return w.uses(p) || p.Own && !p.Controlled || w.Policy.Deletion.Selector != nil && matches(w.Policy.Deletion.Selector, p)
}

// uses reports whether a pod uses GPUs: it requests them, or its RuntimeClass gives it some.
func (w *planner) uses(p *Pod) bool {
	gives, known := w.Classes[p.Class]
	if !known {
		gives = GPUHandler(p.Class) // the RuntimeClass is gone
	}
	return p.GPU || gives
}

// drain evicts all pods.
func (w *planner) drain(n *node) (State, string) {
	if w.Policy.Drain == nil {
		return PodRestart, ""
	}
	done, why := w.evict(n, *w.Policy.Drain, w.drains)
	switch {
	case done:
		return PodRestart, ""
	case why != "":
		return Required, why
	}
	return DrainRequired, ""
}

// drains reports whether drain evicts a pod.
func (w *planner) drains(p *Pod) bool {
	if w.Policy.Drain == nil {
		return false
	}
	// The operator itself may have no other node to go to.
	stays := p.Own && !w.uses(p) && p.Controlled || p.Labels[label.DrainSkip] == "true"
	return !stays && (w.Policy.Drain.Selector == nil || matches(w.Policy.Drain.Selector, p))
}

// evict removes the chosen pods. done reports that none is left; why is set if they cannot
// be removed, or were not removed in time.
func (w *planner) evict(n *node, how Eviction, chosen func(*Pod) bool) (done bool, why string) {
	pods, ok := w.Pods[n.Name]
	if !ok {
		w.setWaiting(n, "its pods to be known")
		return false, ""
	}
	var left, forbidden []*Pod
	var evictions []Removal
	for _, p := range pods {
		if p.Finished || p.Agent || !chosen(p) {
			continue
		}
		left = append(left, p)
		switch {
		case p.Deleting:
		case how.whyForbidden(p) != "":
			forbidden = append(forbidden, p)
		default:
			evictions = append(evictions, Removal{n.Name, n.UID, p.Namespace, p.Name, p.UID})
		}
	}
	switch {
	case len(left) == 0:
		return true, ""
	case len(forbidden) > 0:
		return false, fmt.Sprintf("%s cannot be evicted: %s in spec.driver.upgradePolicy", podNames(forbidden), how.whyForbidden(forbidden[0]))
	case w.expired(n, how.Timeout):
		return false, fmt.Sprintf("%s did not go within %s: see its PodDisruptionBudget, finalizers and terminationGracePeriodSeconds", podNames(left), how.Timeout.Round(time.Second))
	}
	w.setWaiting(n, podNames(left)+" to go")
	w.plan.Evict = append(w.plan.Evict, evictions...)
	return false, ""
}

// whyForbidden returns why the pod must not be evicted, or "" if it may be.
func (e Eviction) whyForbidden(p *Pod) string {
	switch {
	case p.Own:
		return ""
	case !p.Controlled && !e.Force:
		return "nothing would recreate it; delete it, or set force"
	case p.EmptyDir && !e.DeleteEmptyDir:
		return "the data of its emptyDir would be lost; delete it, or set deleteEmptyDir"
	}
	return ""
}

func matches(s labels.Selector, p *Pod) bool { return s.Matches(labels.Set(p.Labels)) }

// podNames returns a text with the names of the first pods of a list, and the number of others.
func podNames(pods []*Pod) string {
	const most = 3
	var list []string
	for _, p := range pods[:min(most, len(pods))] {
		list = append(list, p.Namespace+"/"+p.Name)
	}
	text := "pod " + strings.Join(list, ", ")
	if len(pods) > most {
		text += fmt.Sprintf(" and %d more", len(pods)-most)
	}
	return text
}

// setWaiting records what the node waits for; the first reason counts.
func (w *planner) setWaiting(n *node, what string) {
	if _, ok := w.plan.Waiting[n.Name]; !ok {
		w.plan.Waiting[n.Name] = what
	}
}
