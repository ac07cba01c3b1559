package nri

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// Missed is a container that exists without the GPUs it should have, because no plugin
// was connected when it was created. A container only receives devices at its creation,
// so its pod has to be deleted.
type Missed struct {
	Namespace, Pod, Container string
	Agent                     bool // one of ours, by package injection
}

// String returns namespace/pod/container.
func (m Missed) String() string { return m.Namespace + "/" + m.Pod + "/" + m.Container }

// missedSet tracks such containers.
type missedSet struct {
	mu      sync.Mutex
	pods    []*api.PodSandbox // of a list that arrives in parts
	listed  []*api.Container
	byID    map[string]Missed
	changed chan struct{} // capacity 1
}

// lacks reports whether a container lacks the GPUs that it should have.
func (p *Plugin) lacks(pod *api.PodSandbox, container *api.Container) (m Missed, lacks bool) {
	m = Missed{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
	if expects(p.Namespace, pod, container) {
		m.Agent = true
		return m, true
	}
	if !p.Workloads.allow(pod) || equipped(container) {
		return m, false
	}
	requested, err := p.Workloads.request(pod, container)
	return m, err != nil && !errors.Is(err, request.ErrKind) || requestsGPUs(requested)
}

// synchronize adds a part of the list of all existing containers, and recomputes the
// set after the last part.
func (s *missedSet) synchronize(in *api.SynchronizeRequest, lacks func(*api.PodSandbox, *api.Container) (Missed, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods, s.listed = append(s.pods, in.GetPods()...), append(s.listed, in.GetContainers()...)
	if in.GetMore() {
		return
	}
	pods := map[string]*api.PodSandbox{}
	for _, pod := range s.pods {
		pods[pod.GetId()] = pod
	}
	s.byID = map[string]Missed{}
	for _, c := range s.listed {
		if c.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		if m, ok := lacks(pods[c.GetPodSandboxId()], c); ok {
			s.byID[c.GetId()] = m
		}
	}
	s.pods, s.listed = nil, nil
	s.notify()
}

// add records a container that is being created. It replaces an earlier one of its pod.
// missed is nil for a container that lacks nothing.
func (s *missedSet) add(pod *api.PodSandbox, container *api.Container, missed *Missed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if missed == nil && len(s.byID) == 0 {
		return
	}
	was := len(s.byID)
	maps.DeleteFunc(s.byID, func(_ string, m Missed) bool {
		return m.Namespace == pod.GetNamespace() && m.Pod == pod.GetName() && m.Container == container.GetName()
	})
	if missed != nil {
		if s.byID == nil {
			s.byID = map[string]Missed{}
		}
		s.byID[container.GetId()] = *missed
	}
	if missed != nil || len(s.byID) != was {
		s.notify()
	}
}

// remove removes a container that has ended.
func (s *missedSet) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.byID[id]; ok {
		delete(s.byID, id)
		s.notify()
	}
}

func (s *missedSet) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// list returns all missed containers, sorted by name.
func (s *missedSet) list() []Missed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byID), func(a, b Missed) int { return cmp.Compare(a.String(), b.String()) })
}
