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
	drivers    map[string]bool       // IDs of the drivers that nodes have, served or not
	served     int                   // nodes
	described  bool                  // NFD has labelled a node
}

// surveyNodes returns the survey of nodes. handOver is true while NVIDIA's operator runs.
func surveyNodes(nodes iter.Seq[*fleet.Node], handOver bool) survey {
	s := survey{examples: map[fleet.Pool]string{}, drivers: map[string]bool{}}
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
		injections[n.Injection] = true
		if first, ok := s.examples[n.Pool]; !ok || n.Name < first {
			s.examples[n.Pool] = n.Name
		}
	}
	s.injections = slices.SortedFunc(maps.Keys(injections), cmp.Compare[fleet.Injection])
	return s
}
