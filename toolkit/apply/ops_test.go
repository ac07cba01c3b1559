package apply

import "github.com/gpuready/gpuready/internal/host"

func countOps(n *int) func(host.Op) error {
	return func(host.Op) error { *n++; return nil }
}
