// Package validator breaks each layer of a real node in the ways in which they
// break, and sees that the node says which, why and what to do, and that it
// recovers by itself when the cause is gone. `make e2e-validator` plays it and
// prints how long each took.
package validator

import (
	"os"
	"testing"

	"github.com/gpuready/gpuready/test/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}
