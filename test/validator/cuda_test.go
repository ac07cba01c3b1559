package validator

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
)

func cudaSituations() []situation {
	return []situation{{
		name: "vectorAdd has a wrong element on one GPU", layer: readiness.CUDA, reason: "CUDASampleFailed",
		words:   []string{"1 of 8 GPUs: GPU 1 (", "is wrong: expected"},
		prepare: func(t *testing.T, n *node) { n.gpusim(t, "wrong", "--gpu", "1", "--every", "1000") },
		breaks: func(t *testing.T, n *node) {
			n.remove(t, keptProof) // otherwise nothing is computed again
			n.restart(t, validator)
		},
		also: func(t *testing.T, n *node) {
			output := n.RequireRefused(t, "-n", e2e.Namespace, "exec", n.pod(validator).Name, "-c", "validator", "--", "gpu-validator", "run")
			assert.Contains(t, output, "CUDASampleFailed")
			assert.Contains(t, output, "exit code 12")
			n.refusedByPreflight(t, 41, "GPU 1", "expected")
		},
		mends: func(t *testing.T, n *node) { n.gpusim(t, "wrong", "--gpu", "1", "--every", "0") },
	}}
}
