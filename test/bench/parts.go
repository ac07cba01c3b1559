package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/kubelettest"
)

const resource = "nvidia.com/gpu"

// plugin measures starts of the built device plugin until the kubelet has its
// first list of 8 GPUs, and admissions against one that runs.
func (b *bench) plugin(ctx context.Context, starts, allocations int) error {
	root := filepath.Join(b.tmp, "driver")
	up := exec.CommandContext(ctx, b.program("gpusim"), "up", "--root", root, "--profile", "h100-sxm")
	if out, err := up.CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim up: %w: %s", err, out)
	}
	defer func() { _ = exec.Command(b.program("gpusim"), "down", "--root", root).Run() }()
	kubelet, err := kubelettest.Start(kubelettest.Config{Dir: filepath.Join(b.tmp, "kubelet")})
	if err != nil {
		return err
	}
	defer kubelet.Stop()

	var first []time.Duration
	for i := range starts {
		took, stop, err := b.startPlugin(ctx, kubelet, root)
		if err != nil {
			return err
		}
		first = append(first, took)
		if i == starts-1 {
			err = b.allocate(ctx, kubelet, allocations)
		}
		stop()
		if err != nil {
			return err
		}
		if _, err := kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Allocatable == 0 }); err != nil {
			return err
		}
	}
	show("device plugin: start → the kubelet has 8 GPUs", first)
	return nil
}

// startPlugin starts the plugin and waits until the kubelet can allocate 8 GPUs.
func (b *bench) startPlugin(ctx context.Context, kubelet *kubelettest.Kubelet, root string) (time.Duration, func(), error) {
	cmd := exec.CommandContext(ctx, b.program("gpu-device-plugin"), "--kubelet-socket", kubelet.Socket(),
		"--driver-root", root, "--state-dir", filepath.Join(b.tmp, "state"), "--listen", "")
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Allocatable == 8 }); err != nil {
		stop()
		return 0, nil, err
	}
	return time.Since(began), stop, nil
}

// allocate measures admissions of pods for 1 and 4 of 8 GPUs.
func (b *bench) allocate(ctx context.Context, kubelet *kubelettest.Kubelet, n int) error {
	for _, gpus := range []int{1, 4} {
		var took []time.Duration
		for range n {
			began := time.Now()
			if _, err := kubelet.Admit(ctx, kubelettest.Pod{Namespace: "bench", Name: "pod", Container: "c", Requests: map[string]int{resource: gpus}}); err != nil {
				return err
			}
			took = append(took, time.Since(began))
			kubelet.Remove("bench", "pod")
		}
		show(fmt.Sprintf("device plugin: GetPreferredAllocation + Allocate, %d of 8", gpus), took)
	}
	return nil
}

// demo measures the steps of the demo.
func (b *bench) demo(ctx context.Context, runs int) error {
	if os.Geteuid() != 0 {
		fmt.Println("demo: left out, it needs root")
		return nil
	}
	var names []string
	steps := map[string][]time.Duration{}
	for range runs {
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
		names = names[:0]
		for _, s := range r.Steps {
			names = append(names, s.Name)
			steps[s.Name] = append(steps[s.Name], time.Duration(s.Seconds*1e9))
		}
		names = append(names, "in all")
		steps["in all"] = append(steps["in all"], time.Duration(r.Seconds*1e9))
	}
	for _, name := range names {
		show("demo: "+name, steps[name])
	}
	return nil
}

// interpreter runs the benchmarks of the simulated libcuda.
func (b *bench) interpreter(ctx context.Context) error {
	fmt.Println()
	cmd := exec.CommandContext(ctx, "go", "test", "-tags=grpcnotrace", "-run", "^$", "-bench", ".", "-count", "3", "./simulator/cudatest")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
