package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestTimeline measures how long a node takes from a ready driver to GPUs that pods can request,
// and to a CUDA job that has passed in a pod. It asserts no figure, but prints them and the time
// of each step. It runs alone on the machine; the other tests mostly wait and run in parallel.
func TestTimeline(t *testing.T) {
	for _, c := range []struct {
		name   string
		status time.Duration
		rounds int // of two nodes
	}{
		{"kubelets report every 2 s", 2 * time.Second, 5},
		{"kubelets report every 10 s", 10 * time.Second, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.status == 10*time.Second && os.Getenv("GPUREADY_E2E_LONG") == "" {
				t.Skip("GPUREADY_E2E_LONG is not set: make e2e-timeline measures this")
			}
			s := Up(t, cluster.Config{Nodes: 2, NodeStatus: c.status})
			var laps []lap
			for range c.rounds {
				laps = append(laps, s.runRound(t)...)
			}
			fmt.Printf("\nFrom driver ready, %s, images present, n = %d:\n%s\n", c.name, len(laps), table(laps))
		})
	}
}

// steps are the steps to a usable GPU, in order.
var steps = []string{
	"driver ready", "CDI specs written", "plugin registered", "GPUs allocatable", "every GPU computes", "vectorAdd passed in a pod",
}

// lap holds the time at which one node reached each step.
type lap map[string]time.Time

// runRound installs gpuready on bare nodes, lets the driver become ready, and removes everything
// again.
func (s *Suite) runRound(t *testing.T) []lap {
	t.Helper()
	s.Apply(t, "gpuready.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets[1:]...)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	start := time.Now()
	laps := make([]lap, len(s.Nodes))
	var watchers sync.WaitGroup
	for i, node := range s.Nodes {
		laps[i] = lap{}
		watchers.Go(func() { laps[i] = s.watch(ctx, node) })
	}
	s.Apply(t, "simulated-driver.yaml")
	watchers.Wait()
	for i, node := range s.Nodes {
		for _, c := range s.World.Since(start) {
			if allocatableIn(c, node.Name) > 0 {
				laps[i]["GPUs allocatable"] = c.At
				break
			}
		}
		for _, step := range steps {
			require.Containsf(t, laps[i], step, "%s has not come so far\n%s", node.Name, s.World.Describe())
		}
	}
	// The driver goes last, because it stays while it is in use.
	s.Kubectl(t, "-n", Namespace, "delete", "daemonset", "--cascade=foreground", "--timeout=120s", "-l", "app!=nvidia-driver-daemonset")
	s.Kubectl(t, "-n", Namespace, "delete", "daemonset", "--cascade=foreground", "--timeout=120s", "--all")
	for _, node := range s.Nodes { // or the next round would find GPUs of this one
		s.World.WaitAllocatable(t, 0, node.Name)
	}
	return laps
}

func allocatableIn(c Change, node string) int64 {
	if c.Node == nil || c.Node.Name != node {
		return 0
	}
	q := c.Node.Status.Allocatable[GPU]
	return q.Value()
}

// watch records when a node reaches each of its visible steps, from the times that the
// components wrote. It returns after the last step.
func (s *Suite) watch(ctx context.Context, node *cluster.Node) lap {
	var mu sync.Mutex
	at := lap{}
	ctx, done := context.WithCancel(ctx)
	defer done()
	note := func(step string, when time.Time) {
		mu.Lock()
		defer mu.Unlock()
		if _, before := at[step]; !before {
			at[step] = when
		}
		if len(at) == len(steps)-1 && s.World.Allocatable(node.Name) > 0 {
			done()
		}
	}
	var watchers sync.WaitGroup
	for component, came := range map[nodestate.Component]func(nodestate.State) string{
		nodestate.Driver: func(st nodestate.State) string {
			return reached("driver ready", st.Phase == nodestate.Ready)
		},
		nodestate.Toolkit: func(st nodestate.State) string {
			return reached("CDI specs written", st.Toolkit != nil && len(st.Toolkit.Specs) > 0)
		},
		nodestate.DevicePlugin: func(st nodestate.State) string {
			return reached("plugin registered", st.DevicePlugin != nil && st.DevicePlugin.Registered)
		},
	} {
		watchers.Go(func() {
			_ = nodestate.WatchBoot(ctx, node.PathOnNode("/run/nvidia/gpuready/"+string(component)), node.BootID(), func(st nodestate.State, err error) {
				if err != nil {
					return
				}
				if step := came(st); step != "" {
					note(step, st.Time)
				}
			})
		})
	}
	watchers.Go(func() {
		layers := []readiness.Layer{readiness.CUDA, readiness.Plugin}
		_ = readiness.Watch(ctx, node.PathOnNode(readiness.DefaultDir), layers, node.BootID(), func(l readiness.Layer, st readiness.Status, _ error) {
			switch {
			case st.Proof == nil || st.Proof.Driver == nil:
			case l == readiness.CUDA:
				note("every GPU computes", st.Proof.Time)
			default:
				note("vectorAdd passed in a pod", st.Proof.Time)
			}
		})
	})
	watchers.Go(func() { // the last step may be visible in the API server only
		_ = s.World.until(ctx, func() error {
			if s.World.Allocatable(node.Name) > 0 {
				mu.Lock()
				defer mu.Unlock()
				if len(at) == len(steps)-1 {
					done()
				}
			}
			return context.DeadlineExceeded
		})
	})
	watchers.Wait()
	return at
}

func reached(step string, came bool) string {
	if came {
		return step
	}
	return ""
}

// table formats p50 and p95 of each step, counted from the ready driver, and the share of the
// total between it and the step before.
func table(laps []lap) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-28s %8s %8s %8s\n", "step", "p50", "p95", "share")
	whole := percentile(since(laps, steps[len(steps)-1]), 50)
	var before time.Duration
	type row struct {
		step     string
		p50, p95 time.Duration
	}
	var rows []row
	for _, step := range steps[1:] {
		took := since(laps, step)
		rows = append(rows, row{step, percentile(took, 50), percentile(took, 95)})
	}
	slices.SortFunc(rows, func(a, b row) int { return int(a.p50 - b.p50) })
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-28s %6.2f s %6.2f s %6.0f %%\n", r.step, r.p50.Seconds(), r.p95.Seconds(), 100*float64(r.p50-before)/float64(whole))
		before = r.p50
	}
	return b.String()
}

func since(laps []lap, step string) []time.Duration {
	var took []time.Duration
	for _, l := range laps {
		took = append(took, l[step].Sub(l["driver ready"]))
	}
	slices.Sort(took)
	return took
}

// percentile of sorted durations, by the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
