// Package step holds the steps of the validator's pipeline. Each checks one layer, and knows
// the reasons for which the layer is not proven.
package step

import (
	"context"
	"slices"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// optional lists the steps of the optional layers, in the order of readiness.Optional.
var optional = []check.Step{
	{Layer: readiness.Peermem, Check: checkPeermem, Basis: check.OnDriver},
	{Layer: readiness.GDS, Check: gds.check, Basis: check.OnDriver},
	{Layer: readiness.GDRCopy, Check: gdrcopy.check, Basis: check.OnDriver},
	{Layer: readiness.MOFED, Check: checkMOFED, Basis: check.OnHost},
	{Layer: readiness.Fabric, Check: checkFabric, Basis: check.OnDriver},
	{Layer: readiness.VFIO, Check: checkVFIO, Basis: check.OnHost},
	{Layer: readiness.VGPU, Check: checkVGPU, Basis: check.OnHost},
}

// NewPipeline returns the pipeline with the wanted optional steps. read reads NVML. workload
// is nil where no pod is to be run.
func NewPipeline(read ReadNVML, workload Workload, wanted []readiness.Layer) check.Pipeline {
	p := check.Pipeline{
		Driver: func(ctx context.Context, n check.Node) (check.Driver, check.Outcome) {
			return CheckDriver(ctx, n, read)
		},
		Steps: []check.Step{
			{Layer: readiness.Toolkit, Check: checkToolkit},
			{Layer: readiness.CUDA, Check: checkCUDA},
			{Layer: readiness.Plugin, Check: func(ctx context.Context, n check.Node, d check.Driver) check.Outcome {
				return checkPlugin(ctx, n, d, ReadKubelet, workload)
			}},
		},
	}
	for _, s := range optional {
		if slices.Contains(wanted, s.Layer) {
			p.Steps = append(p.Steps, s)
		}
	}
	return p
}

// WithUnwanted adds the optional steps that are not wanted to a pipeline, so that a report
// lists all steps.
func WithUnwanted(p check.Pipeline) check.Pipeline {
	for _, s := range optional {
		if !slices.ContainsFunc(p.Steps, func(has check.Step) bool { return has.Layer == s.Layer }) {
			s.Check = nil
			p.Steps = append(p.Steps, s)
		}
	}
	return p
}
