package report_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/nodestatus"
	"github.com/gpuready/gpuready/validator/report"
)

// What the validator writes on the node and what it publishes of it in the cluster give the same
// road: the same states, and at its end the same reason, message and action.
func TestTheNodeAndTheClusterAreExplainedInTheSameWords(t *testing.T) {
	refused := func(reason gpu.Reason, message, action string) readiness.NotReady {
		return readiness.NotReady{Reason: reason, Message: message, Action: action}
	}
	for name, c := range map[string]struct {
		proven  int // layers
		refusal readiness.NotReady
		pending bool
		driver  nodestate.State
	}{
		"all is well":    {proven: 4},
		"a module":       {refusal: refused("KernelModuleNotLoaded", "no module nvidia", "load it")},
		"semicolons":     {proven: 2, refusal: refused("CUDASampleFailed", "GPU 1: vectoradd: 1 of 2; element 7 is 3.5, not 3.25", "drain the node and run gpu-validator preflight; a GPU that computes wrongly has to be replaced")},
		"the toolkit":    {proven: 1, refusal: refused("ToolkitSilent", "the toolkit has reported nothing since the node booted", "start gpu-toolkit on this node")},
		"the plugin":     {proven: 3, refusal: refused("KubeletMissing", "the device plugin is not registered with the kubelet", "see the kubelet's log")},
		"the pod":        {proven: 3, refusal: refused("WorkloadNotStarted", "ErrImagePull", "see that the image can be pulled")},
		"a pod runs":     {proven: 3, pending: true, refusal: refused(explain.Running, "a pod that requests a GPU has not finished yet", "wait for it")},
		"driver starts":  {refusal: refused("KernelModuleNotLoaded", "no module nvidia", "load it"), driver: nodestate.State{Phase: nodestate.Waiting, Reason: "DriverStarting", Message: "the driver's modules are being built"}},
		"driver in use":  {refusal: refused("KernelModuleNotLoaded", "no module nvidia", "load it"), driver: nodestate.State{Phase: nodestate.Waiting, Reason: "InUse", Message: "python (12) of pod a/b holds nvidia_uvm; end it"}},
		"driver failed":  {refusal: refused("KernelModuleNotLoaded", "no module nvidia", "load it"), driver: nodestate.State{Phase: nodestate.Failed, Reason: "BuildFailed", Message: "nv-mmap.c:42: error: x; use driver 580.65.06 or later"}},
		"driver is sick": {refusal: refused("NoUsableGPU", "the driver works and finds no GPU", "look at dmesg; reset the GPU"), driver: nodestate.State{Phase: nodestate.Failed, Reason: "DeviceInitFailed", Message: "RmInitAdapter failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			facts := nodestatus.Facts{States: map[nodestate.Component]nodestate.State{
				nodestate.DevicePlugin: plugin(true, nodestate.Device{ID: gpu0, GPU: gpu0, Health: nodestate.Healthy}),
			}}
			if c.driver.Phase != "" {
				facts.States[nodestate.Driver] = c.driver
			}
			for component, state := range facts.States {
				s.writeState(component, state)
			}
			for i, l := range readiness.Layers() {
				switch {
				case i < c.proven:
					proof := &readiness.Proof{Summary: "nvidia.com/gpu: 1 allocatable; vectorAdd passed in a pod"}
					facts.Outcomes = append(facts.Outcomes, check.Outcome{Layer: l, Kind: check.Passed, Proof: proof})
					s.proven(l, time.Hour, proof.Summary)
				case i == c.proven:
					o := check.Outcome{Layer: l, Kind: check.Failed, NotReady: &c.refusal}
					if c.pending {
						o.Kind = check.Pending
					}
					facts.Outcomes = append(facts.Outcomes, o)
					s.refused(l, time.Minute, c.refusal)
				default:
					s.notRun(l)
				}
			}

			server, client := cluster(t, func(*corev1.Node) {})
			p := nodestatus.New(nodestatus.Config{Client: client, Node: "n1", BootID: boot, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: nodestatus.NewMetrics(prometheus.NewRegistry()), Now: func() time.Time { return now }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx) }()
			p.Publish(facts)
			require.NoError(t, server.Wait(t.Context(), func() bool {
				return server.Condition("n1", nodestatus.ConditionType).LastHeartbeatTime.Time.Equal(now)
			}))
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)

			onNode := s.report()
			inCluster, err := report.ExplainCluster(t.Context(), client, "n1", now)
			require.NoError(t, err)
			require.Equal(t, onNode.Result, inCluster.Result)
			require.Equal(t, road(onNode), road(inCluster))
		})
	}
}

// road returns the stages, without the facts about those that are well.
func road(r explain.Report) (all []explain.Stage) {
	for _, s := range r.Stages {
		s.Since = time.Time{}
		if s.State == explain.OK {
			s = explain.Stage{Name: s.Name, State: s.State}
		}
		all = append(all, s)
	}
	return all
}
