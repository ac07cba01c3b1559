package kube

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/validator/check"
)

// NodeStatus holds the facts about kubelet and runtime from a Node's status. Its methods may be
// called concurrently.
type NodeStatus struct {
	mu      sync.Mutex
	last    check.Status
	updates chan struct{}
}

// NewNodeStatus returns an empty NodeStatus.
func NewNodeStatus() *NodeStatus { return &NodeStatus{updates: make(chan struct{}, 1)} }

// Updates returns a channel that receives whenever the status has changed.
func (s *NodeStatus) Updates() <-chan struct{} { return s.updates }

// Last returns the last status.
func (s *NodeStatus) Last() check.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Set stores a Node's status, as NodeReaderConfig.Status.
func (s *NodeStatus) Set(node corev1.NodeStatus) {
	now := check.Status{Kubelet: node.NodeInfo.KubeletVersion, Allocatable: map[string]int64{}}
	for name, quantity := range node.Allocatable {
		if strings.Contains(string(name), "/") {
			now.Allocatable[string(name)] = quantity.Value()
		}
	}
	for _, h := range node.RuntimeHandlers {
		if h.Name != "" { // the default has no name
			now.Handlers = append(now.Handlers, h.Name)
		}
	}
	slices.Sort(now.Handlers)
	s.mu.Lock()
	same := now.Kubelet == s.last.Kubelet && slices.Equal(now.Handlers, s.last.Handlers) && maps.Equal(now.Allocatable, s.last.Allocatable)
	s.last = now
	s.mu.Unlock()
	if same {
		return
	}
	select {
	case s.updates <- struct{}{}:
	default: // a change is queued already
	}
}
