// Package step holds the steps of the validator's pipeline. Each step checks one layer of the GPU
// stack on this node. A layer is proven if its check passes; otherwise the step says why not and
// what to do.
package step

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// optional lists the steps of the optional layers, in the order of readiness.Optional. Basis
// says what a step builds on: a step OnDriver is checked only if the driver is proven, a step
// OnHost in any case.
var optional = []check.Step{
	{Layer: readiness.Peermem, Check: checkPeermem, Basis: check.OnDriver},
	{Layer: readiness.GDS, Check: gds.check, Basis: check.OnDriver},
	{Layer: readiness.GDRCopy, Check: gdrcopy.check, Basis: check.OnDriver},
	{Layer: readiness.MOFED, Check: checkMOFED, Basis: check.OnHost},
	{Layer: readiness.Fabric, Check: checkFabric, Basis: check.OnDriver},
	{Layer: readiness.VFIO, Check: checkVFIO, Basis: check.OnHost},
	{Layer: readiness.VGPU, Check: checkVGPU, Basis: check.OnHost},
}

// NewPipeline returns the pipeline with the steps of the wanted optional layers. readNVML reads the
// GPUs. workload runs a pod with a GPU; nil: none is run.
func NewPipeline(readNVML ReadNVML, workload Workload, wanted []readiness.Layer) check.Pipeline {
	cuda := &cudaCheck{}
	p := check.Pipeline{
		Driver: func(ctx context.Context, n check.Node) (check.Driver, check.Outcome) {
			return CheckDriver(ctx, n, readNVML)
		},
		Steps: []check.Step{
			{Layer: readiness.Toolkit, Check: checkToolkit},
			{Layer: readiness.CUDA, Check: cuda.check},
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

// WithoutWorkload is a note to proofs that rest on less than usual, since the configuration asks
// for it.
const WithoutWorkload = "(WITH_WORKLOAD=false)"

// LeaveOutWorkload changes a pipeline for a configuration without workloads. Without that of layer
// cuda the layer rests on the driver, and nothing is computed. That of layer plugin is a pod,
// which a pipeline without a Workload does not run; its proof then says so.
func LeaveOutWorkload(p check.Pipeline, cuda, plugin bool) check.Pipeline {
	p.Steps = slices.Clone(p.Steps)
	for i, s := range p.Steps {
		switch {
		case s.Layer == readiness.CUDA && cuda:
			p.Steps[i].Check = func(_ context.Context, n check.Node, d check.Driver) check.Outcome {
				return check.NewPass(readiness.Proof{
					Driver: &d.Info, HostRoot: n.Root.Dir(), DevRoot: d.DevRoot, GPUs: len(d.Units()),
					Summary: fmt.Sprintf("driver %s; nothing was computed %s", d.Info.Version, WithoutWorkload),
				})
			}
		case s.Layer == readiness.Plugin && plugin:
			p.Steps[i].Check = func(ctx context.Context, n check.Node, d check.Driver) check.Outcome {
				o := s.Check(ctx, n, d)
				if o.Kind == check.Passed {
					o.Proof.Summary += "; no pod was run " + WithoutWorkload
				}
				return o
			}
		}
	}
	return p
}

// WithUnwanted adds the optional steps that are not wanted to a pipeline, so that a report
// lists all steps.
func WithUnwanted(p check.Pipeline) check.Pipeline {
	for _, s := range optional {
		if !slices.ContainsFunc(p.Steps, func(present check.Step) bool { return present.Layer == s.Layer }) {
			s.Check = nil // listed, not run
			p.Steps = append(p.Steps, s)
		}
	}
	return p
}
