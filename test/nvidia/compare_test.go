package nvidia

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/cluster"
	"github.com/gpuready/gpuready/test/cluster/inside"
)

// comparison is what TestCompare measures: make provision-compare sets it by environment
// variables.
type comparison struct {
	samples     int           // GPUREADY_COMPARE: of each stack, beside the first, which does not count
	status      time.Duration // GPUREADY_COMPARE_STATUS: how often a kubelet reports
	driverTakes time.Duration // GPUREADY_COMPARE_DRIVER: how long loading takes
	link        string        // GPUREADY_COMPARE_REGISTRY: "" (images present), "public" or "cluster"
	out         string        // GPUREADY_MEASUREMENTS: a folder for the reports
}

func readComparison(t *testing.T) comparison {
	t.Helper()
	if os.Getenv("GPUREADY_COMPARE") == "" {
		t.Skip("GPUREADY_COMPARE is not set: make provision-compare runs this")
	}
	duration := func(name string, otherwise time.Duration) time.Duration {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		d, err := time.ParseDuration(text)
		require.NoError(t, err, name)
		return d
	}
	c := comparison{
		status: duration("GPUREADY_COMPARE_STATUS", 10*time.Second), driverTakes: duration("GPUREADY_COMPARE_DRIVER", 5*time.Second),
		link: os.Getenv("GPUREADY_COMPARE_REGISTRY"), out: os.Getenv("GPUREADY_MEASUREMENTS"),
	}
	var err error
	c.samples, err = strconv.Atoi(os.Getenv("GPUREADY_COMPARE"))
	require.NoError(t, err)
	require.Contains(t, []string{"", "public", "cluster"}, c.link)
	if c.out == "" {
		c.out = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(c.out, 0o755))
	return c
}

// notice is the first line of the reports.
func (c comparison) notice() string {
	images := map[string]string{"": "images present", "public": "images from a registry behind 80 ms and 200 Mbit/s", "cluster": "images from a registry in the cluster"}[c.link]
	return fmt.Sprintf("SIMULATED: no GPU; one driver container for both stacks stands in for NVIDIA's and loads nothing for %v; kubelet reports every %v; %s", c.driverTakes, c.status, images)
}

// TestCompare measures the two stacks in alternation with gpu-provision, each sample on a
// node that is as bare as the first: from a GPU that is plugged in to a pod that has computed.
func TestCompare(t *testing.T) {
	with := readComparison(t)
	link, pad := Link{}, Pad(nil)
	switch with.link {
	case "public":
		link, pad = Public(), Sizes().Scale(0.25)
	case "cluster":
		pad = Sizes().Scale(0.25)
	}
	s := up(t, cluster.Config{Name: "compare", NodeStatus: with.status}, link, pad, Settings{DriverTakes: with.driverTakes})
	report := func(stack Stack) string { return filepath.Join(with.out, stack.Name()+".json") }
	for i := range with.samples + 1 {
		for _, stack := range s.stacks {
			began := time.Now()
			s.measure(t, stack, with, report(stack), i > 0)
			fmt.Printf("sample %d of %d of %s took %.0f s\n", i+1, with.samples+1, stack.Name(), time.Since(began).Seconds())
		}
	}
	theirs, ours := s.stacks[0], s.stacks[1]
	for _, stack := range s.stacks {
		for _, format := range []string{"csv", "svg"} {
			s.write(t, filepath.Join(with.out, stack.Name()+"."+format), "report", "-o", format, report(stack))
		}
	}
	s.write(t, filepath.Join(with.out, "compare.html"), "report", "-o", "html", report(ours), report(theirs))
	s.write(t, filepath.Join(with.out, "compare.txt"), "compare", report(ours), report(theirs))
	text, err := os.ReadFile(filepath.Join(with.out, "compare.txt"))
	require.NoError(t, err)
	fmt.Println(string(text))
}

// write writes what gpu-provision prints into a file.
func (s *suite) write(t *testing.T, file string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), s.provision(), args...).Output()
	require.NoError(t, err, args)
	require.NoError(t, os.WriteFile(file, out, 0o644))
}

func (s *suite) provision() string { return filepath.Join(s.bin, "gpu-provision") }

// measure takes one sample of a stack, and leaves the node bare.
func (s *suite) measure(t *testing.T, stack Stack, with comparison, report string, counts bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	node := s.cluster.Nodes[0]
	if with.link == "" {
		require.NoError(t, s.registry.Warm(ctx, node))
	}
	require.NoError(t, stack.Install(ctx, s.cluster))
	policy, err := stack.Policy(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Apply(ctx, s.cluster, policy))
	_, err = s.Kubectl(ctx, s.cluster, "wait", "--for=jsonpath={.status.state}", "--timeout=120s", "clusterpolicies.nvidia.com", "--all")
	require.NoError(t, err)
	samples := []string{"--samples=0", "--drop=1"}
	if counts {
		samples = []string{"--samples=1", "--drop=0"}
	}
	// The GPU is made elsewhere and moved to the bus, where it appears whole.
	bus, device := node.PathOnNode(inside.PCI), filepath.Join(t.TempDir(), gpuAddress)
	require.NoError(t, writeGPU(device))
	args := append([]string{"measure", "--kubeconfig", s.cluster.Kubeconfig, "--test", "scale-from-zero", "--keep-nodes",
		"--add-node", fmt.Sprintf("cp -r %s %s/.new && mv %s/.new %s/%s", device, bus, bus, bus, gpuAddress), "--append", report,
		"--stack", stack.Name(), "--notice", with.notice(), "--timeout=8m", "--workload-image", jobImage, "--log-level=warn"}, samples...)
	out, err := exec.CommandContext(ctx, s.provision(), args...).CombinedOutput()
	if err != nil {
		s.describe(t, stack)
	}
	require.NoErrorf(t, err, "gpu-provision measure:\n%s", out)
	require.NoError(t, stack.Remove(ctx, s.cluster))
}
