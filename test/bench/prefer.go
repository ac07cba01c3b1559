package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// preferred measures a choice of devices inside the device plugin, without the gRPC call. The goals are of the median
// and of the slowest; 0: none.
func (b *bench) preferred(ctx context.Context) error {
	eight, sixteen := within(250*time.Microsecond, 0), within(2*time.Millisecond, 5*time.Millisecond)
	for _, c := range []struct {
		name     string
		node     gpu.Snapshot
		replicas int
		sizes    []int
		goal     goal
	}{
		{"8, NVSwitch", gputest.Node("h100-sxm", 8), 1, []int{1, 2, 4}, eight},
		{"8, PCIe switches", gputest.Node("l40s", 8), 1, []int{1, 2, 4}, eight},
		{"16, NVSwitch", gputest.Node("dgx-2", 16), 1, []int{2, 3, 4, 8}, sixteen},
		{"16, PCIe switches", gputest.Node("l40s", 16), 1, []int{2, 3, 4, 8}, sixteen},
		{"16 × 50 replicas", gputest.Node("dgx-2", 16), 50, []int{8}, within(time.Millisecond, 0)},
	} {
		for _, size := range c.sizes {
			took, err := choices(ctx, c.node, c.replicas, size, b.allocations)
			if err != nil {
				return err
			}
			show(fmt.Sprintf("preferred allocation: %d of %s", size, c.name), took, c.goal)
		}
	}
	return nil
}

// traces runs the benchmarks of how often requests get fully linked GPUs while GPUs are taken
// and freed, beside an oracle that knows the later requests. It must run in the repository's root.
func (b *bench) traces(ctx context.Context) error {
	fmt.Println("\nrequests for 2 and 4 GPUs that get fully linked ones, in traces of 1,000 steps (goal: 98 % of what the oracle reaches)")
	cmd := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-run", "^$", "-bench", "Traces", "-benchtime", "1x", "./deviceplugin/prefer")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// choices requests size devices n times while all are free.
func choices(ctx context.Context, node gpu.Snapshot, replicas, size, n int) ([]time.Duration, error) {
	var devices []prefer.Device
	var available []string
	for _, d := range node.Devices {
		for r := range replicas {
			id := fmt.Sprintf("%s::%d", d.UUID, r)
			devices = append(devices, prefer.Device{ID: id, GPU: d.UUID})
			available = append(available, id)
		}
	}
	chooser := prefer.New(prefer.NewTopology(node), devices, prefer.Options{Policy: prefer.Aligned})
	var took []time.Duration
	for range n {
		began := time.Now()
		if _, err := chooser.Prefer(available, nil, size); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, ctx.Err()
}
