package cluster

import (
	"os"
	"testing"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) {
	if exit, ran := Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	leak.Main(m)
}
