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

// driver measures gpu-driver in a virtual machine, whose processor is emulated: what it
// takes there is many times what it takes on a node.
func (b *bench) driver(ctx context.Context) error {
	info, err := os.Stat(b.program("gpu-driver"))
	if err != nil {
		return err
	}
	count("driver: program, MB", []float64{float64(info.Size()) / megabyte}, 1, goal{median: 12})
	file := filepath.Join(b.tmp, "driver.json")
	test := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-count=1", "-run=^TestTimes$", "./test/driver")
	test.Env = append(os.Environ(), "GPUREADY_MACHINE=1", "GPUREADY_SAMPLES="+file)
	if out, err := test.CombinedOutput(); err != nil {
		return fmt.Errorf("TestTimes in ./test/driver: %w: %s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s struct {
		Insmod, Load, Adopt, Start []time.Duration
		Resident                   []float64
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	show("driver: insmod of the modules (emulated machine)", s.Insmod, goal{})
	show("driver: modules and root, from its start (emulated machine)", s.Load, goal{})
	beyond := make([]time.Duration, len(s.Load))
	for i := range s.Load {
		beyond[i] = s.Load[i] - s.Insmod[i]
	}
	show("driver: of these, beyond insmod", beyond, within(time.Second, 0))
	show("driver: restart, all of it adopted (emulated machine)", s.Adopt, within(150*time.Millisecond, 0))
	show("driver: of these, to start any program of its size", s.Start, goal{})
	count("driver: peak memory, MB", s.Resident, 1, goal{median: 15})
	return nil
}
