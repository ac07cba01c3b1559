package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	sampleRuns = 100
	sampleGoal = 60 * time.Millisecond
)

// samples measures vectoradd on the simulator, from the start of its process to its end.
func (b *bench) samples(ctx context.Context) (err error) {
	n := &node{bench: b}
	if n.dir, err = os.MkdirTemp(b.tmp, "samples"); err != nil {
		return err
	}
	if err := n.gpusim(ctx, "up", "--profile", "h100-sxm"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.gpusim(context.Background(), "down")) }()
	libraries, err := filepath.Glob(filepath.Join(n.root(), "usr/lib/*/libcuda.so.1"))
	if err != nil {
		return err
	}
	if len(libraries) != 1 {
		return fmt.Errorf("below %s are %d libcuda.so.1, not one", n.root(), len(libraries))
	}
	var took []time.Duration
	for range sampleRuns {
		cmd := exec.CommandContext(ctx, b.program("vectoradd"))
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(libraries[0]))
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took = append(took, time.Since(start))
		if err != nil {
			return fmt.Errorf("vectoradd: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	show("vectoradd: whole process, 50,000 elements, on the simulator", took, within(sampleGoal, 0))
	return nil
}
