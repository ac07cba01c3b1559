package controller

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// survey holds the cluster-wide facts that follow from the Nodes.
type survey struct {
	examples   map[fleet.Pool]string // the first served node of each pool, by name
	injections []fleet.Injection     // ways in which containers on served nodes get GPUs
	// handlers are the container runtime's handlers that all nodes with an injection report; nil:
	// one of them reports none.
	handlers  map[fleet.Injection][]string
	drivers   map[string]bool // IDs of the drivers that nodes have, served or not
	served    int             // nodes
	described bool            // NFD has labelled a node
}

// surveyNodes returns the survey of nodes. handOver is true while NVIDIA's operator runs.
func surveyNodes(nodes iter.Seq[*fleet.Node], handOver bool) survey {
	s := survey{examples: map[fleet.Pool]string{}, drivers: map[string]bool{}, handlers: map[fleet.Injection][]string{}}
	injections := map[fleet.Injection]bool{}
	for n := range nodes {
		s.described = s.described || n.HasNFDLabels
		if id := n.Labels[label.Driver]; id != "" {
			s.drivers[id] = true
		}
		if !n.Served(handOver) {
			continue
		}
		s.served++
		if !injections[n.Injection] {
			s.handlers[n.Injection] = n.Handlers
		} else if both := s.handlers[n.Injection]; both != nil {
			s.handlers[n.Injection] = common(both, n.Handlers)
		}
		injections[n.Injection] = true
		if first, ok := s.examples[n.Pool]; !ok || n.Name < first {
			s.examples[n.Pool] = n.Name
		}
	}
	s.injections = slices.SortedFunc(maps.Keys(injections), cmp.Compare[fleet.Injection])
	return s
}

// common returns the names that are in both lists, nil if the second is nil.
func common(a, b []string) []string {
	if b == nil || slices.Equal(a, b) {
		return b
	}
	both := []string{}
	for _, name := range a {
		if slices.Contains(b, name) {
			both = append(both, name)
		}
	}
	return both
}
