package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/simulator/gpusim/record"
)

func recording() command {
	return command{
		name:    "record",
		summary: "write a profile from the NVML of this machine",
		text: `
Reads the GPUs of the machine that it runs on, their links and places, and writes
a profile that gpusim up --profile FILE makes the same machine from. UUIDs and
serial numbers of the GPUs are in it. It changes nothing on the machine.`,
		example: "gpusim record --out node.yaml\ngpusim record --driver-root /run/nvidia/driver --out - | less",
		begin: func(c *call) func() error {
			driver := c.String("driver-root", "/", "where the driver is installed")
			out := c.String("out", "", "file to write; - for standard output")
			name := c.String("name", "recorded", "name of the profile")
			c.Env["driver-root"] = "NVIDIA_DRIVER_ROOT"
			return func() error { return c.record(*driver, *out, *name) }
		},
	}
}

func (c *call) record(driver, out, name string) error {
	if out == "" {
		return usagef("--out is missing")
	}
	o := record.Options{Name: name, Library: library(driver), Sys: "/sys"}
	// A simulated driver root has a sysfs of its own.
	if _, err := os.Stat(filepath.Join(driver, "sys/bus/pci/devices")); err == nil {
		o.Sys = filepath.Join(driver, "sys")
	}
	p, notes, err := record.Machine(o)
	if err != nil {
		return err
	}
	text, err := p.Encode()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Written by gpusim record from what NVML said.\n")
	for _, note := range notes {
		fmt.Fprintf(&b, "# Note: %s.\n", note)
	}
	b.Write(text)
	if out == "-" {
		fmt.Fprint(c.out, b.String())
		return nil
	}
	if err := os.WriteFile(out, []byte(b.String()), fs.FileMode(0o644)); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s: %d GPUs; gpusim up --profile %s makes such a machine\n", out, len(p.GPUs), out)
	return nil
}

// library returns the path of libnvidia-ml below the driver root, or the bare name for
// the loader to find.
func library(driver string) string {
	if path, err := nvml.FindLibrary("", driver); err == nil {
		return path
	}
	return "libnvidia-ml.so.1"
}
