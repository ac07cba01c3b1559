package prefer

import "github.com/gpuready/gpuready/internal/gpu"

// Score returns the sum of the scores of each two GPUs, which Aligned maximizes.
// Unknown and repeated GPUs add nothing.
func (t *Topology) Score(gpus []gpu.UUID) int {
	sum := 0
	seen := make([]int, 0, len(gpus))
	counted := make([]bool, len(t.score))
	for _, id := range gpus {
		i, known := t.index[id]
		if !known || counted[i] {
			continue
		}
		counted[i] = true
		for _, j := range seen {
			sum += t.score[i][j]
		}
		seen = append(seen, i)
	}
	return sum
}
