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

// driver measures gpu-driver in a virtual machine. Its processor is emulated, so everything takes
// many times longer than on a node.
func (b *bench) driver(ctx context.Context) error {
	info, err := os.Stat(b.program("gpu-driver"))
	if err != nil {
		return err
	}
	count("driver: program, MB", []float64{float64(info.Size()) / megabyte}, 1, goal{median: 12})
	if info, err := os.Stat(b.program("images/driver.tar")); err == nil { // built by make images
		count("driver: image without a driver, unpacked, MB", []float64{float64(info.Size()) / megabyte}, 1, goal{median: 15})
	}
	var s struct {
		Insmod, Load, Adopt, Start []time.Duration
		Resident                   []float64
	}
	if err := b.sample(ctx, "TestTimes", "GPUREADY_SAMPLES", &s); err != nil {
		return err
	}
	var kit struct{ Begin, Take []time.Duration }
	if err := b.sample(ctx, "TestToolkitTimes", "GPUREADY_TOOLKIT_SAMPLES", &kit); err != nil {
		return err
	}
	show("driver: request to the Driver Toolkit → its compiler starts", kit.Begin, within(100*time.Millisecond, 0))
	show("driver: it has built → the modules are verified, and loading starts", kit.Take, within(100*time.Millisecond, 0))
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

// sample runs a test of ./test/driver that writes its measurements as JSON to the file named by a
// variable, and decodes them.
func (b *bench) sample(ctx context.Context, name, variable string, into any) error {
	file := filepath.Join(b.tmp, name+".json")
	test := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-count=1", "-run=^"+name+"$", "./test/driver")
	test.Env = append(os.Environ(), "GPUREADY_MACHINE=1", variable+"="+file)
	if out, err := test.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in ./test/driver: %w: %s", name, err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
