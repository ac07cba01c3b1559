package driver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// Samples are the measurements of TestTimes, for make bench.
type Samples struct {
	Insmod   []time.Duration // busybox insmod of the three modules, one after the other
	Load     []time.Duration // gpu-driver load: the same modules, and the driver root
	Adopt    []time.Duration // gpu-driver load where all of it is there
	Start    []time.Duration // gpu-driver version: the cost of starting the program
	Resident []float64       // peak of gpu-driver run, in MB
}

// TestTimes measures only if GPUREADY_SAMPLES names an output file.
func TestTimes(t *testing.T) {
	file := os.Getenv("GPUREADY_SAMPLES")
	if file == "" {
		t.Skip("make bench measures")
	}
	k := vm.FetchKernel(t, vm.Linux612)
	stubs := vm.BuildStubs(t, k, version)
	n := boot(t, vm.Config{Kernel: k, Files: vm.Merge(k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, stubs))})
	var s Samples
	wall := func(r vm.Result) time.Duration {
		require.Zero(t, r.Code, "%s", r)
		return r.Wall
	}
	for range 20 {
		var insmod time.Duration
		for _, name := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset"} {
			insmod += wall(n.Run(t.Context(), "insmod", "/driver/lib/modules/"+k.Release+"/"+name+".ko"))
		}
		s.Insmod = append(s.Insmod, insmod)
		for _, name := range []string{"nvidia_modeset", "nvidia_uvm", "nvidia"} {
			require.NoError(t, n.UnloadModule(t.Context(), name))
		}
		s.Start = append(s.Start, wall(n.driver("version")))
		s.Load = append(s.Load, wall(n.load()))
		s.Adopt = append(s.Adopt, wall(n.load()))
		n.unloads()
	}
	for range 3 {
		p := n.run()
		for line := range strings.Lines(n.MustRun(t.Context(), "cat", "/proc/"+strconv.Itoa(p.Pid)+"/status")) {
			if rest, is := strings.CutPrefix(line, "VmHWM:"); is {
				kB, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				require.NoError(t, err)
				s.Resident = append(s.Resident, kB*1024/1e6)
			}
		}
		n.ends(p)
	}
	data, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o644))
}

// ToolkitSamples holds the times that TestToolkitTimes measures, for make bench.
type ToolkitSamples struct {
	Begin []time.Duration // from the request to the start of the build
	Take  []time.Duration // from the answer to verified modules, with which loading begins
}

// TestToolkitTimes measures how long the two sides of the Driver Toolkit wait for each other.
func TestToolkitTimes(t *testing.T) {
	file := os.Getenv("GPUREADY_TOOLKIT_SAMPLES")
	if file == "" {
		t.Skip("make bench measures")
	}
	k := vm.FetchKernel(t, vm.Linux612)
	stubs := vm.BuildStubs(t, k, version)
	program, err := os.Executable()
	require.NoError(t, err)
	var s ToolkitSamples
	for range 20 {
		m := toolkit.Client{
			Dir: t.TempDir(), Program: program, Source: request(t, k).Source, Work: t.TempDir(),
			Request: toolkit.Request{Release: k.Release, Version: version, Kind: "open", Modules: []string{"nvidia", "nvidia-uvm", "nvidia-modeset"}},
		}
		begun := make(chan time.Time, 1)
		side := toolkit.Builder{Dir: m.Dir, Build: func(context.Context, toolkit.Request, string) (string, error) {
			begun <- time.Now()
			dir := t.TempDir()
			for name, data := range stubs {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
			}
			return dir, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- side.Run(ctx) }()
		require.NoError(t, m.Prepare(ctx))
		_, err := m.Wait(ctx)
		ended := time.Now()
		require.NoError(t, err)
		s.Begin = append(s.Begin, (<-begun).Sub(written(t, m.Dir, "dir_prepared")))
		s.Take = append(s.Take, ended.Sub(written(t, m.Dir, "driver_built")))
		cancel()
		require.NoError(t, <-done)
	}
	data, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o644))
}

// written returns when a file of the shared folder was written.
func written(t *testing.T, dir, name string) time.Time {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, name))
	require.NoError(t, err)
	return info.ModTime()
}
