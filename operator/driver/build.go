package driver

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Build is a Job that builds modules, reduced to what is reported of it.
type Build struct {
	Name                         string
	Kernel, OSTag, Kind, Version string
	Image                        string // that it pushes
	Created                      time.Time
	State                        v1.PrebuiltState // PrebuiltPresent: it has pushed the image
	Message                      string           // the Job's reason for its failure
}

// Bounds of the annotations' values, in bytes, as in the status.
const (
	maxBuildName    = 128
	maxBuildImage   = 512
	maxBuildMessage = 512
)

// ObserveBuild reduces a Job. ok is false if it does not build modules.
func ObserveBuild(j *batchv1.Job) (b Build, ok bool) {
	value := func(key string, most int) string { return record.Clean(j.Annotations[key], most) }
	b = Build{
		Name: j.Name, Kernel: value(annotationKernel, maxBuildName), OSTag: value(annotationOSTag, maxBuildName), Kind: value(annotationKind, maxBuildName),
		Version: value(annotationVersion, maxBuildName), Image: value(annotationImage, maxBuildImage), Created: j.CreationTimestamp.Time, State: v1.PrebuiltBuilding,
	}
	for _, c := range j.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			b.State = v1.PrebuiltPresent
		case c.Type == batchv1.JobFailed:
			b.State, b.Message = v1.PrebuiltFailed, record.Clean(c.Reason+": "+c.Message, maxBuildMessage)
		}
	}
	return b, j.Labels[label.Prebuild] != "" && b.Kernel != "" && b.Image != ""
}

// BuildPod is a pod of a Job that builds modules.
type BuildPod struct {
	Job     string
	Created time.Time
	Problem string // why it failed or does not start, or ""
}

// ObserveBuildPod reduces a pod. ok is false if it belongs to no such Job.
func ObserveBuildPod(p *corev1.Pod) (o BuildPod, ok bool) {
	of := metav1.GetControllerOf(p)
	if p.Labels[label.Prebuild] == "" || of == nil || of.Kind != "Job" {
		return BuildPod{}, false
	}
	return BuildPod{Job: of.Name, Created: p.CreationTimestamp.Time, Problem: buildPodProblem(p)}, true
}

func buildPodProblem(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			reason, text := progress.TerminationMessage(t.Message)
			if text == "" {
				text = fmt.Sprintf("it exited with %d without a message", t.ExitCode)
			}
			return record.Clean("container "+c.Name+": "+cmp.Or(reason, t.Reason)+": "+text, maxBuildMessage)
		}
	}
	if observed := progress.ObservePod(p).Problem; observed.Stuck {
		return record.Clean(observed.Reason+": "+observed.Message, maxBuildMessage)
	}
	return ""
}

// ReportBuilds returns the sorted results of Jobs and their pushed images. Of several Jobs that
// build the same, the newest one counts. lookup looks up an image in the registry.
func ReportBuilds(builds []Build, pods []BuildPod, lookup func(image string) Presence) []v1.PrebuiltStatus {
	newest := map[string]Build{}
	for _, b := range builds {
		if have, ok := newest[b.Image+" "+b.Kind]; !ok || have.olderThan(b) {
			newest[b.Image+" "+b.Kind] = b
		}
	}
	var all []v1.PrebuiltStatus
	for _, b := range newest {
		s := v1.PrebuiltStatus{Kernel: b.Kernel, OSTag: b.OSTag, Version: b.Version, Kind: b.Kind, Image: b.Image, Job: b.Name, State: b.State, Message: b.Message}
		if b.State == v1.PrebuiltPresent {
			s.State, s.Message = registryState(lookup(b.Image))
		} else if why := b.problem(pods); why != "" {
			s.Message = why
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b v1.PrebuiltStatus) int {
		return cmp.Or(cmp.Compare(a.OSTag, b.OSTag), cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Image, b.Image))
	})
	return all[:min(len(all), v1.MaxPrebuilt)]
}

func (b Build) olderThan(o Build) bool {
	return cmp.Or(b.Created.Compare(o.Created), cmp.Compare(b.Name, o.Name)) < 0
}

// problem returns the problem of the Job's newest pod.
func (b Build) problem(pods []BuildPod) string {
	var last BuildPod
	for _, p := range pods {
		if p.Job == b.Name && !p.Created.Before(last.Created) {
			last = p
		}
	}
	return last.Problem
}

// registryState returns the state of a pushed image in the registry. Without a result, the
// image counts as present.
func registryState(p Presence) (v1.PrebuiltState, string) {
	switch p.State {
	case Absent:
		return v1.PrebuiltMissing, "it was pushed, and the registry has it no more: build it again"
	case Unknown:
		return v1.PrebuiltPresent, record.Clean("it was pushed, but cannot be looked up in the registry: "+p.Why, maxBuildMessage)
	}
	return v1.PrebuiltPresent, ""
}
