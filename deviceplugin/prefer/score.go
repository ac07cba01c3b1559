package prefer

import "github.com/gpuready/gpuready/internal/gpu"

// Score is what a set of GPUs is worth: the sum over each two of them, which is
// what Aligned makes as high as can be. A GPU that is not in the topology adds
// nothing, and neither does one that is named twice.
func (t *Topology) Score(gpus []gpu.UUID) int {
	sum := 0
	seen := make([]int, 0, len(gpus))
	taken := make([]bool, len(t.score))
	for _, id := range gpus {
		i, known := t.index[id]
		if !known || taken[i] {
			continue
		}
		taken[i] = true
		for _, j := range seen {
			sum += t.score[i][j]
		}
		seen = append(seen, i)
	}
	return sum
}
