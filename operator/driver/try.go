package driver

import (
	"slices"

	"github.com/gpuready/gpuready/operator/fleet"
)

// Try lets those Choices be rolled out that are worth a try (Problem.Try) where there is
// nothing to keep: where no DaemonSet of the IDs given is made for the pool.
func Try(choices []Choice, ids []string) {
	for i, c := range choices {
		if c.Problem == nil || !c.Problem.Try || served(c.Pool, ids) {
			continue
		}
		tried := *c.Problem
		tried.Keep = false
		choices[i].Problem = &tried
	}
}

func served(p fleet.Pool, ids []string) bool {
	return slices.ContainsFunc(ids, func(id string) bool { return Serves(id, p) })
}
