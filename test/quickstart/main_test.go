// Package quickstart does what docs/install.md says, on a real cluster, with the names under which a
// release is published. `make e2e-quickstart` runs it.
package quickstart

import (
	"os"
	"testing"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}
