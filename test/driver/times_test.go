package driver

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/machine"
)

// Samples are what TestTimes measures, for make bench.
type Samples struct {
	Insmod   []time.Duration // busybox insmod of the three modules, one after the other
	Load     []time.Duration // gpu-driver load: the same modules, and the driver root
	Adopt    []time.Duration // gpu-driver load where all of it is there
	Start    []time.Duration // gpu-driver version: what starting the program takes
	Resident []float64       // MB that gpu-driver run has at most
}

// TestTimes measures only where GPUREADY_SAMPLES names a file to write to.
func TestTimes(t *testing.T) {
	file := os.Getenv("GPUREADY_SAMPLES")
	if file == "" {
		t.Skip("make bench measures")
	}
	k := machine.FetchKernel(t, machine.Linux612)
	stubs := machine.BuildStubs(t, k, version)
	n := boot(t, machine.Config{Kernel: k, Files: machine.Merge(k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, stubs))})
	var s Samples
	wall := func(r machine.Result) time.Duration {
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
