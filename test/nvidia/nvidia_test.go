package nvidia

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

// variable names the environment variable with the folder that make built; make e2e-nvidia
// sets it.
const variable = "GPUREADY_E2E_NVIDIA"

// patience is how long a stack may take: NVIDIA's driver probe alone begins after a minute.
const patience = 10 * time.Minute

// Each stack brings a bare node to a CUDA job, one after the other. The nodes have all images.
func TestStacksComeUp(t *testing.T) {
	built := build(t)
	c := up(t, built, slices.Concat(built.Base, built.Stacks))
	for _, stack := range []Stack{built.NVIDIA(Settings{}), built.GPUReady(Settings{})} {
		t.Run(stack.Name(), func(t *testing.T) { comesUp(t, built, c, stack) })
	}
}

// The same with images that come from a public registry. They are a quarter as large as
// NVIDIA's, or as large as their programs: two gigabytes take minutes.
func TestStacksPull(t *testing.T) {
	built := build(t)
	c := up(t, built, built.Base)
	registry, err := built.Serve(t.Context(), c, Public(), Sizes().Scale(0.25))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, registry.Close()) })
	for _, stack := range []Stack{built.NVIDIA(Settings{Registry: registry}), built.GPUReady(Settings{Registry: registry})} {
		t.Run(stack.Name(), func(t *testing.T) { comesUp(t, built, c, stack) })
	}
}

func build(t *testing.T) *Built {
	t.Helper()
	bin := os.Getenv(variable)
	if bin == "" {
		t.Skipf("%s is not set: make e2e-nvidia runs this", variable)
	}
	built, err := Build(t.Context(), bin, os.Stderr)
	require.NoError(t, err)
	return built
}

// up starts a cluster of one node, whose containerd systemd would start again after 5 s.
func up(t *testing.T, built *Built, images []string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Up(t.Context(), cluster.Config{
		Name: "nvidia", Images: images, Restart: 5 * time.Second,
		Progress: func(s cluster.Step) { t.Logf("%6.1f s  %s", s.Took.Seconds(), s.What) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Down()) })
	require.NoError(t, built.Prepare(t.Context(), c))
	return c
}

func comesUp(t *testing.T, built *Built, c *cluster.Cluster, stack Stack) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, stack.Install(ctx, c))
	steps, err := built.Provision(ctx, c, stack)
	for _, s := range steps {
		t.Logf("%6.1f s  %s", s.At.Seconds(), s.Name)
	}
	if err != nil {
		built.tell(t, c, stack)
	}
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, stack.Remove(ctx, c))
	t.Logf("removed in %.1f s", time.Since(began).Seconds())
}

// tell prints what helps to find out why a stack did not come up.
func (b *Built) tell(t *testing.T, c *cluster.Cluster, stack Stack) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"-n", stack.Namespace(), "get", "events", "--sort-by=.lastTimestamp"},
		{"-n", stack.Namespace(), "logs", "--tail=40", "deployment/gpu-operator"},
		{"get", "clusterpolicies.nvidia.com", "-o", "yaml"},
	} {
		out, err := b.Kubectl(ctx, c, args...)
		t.Logf("%v: %v\n%s", args, err, out)
	}
	out, _ := b.Kubectl(ctx, c, "-n", stack.Namespace(), "get", "pods", "-o", "name")
	for pod := range strings.FieldsSeq(out) {
		log, err := b.Kubectl(ctx, c, "-n", stack.Namespace(), "logs", "--all-containers", "--prefix", "--tail=25", pod)
		t.Logf("%s: %v\n%s", pod, err, log)
	}
	if hold := os.Getenv("GPUREADY_E2E_HOLD"); hold != "" {
		t.Logf("held for %s: KUBECONFIG=%s", hold, c.Kubeconfig)
		d, _ := time.ParseDuration(hold)
		time.Sleep(d)
	}
}
