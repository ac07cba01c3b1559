package nvidia

import (
	"cmp"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
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

// patience limits the wait for a stack: NVIDIA's driver probe alone begins after a minute.
const patience = 10 * time.Minute

// Each stack brings a bare node to a CUDA job, one after the other. The node has all images
// already, and the registry that they are of answers.
func TestStacksComeUp(t *testing.T) {
	up(t, cluster.Config{}, Link{}, nil, Settings{}).play(t, true)
}

// The same with images that come from a public registry. They are a quarter as large as
// NVIDIA's, or as large as their programs: two gigabytes take minutes.
func TestStacksPull(t *testing.T) {
	up(t, cluster.Config{}, Public(), Sizes().Scale(0.25), Settings{}).play(t, false)
}

// suite is a cluster of one node, and the stacks for it.
type suite struct {
	*Built
	cluster  *cluster.Cluster
	registry *Registry
	stacks   []Stack
}

// up brings up a cluster with a registry. systemd would start containerd again after 5 s.
func up(t *testing.T, config cluster.Config, link Link, pad Pad, settings Settings) *suite {
	t.Helper()
	bin := os.Getenv(variable)
	if bin == "" {
		t.Skipf("%s is not set: make e2e-nvidia runs this", variable)
	}
	built, err := Build(t.Context(), bin, os.Stderr)
	require.NoError(t, err)
	s := &suite{Built: built}
	config.Name, config.Images, config.Restart = cmp.Or(config.Name, "nvidia"), built.Base, 5*time.Second
	config.Progress = func(s cluster.Step) { t.Logf("%6.1f s  %s", s.Took.Seconds(), s.What) }
	s.cluster, err = cluster.Up(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.cluster.Down()) })
	s.registry, err = built.Serve(t.Context(), s.cluster, link, pad)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.registry.Close()) })
	require.NoError(t, built.Prepare(t.Context(), s.cluster))
	settings.Registry = s.registry
	s.stacks = []Stack{built.NVIDIA(settings), built.GPUReady(settings)}
	return s
}

// play has one stack after the other come up. One that fails leaves no bare node to the next.
func (s *suite) play(t *testing.T, warm bool) {
	t.Helper()
	for _, stack := range s.stacks {
		if !t.Run(stack.Name(), func(t *testing.T) { s.comesUp(t, stack, warm) }) {
			t.FailNow()
		}
	}
}

// comesUp installs a stack, and removes it when a job has run. warm says that the node has
// the images before.
func (s *suite) comesUp(t *testing.T, stack Stack, warm bool) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if warm {
		require.NoError(t, s.registry.Warm(ctx, s.cluster.Nodes[0]))
	}
	require.NoError(t, stack.Install(ctx, s.cluster))
	steps, err := s.Provision(ctx, s.cluster, stack)
	for _, step := range steps {
		t.Logf("%6.1f s  %s", step.At.Seconds(), step.Name)
	}
	if err != nil {
		s.describe(t, stack)
	}
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, stack.Remove(ctx, s.cluster))
	t.Logf("removed in %.1f s", time.Since(began).Seconds())
}

// describe prints what helps to find out why a stack did not come up.
func (s *suite) describe(t *testing.T, stack Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	namespace := stack.Namespace()
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"-n", namespace, "get", "events", "--sort-by=.lastTimestamp"},
		{"-n", namespace, "logs", "--tail=40", "--selector=app in (gpu-operator, gpuready-operator)"},
		{"get", "clusterpolicies.nvidia.com", "-o", "yaml"},
	} {
		out, err := s.Kubectl(ctx, s.cluster, args...)
		t.Logf("%v: %v\n%s", args, err, out)
	}
	pods, err := s.Kubectl(ctx, s.cluster, "-n", namespace, "get", "pods", "-o", "name")
	if err != nil {
		t.Log(err)
	}
	for pod := range strings.FieldsSeq(pods) {
		log, err := s.Kubectl(ctx, s.cluster, "-n", namespace, "logs", "--all-containers", "--prefix", "--tail=25", pod)
		t.Logf("%s: %v\n%s", pod, err, log)
	}
}
