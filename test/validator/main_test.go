// Package validator breaks each layer of a real node in its typical ways. It checks that the node reports
// which layer, why and what to do, and that it recovers by itself when the cause is gone. `make
// e2e-validator` runs it and prints the time of each.
package validator

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
