package cli

import (
	"context"
	"slices"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/step/cuda"
	"github.com/gpuready/gpuready/validator/step/driver"
	"github.com/gpuready/gpuready/validator/step/fabric"
	"github.com/gpuready/gpuready/validator/step/gdrcopy"
	"github.com/gpuready/gpuready/validator/step/gds"
	"github.com/gpuready/gpuready/validator/step/injection"
	"github.com/gpuready/gpuready/validator/step/mofed"
	"github.com/gpuready/gpuready/validator/step/peermem"
	"github.com/gpuready/gpuready/validator/step/plugin"
	"github.com/gpuready/gpuready/validator/step/vfio"
	"github.com/gpuready/gpuready/validator/step/vgpu"
)

// optional lists the steps beside the road, in the order of readiness.Optional.
var optional = []check.Step{
	{Layer: readiness.Peermem, Check: peermem.Check, Basis: check.OnDriver},
	{Layer: readiness.GDS, Check: gds.Check, Basis: check.OnDriver},
	{Layer: readiness.GDRCopy, Check: gdrcopy.Check, Basis: check.OnDriver},
	{Layer: readiness.MOFED, Check: mofed.Check, Basis: check.OnHost},
	{Layer: readiness.Fabric, Check: fabric.Check, Basis: check.OnDriver},
	{Layer: readiness.VFIO, Check: vfio.Check, Basis: check.OnHost},
	{Layer: readiness.VGPU, Check: vgpu.Check, Basis: check.OnHost},
}

// newRoad returns the road with the optional steps that are wanted. workload is nil where no
// pod is to be run.
func newRoad(workload plugin.Workload, asked []readiness.Layer) check.Pipeline {
	r := check.Pipeline{
		Driver: func(ctx context.Context, n check.Node) (check.Driver, check.Outcome) {
			return driver.Check(ctx, n, probe.Read)
		},
		Steps: []check.Step{
			{Layer: readiness.Toolkit, Check: injection.Check},
			{Layer: readiness.CUDA, Check: cuda.Check},
			{Layer: readiness.Plugin, Check: func(ctx context.Context, n check.Node, d check.Driver) check.Outcome {
				return plugin.Check(ctx, n, d, plugin.ReadKubelet, workload)
			}},
		},
	}
	for _, s := range optional {
		if slices.Contains(asked, s.Layer) {
			r.Steps = append(r.Steps, s)
		}
	}
	return r
}

// withUnwanted adds the optional steps that are not wanted to a road, so that a report lists all
// steps.
func withUnwanted(r check.Pipeline) check.Pipeline {
	for _, s := range optional {
		if !slices.ContainsFunc(r.Steps, func(has check.Step) bool { return has.Layer == s.Layer }) {
			s.Check = nil
			r.Steps = append(r.Steps, s)
		}
	}
	return r
}
