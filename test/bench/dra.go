package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// dra measures gpu-dra-driver between a device plugin's state, a kubelet and an API server of the test.
func (b *bench) dra(ctx context.Context) error {
	file := filepath.Join(b.tmp, "dra.json")
	test := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-count=1", "-run=^TestTimes$", "./dra")
	test.Env = append(os.Environ(), "GPUREADY_DRA_SAMPLES="+file)
	if out, err := test.CombinedOutput(); err != nil {
		return fmt.Errorf("TestTimes in ./dra: %w: %s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s struct {
		Start, Prepare, Taint []time.Duration
		Idle, Peak            []float64
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	// Of the start, one second is kubeletplugin's: it looks only every second whether it has listed the slices.
	show("DRA driver: exec → the slices of 8 GPUs are in the API", s.Start, within(500*time.Millisecond, 0))
	show("DRA driver: NodePrepareResources of 8 GPUs, with the claim's lookup", s.Prepare, within(10*time.Millisecond, 30*time.Millisecond))
	show("DRA driver: XID in the device plugin's state → the taint is in the API", s.Taint, within(150*time.Millisecond, 0))
	count("DRA driver: peak memory, idle, 8 GPUs, MB", s.Idle, 1, goal{median: 35})
	count("DRA driver: peak memory after 50 claims for 8 GPUs, MB", s.Peak, 1, goal{})
	return nil
}
