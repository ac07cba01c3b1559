package check

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/readiness"
)

// pipelineWhere returns a pipeline with these outcomes, and the list of the layers checked.
func pipelineWhere(outcomes map[readiness.Layer]Outcome) (Pipeline, *[]readiness.Layer) {
	var began []readiness.Layer
	of := func(l readiness.Layer) Outcome {
		if o, ok := outcomes[l]; ok {
			return o
		}
		return NewPass(readiness.Proof{Summary: string(l)})
	}
	r := Pipeline{
		Driver: func(context.Context, Node) (Driver, Outcome) {
			return Driver{LibDirs: []string{"/lib"}}, of(readiness.Driver)
		},
		Begin: func(l readiness.Layer) { began = append(began, l) },
	}
	for _, l := range readiness.Layers()[1:] {
		r.Steps = append(r.Steps, Step{Layer: l, Check: func(_ context.Context, _ Node, d Driver) Outcome {
			if !slices.Equal(d.LibDirs, []string{"/lib"}) {
				return Fail("NoDriver", "the driver was not handed on", "")
			}
			return of(l)
		}})
	}
	return r, &began
}

func kinds(outcomes []Outcome) (out []Kind) {
	for _, o := range outcomes {
		out = append(out, o.Kind)
	}
	return out
}

func TestALayerIsCheckedOnlyAfterThoseBeforeItPassed(t *testing.T) {
	r, began := pipelineWhere(nil)
	require.Equal(t, []Kind{Passed, Passed, Passed, Passed}, kinds(r.Run(t.Context(), Node{}, nil)))
	require.Equal(t, readiness.Layers(), *began)

	r, began = pipelineWhere(map[readiness.Layer]Outcome{readiness.Toolkit: Fail("SpecMissing", "m", "a")})
	out := r.Run(t.Context(), Node{}, nil)
	require.Equal(t, []Kind{Passed, Failed, NotRun, NotRun}, kinds(out))
	require.Equal(t, readiness.Layers()[:2], *began)
	require.Equal(t, "not run: toolkit is not ready (SpecMissing)", out[3].NotReady.Message)
	require.Equal(t, readiness.Plugin, out[3].Layer)
}

func TestWithoutAGPUNothingFails(t *testing.T) {
	r, _ := pipelineWhere(map[readiness.Layer]Outcome{readiness.Driver: {Kind: Absent, NotReady: &readiness.NotReady{Reason: ReasonNoGPU}}})
	require.Equal(t, []Kind{Absent, Absent, Absent, Absent}, kinds(r.Run(t.Context(), Node{}, nil)))
}

func TestOnlyWantedLayersAreChecked(t *testing.T) {
	r, began := pipelineWhere(map[readiness.Layer]Outcome{readiness.Toolkit: Fail("SpecMissing", "m", "a")})
	out := r.Run(t.Context(), Node{}, []readiness.Layer{readiness.CUDA})
	require.Equal(t, []Kind{Passed, Passed}, kinds(out))
	require.Equal(t, []readiness.Layer{readiness.Driver, readiness.CUDA}, *began)
}

func TestAnInterruptedCheckIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, _ := pipelineWhere(map[readiness.Layer]Outcome{readiness.Driver: Fail("NVMLFailed", "killed", "")})
	out := r.Run(ctx, Node{}, nil)
	require.Equal(t, ReasonInterrupted, out[0].NotReady.Reason)
}

func TestUnitsAreGPUsAndMIGDevices(t *testing.T) {
	gpus := gputest.Node("a100-80gb", 4).Devices
	gpus[1] = gputest.WithMIG(gpus[1], "1g.10gb", "2g.20gb")
	gpus[2].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	var ids []gpu.UUID
	for _, u := range (Driver{GPUs: gpus}).Units() {
		ids = append(ids, u.UUID)
	}
	require.Equal(t, []gpu.UUID{gpus[0].UUID, gpus[1].MIG[0].UUID, gpus[1].MIG[1].UUID, gpus[3].UUID}, ids)
}

func TestEndIsCalledAsSoonAsAnOutcomeIsKnown(t *testing.T) {
	r, began := pipelineWhere(map[readiness.Layer]Outcome{readiness.CUDA: Fail("CUDASampleFailed", "m", "a")})
	var told []string
	r.End = func(o Outcome) {
		told = append(told, string(o.Layer)+" "+string(o.Kind)+" before "+string((*began)[len(*began)-1])+" ended")
	}
	r.Run(t.Context(), Node{}, nil)
	require.Equal(t, []string{
		"driver passed before driver ended", "toolkit passed before toolkit ended",
		"cuda failed before cuda ended", "plugin not run before cuda ended",
	}, told)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	told = nil
	r.Run(ctx, Node{}, []readiness.Layer{readiness.CUDA})
	require.Equal(t, []string{"driver passed before driver ended"}, told, "what was cut off says nothing")
	r, began = pipelineWhere(map[readiness.Layer]Outcome{readiness.Driver: Fail("NVMLFailed", "killed", "")})
	r.End = func(o Outcome) { t.Error(o.Layer) }
	r.Run(ctx, Node{}, nil)
}

func TestAContainerSeesOnlyWhatIsMountedIntoIt(t *testing.T) {
	root, err := host.Open("/")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	n := Node{Root: root, DriverRoot: "/run/nvidia/driver", StateDir: "/run/nvidia/gpuready"}
	require.True(t, n.Visible("/usr/local/bin/gpu-cdi-hook"), "a process of the host")
	n.Injection = "expected"
	require.True(t, n.Visible("/run/nvidia/driver/usr/lib/libcuda.so.1"))
	require.True(t, n.Visible("/run/nvidia/driver/dev/nvidia0"))
	for _, mounted := range []string{"run/nvidia-persistenced/socket", "lib/firmware/nvidia/gsp.bin", "usr/lib/firmware/nvidia/gsp.bin", "proc/driver/nvidia/version"} {
		require.Falsef(t, n.Visible("/run/nvidia/driver/"+mounted), "%s: the driver's container may have it on another file system", mounted)
	}
	require.False(t, n.Visible("/run/nvidia/driver-of-another"))
	require.False(t, n.Visible("/usr/local/bin/gpu-cdi-hook"))
	n.DriverRoot = "/"
	require.False(t, n.Visible("/usr/lib/libcuda.so.1"), "its own root is not the host's")
	elsewhere, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, elsewhere.Close()) })
	n.Root = elsewhere
	require.True(t, n.Visible("/usr/lib/libcuda.so.1"), "the host's root is mounted")
}

func TestOptionalStepsNeitherBlockNorAreBlocked(t *testing.T) {
	r, began := pipelineWhere(map[readiness.Layer]Outcome{readiness.Toolkit: Fail("SpecMissing", "m", "a")})
	pass := func(context.Context, Node, Driver) Outcome { return NewPass(readiness.Proof{}) }
	bad := func(context.Context, Node, Driver) Outcome { return Fail("GDSModuleNotLoaded", "m", "a") }
	r.Steps = append([]Step{
		{Layer: readiness.GDS, Check: bad, Basis: OnDriver}, {Layer: readiness.MOFED, Check: pass, Basis: OnHost}, {Layer: readiness.VGPU, Basis: OnHost},
	}, r.Steps...)
	out := r.Run(t.Context(), Node{}, nil)
	require.Equal(t, []Kind{Passed, Failed, Passed, NotWanted, Failed, NotRun, NotRun}, kinds(out))
	require.Equal(t, "not asked for", out[3].NotReady.Message)
	require.NotContains(t, *began, readiness.VGPU, "nobody looks")

	r.Driver = func(context.Context, Node) (Driver, Outcome) { return Driver{}, Fail("NVMLFailed", "m", "a") }
	out = r.Run(t.Context(), Node{}, nil)
	require.Equal(t, []Kind{Failed, NotRun, Passed, NotWanted, NotRun, NotRun, NotRun}, kinds(out))

	r.Driver = func(context.Context, Node) (Driver, Outcome) { return Driver{}, NoGPU("none") }
	require.Equal(t, []Kind{Absent, Absent, Passed, NotWanted, Absent, Absent, Absent}, kinds(r.Run(t.Context(), Node{}, nil)))
}
