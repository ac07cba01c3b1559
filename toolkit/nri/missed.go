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

// Missed is a container that is there without the GPUs that it should have been given,
// because nobody was there to give them when it was created. A container is given
// devices at its creation and never after: its pod has to be deleted.
type Missed struct {
	Namespace, Pod, Container string
	Agent                     bool // one of ours, by package injection
}

// String is namespace/pod/container.
func (m Missed) String() string { return m.Namespace + "/" + m.Pod + "/" + m.Container }

// missedSet finds and forgets such containers.
type missedSet struct {
	mu      sync.Mutex
	pods    []*api.PodSandbox // of a list that comes in parts
	listed  []*api.Container
	byID    map[string]Missed
	changed chan struct{} // capacity 1
}

// lacks says whether a container is without the GPUs that it should have been given.
func (p *Plugin) lacks(pod *api.PodSandbox, container *api.Container) (m Missed, lacks bool) {
	m = Missed{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
	if expects(p.Namespace, pod, container) {
		m.Agent = true
		return m, true
	}
	if !p.Workloads.allow(pod) || equipped(container) {
		return m, false
	}
	asked, err := p.Workloads.asked(pod, container)
	return m, err != nil && !errors.Is(err, request.ErrKind) || gpus(asked)
}

// synchronize takes a part of the list of all containers that are there.
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
		if m, is := lacks(pods[c.GetPodSandboxId()], c); is {
			s.byID[c.GetId()] = m
		}
	}
	s.pods, s.listed = nil, nil
	s.tell()
}

// created takes note of a container that is being created; missed is nil for one that
// lacks nothing. It takes the place of an earlier one of its pod.
func (s *missedSet) created(pod *api.PodSandbox, container *api.Container, missed *Missed) {
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
		s.tell()
	}
}

// gone forgets a container.
func (s *missedSet) gone(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.byID[id]; is {
		delete(s.byID, id)
		s.tell()
	}
}

func (s *missedSet) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// list is all there are, in order.
func (s *missedSet) list() []Missed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byID), func(a, b Missed) int { return cmp.Compare(a.String(), b.String()) })
}
