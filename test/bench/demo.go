package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// demo runs the program demo, a node from its driver to a CUDA job, several times and shows how long each
// step takes.
func (b *bench) demo(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("demo: left out, it needs root")
		return nil
	}
	var names []string
	steps := map[string][]time.Duration{}
	for range b.demoRuns {
		out, err := exec.CommandContext(ctx, b.program("demo"), "-o", "json").Output()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var r struct {
			Seconds float64
			Steps   []struct {
				Name    string
				Seconds float64
			}
		}
		if err := json.Unmarshal(out, &r); err != nil {
			return err
		}
		names = names[:0] // every run has the same steps
		for _, s := range r.Steps {
			names = append(names, s.Name)
			steps[s.Name] = append(steps[s.Name], time.Duration(s.Seconds*1e9))
		}
		names = append(names, "total")
		steps["total"] = append(steps["total"], time.Duration(r.Seconds*1e9))
	}
	for _, name := range names {
		show("demo: "+name, steps[name], goal{}) // no goal: it depends on the machine
	}
	return nil
}

// interpreter runs the Go benchmarks of the simulated libcuda, which interprets PTX.
func (b *bench) interpreter(ctx context.Context) error {
	fmt.Println()
	cmd := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-run", "^$", "-bench", ".", "-count", "3", "./simulator/cudatest")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
