// Package prefer chooses which of the available devices a container gets: near to each
// other, packed, or spread out.
//
// The data that a choice needs are prepared in advance. A Topology is built once for a snapshot
// and holds how near each two GPUs are. A Chooser is built once for the devices of a resource and
// knows the GPU of each. A request then needs neither NVML nor a lock, and its result does not
// depend on the order of the devices.
package prefer

import (
	"maps"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Topology holds how near the GPUs of a node are to each other. It is never changed
// except for its cache, and may be used concurrently.
type Topology struct {
	index map[gpu.UUID]int // position in score and rank: the order of the snapshot
	score [][]int          // of each two GPUs; 0 on the diagonal
	rank  [][]int          // rank of their score among all scores of the node; 0 is the lowest
	ranks int              // number of different ranks

	bestScores bestScores // cache of Chooser.Rate
}

// Equal reports whether t and o have the same GPUs, equally near to each other.
func (t *Topology) Equal(o *Topology) bool {
	return maps.Equal(t.index, o.index) && slices.EqualFunc(t.score, o.score, slices.Equal[[]int])
}

// The weights of links are those of NVIDIA's go-gpuallocator
// (gpuallocator/besteffort_policy.go, calculateGPUPairScore), so that choices can be
// compared with its own: 100 for each NVLink, and 10 for each step of the PCIe level,
// from 10 across CPUs to 60 on one board, which is the order of gpu.LinkKind.
const (
	scoreLane = 100
	scoreStep = 10
)

// NewTopology reads the links of a snapshot. It ignores links that are listed twice or
// lead nowhere.
func NewTopology(s gpu.Snapshot) *Topology {
	n := len(s.Devices)
	t := &Topology{index: make(map[gpu.UUID]int, n), score: newSquare(n), rank: newSquare(n)}
	for i, d := range s.Devices {
		if _, twice := t.index[d.UUID]; d.UUID != "" && !twice {
			t.index[d.UUID] = i
		}
	}
	for i, d := range s.Devices {
		for j, e := range s.Devices[:i] {
			t.score[i][j] = scoreStep * int(pcieLevel(gpu.Link{}, d, e))
			t.score[j][i] = t.score[i][j]
		}
	}
	for _, l := range s.Links {
		i, hasA := t.index[l.A]
		j, hasB := t.index[l.B]
		if !hasA || !hasB || i == j {
			continue
		}
		t.score[i][j] = scoreLane*max(l.Lanes, 0) + scoreStep*int(pcieLevel(l, s.Devices[i], s.Devices[j]))
		t.score[j][i] = t.score[i][j]
	}
	t.rankScores()
	return t
}

// pcieLevel returns the PCIe level between two GPUs. An NVLink or an unreadable link does
// not have it; then their NUMA nodes determine it.
func pcieLevel(l gpu.Link, a, b gpu.Device) gpu.LinkKind {
	switch {
	case l.Kind > gpu.LinkUnknown && l.Kind < gpu.LinkNVLink:
		return l.Kind
	case a.NUMANode < 0 || b.NUMANode < 0:
		return gpu.LinkUnknown
	case a.NUMANode == b.NUMANode:
		return gpu.LinkNode
	}
	return gpu.LinkSystem
}

// rankScores sets rank and ranks.
func (t *Topology) rankScores() {
	var all []int
	for i, row := range t.score {
		all = append(all, row[:i]...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	t.ranks = len(all)
	for i, row := range t.score {
		for j, score := range row {
			if i != j {
				t.rank[i][j], _ = slices.BinarySearch(all, score)
			}
		}
	}
}

// newSquare returns a matrix of n rows and n columns.
func newSquare(n int) [][]int {
	rows, cells := make([][]int, n), make([]int, n*n)
	for i := range rows {
		rows[i] = cells[i*n : (i+1)*n : (i+1)*n]
	}
	return rows
}
