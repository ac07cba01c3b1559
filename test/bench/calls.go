package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// calls counts the calls of NVML by which a device plugin polls GPUs to which nothing happens.
func (b *bench) calls(ctx context.Context) error {
	whole, waits, err := b.countCalls(ctx, "", "", 8)
	if err != nil {
		return err
	}
	parts, _, err := b.countCalls(ctx, "1g.10gb"+strings.Repeat(",1g.10gb", 6), "version: v1\nflags: {migStrategy: single}\n", 56)
	if err != nil {
		return err
	}
	perGPU, perDevice := make([]float64, len(whole)), make([]float64, len(parts))
	for i := range whole {
		perGPU[i], perDevice[i] = whole[i]/8, (parts[i]-whole[i])/56
	}
	count("device plugin: calls of NVML a GPU and poll, 8 GPUs", perGPU, 1, goal{median: 8})
	count("device plugin: calls of NVML a MIG device and poll, 56 on 8 GPUs", perDevice, 1, goal{median: 4})
	count("device plugin: waits for events between two polls", waits, 0, goal{})
	return nil
}

// countCalls returns the calls from one poll of 8 GPUs to the next, for some polls: waits for events, and others.
func (b *bench) countCalls(ctx context.Context, layout, config string, devices int) (others, waits []float64, err error) {
	const polls, interval = 3, 10 * time.Second // of the device plugin
	n, err := b.newNode(ctx, "h100-sxm", 8)
	if err != nil {
		return nil, nil, err
	}
	defer n.close()
	for gpu := range 8 {
		if layout == "" {
			break
		}
		if err := n.gpusim(ctx, "mig", "--gpu", fmt.Sprint(gpu), "--layout", layout); err != nil {
			return nil, nil, err
		}
	}
	counter := filepath.Join(n.dir, "calls")
	if err := os.WriteFile(counter, make([]byte, 16), 0o600); err != nil {
		return nil, nil, err
	}
	n.environ = []string{"GPUSIM_CALLS=" + counter}
	p, err := n.startPlugin(ctx, devices, config)
	if err != nil {
		return nil, nil, err
	}
	began := time.Now() // polls are at the intervals' ends, more or less
	var before [2]uint64
	for i := range 1 + polls {
		select {
		case <-time.After(time.Until(began.Add(interval/2 + time.Duration(i)*interval))):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		data, err := os.ReadFile(counter)
		if err != nil {
			return nil, nil, err
		}
		now := [2]uint64{binary.NativeEndian.Uint64(data), binary.NativeEndian.Uint64(data[8:])}
		if i > 0 {
			waits = append(waits, float64(now[1]-before[1]))
			others = append(others, float64(now[0]-before[0])-waits[i-1])
		}
		before = now
	}
	return others, waits, p.stop(ctx)
}
