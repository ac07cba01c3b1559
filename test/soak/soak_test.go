package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// TestSoak is a short run with a new seed each time; make soak runs for longer.
func TestSoak(t *testing.T) {
	bin := filepath.Dir(built.Path(t, "gpusim"))
	built.Path(t, "gpu-device-plugin")
	built.DriverRoot(t, "t4") // so that all that gpusim needs is built
	o := options{
		out: os.Stdout, bin: bin, duration: 5 * time.Second, calm: time.Minute, settle: time.Minute, pace: time.Second,
		seed: uint64(time.Now().UnixNano()) & 0xffffffff, profile: "h100-sxm", gpus: 8,
	}
	require.NoError(t, run(t.Context(), o))
}
