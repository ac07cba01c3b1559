package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// comparison configures TestCompare: make provision-compare sets it by environment
// variables.
type comparison struct {
	samples     int             // GPUREADY_COMPARE: of each stack, beside the first, which does not count
	test        string          // GPUREADY_COMPARE_TEST: "fresh", a node that is bare, or "reset", of the ClusterPolicy
	status      time.Duration   // GPUREADY_COMPARE_STATUS: how often a kubelet reports
	driverTakes []time.Duration // GPUREADY_COMPARE_DRIVER: how long loading takes, each for both stacks
	handler     bool            // GPUREADY_COMPARE_HANDLER: bare nodes have the stack's containerd handler
	link        string          // GPUREADY_COMPARE_REGISTRY: "" (images present), "public" or "cluster"
	out         string          // GPUREADY_MEASUREMENTS: a folder for the reports
}

// partial is gpu-provision's exit code where a sample is not complete.
const partial = 3

// resets is the number of resets of one stack before the next stack is installed.
const resets = 3

func readComparison(t *testing.T) comparison {
	t.Helper()
	if os.Getenv("GPUREADY_COMPARE") == "" {
		t.Skip("GPUREADY_COMPARE is not set: make provision-compare runs this")
	}
	c := comparison{
		test: cmp.Or(os.Getenv("GPUREADY_COMPARE_TEST"), "fresh"), handler: os.Getenv("GPUREADY_COMPARE_HANDLER") == "yes",
		link: os.Getenv("GPUREADY_COMPARE_REGISTRY"), out: os.Getenv("GPUREADY_MEASUREMENTS"),
	}
	var err error
	c.samples, err = strconv.Atoi(os.Getenv("GPUREADY_COMPARE"))
	require.NoError(t, err)
	require.Positive(t, c.samples, "GPUREADY_COMPARE")
	c.status, err = time.ParseDuration(cmp.Or(os.Getenv("GPUREADY_COMPARE_STATUS"), "10s"))
	require.NoError(t, err)
	for text := range strings.SplitSeq(cmp.Or(os.Getenv("GPUREADY_COMPARE_DRIVER"), "5s"), ",") {
		takes, err := time.ParseDuration(text)
		require.NoError(t, err)
		c.driverTakes = append(c.driverTakes, takes)
	}
	require.Contains(t, []string{"fresh", "reset"}, c.test, "GPUREADY_COMPARE_TEST")
	require.Contains(t, []string{"", "yes"}, os.Getenv("GPUREADY_COMPARE_HANDLER"), "GPUREADY_COMPARE_HANDLER")
	require.Contains(t, []string{"", "public", "cluster"}, c.link, "GPUREADY_COMPARE_REGISTRY")
	if c.out == "" {
		c.out = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(c.out, 0o755))
	return c
}

// waits reports whether NVIDIA's containers wait in the order that waits_test.go reads. Where the
// handler is there before, the validator does not wait for the toolkit.
func (c comparison) waits() bool { return c.test == "fresh" && !c.handler }

// contender is a stack with a driver that takes a time to load.
type contender struct {
	Stack
	takes   time.Duration
	file    string // of its report, without what follows the dot
	notice  string // first line of its report
	handler string // folder with the files of its containerd handler
}

func (c comparison) contender(t *testing.T, stack Stack, takes time.Duration) *contender {
	t.Helper()
	of := &contender{Stack: stack, takes: takes, file: stack.Name()}
	if len(c.driverTakes) > 1 {
		of.file += "-" + takes.String()
	}
	if c.handler {
		of.handler = t.TempDir()
	}
	said := []string{"SIMULATED: no GPU",
		fmt.Sprintf("one driver container for both stacks stands in for NVIDIA's and loads nothing for %v", takes),
		fmt.Sprintf("kubelet reports every %v", c.status),
		map[string]string{"": "images present", "public": "images, a quarter of their estimated sizes, from a registry behind 80 ms and 200 Mbit/s", "cluster": "images, a quarter of their estimated sizes, from a registry in the cluster"}[c.link]}
	if c.handler {
		said = append(said, "containerd has the stack's handler already")
	}
	of.notice = strings.Join(said, "; ")
	return of
}

// TestCompare measures the two stacks in alternation with gpu-provision: from a GPU that is
// plugged into a bare node, or from a ClusterPolicy that is applied again, to a pod that has
// computed.
func TestCompare(t *testing.T) {
	with := readComparison(t)
	link, pad := Link{}, Pad(nil)
	switch with.link {
	case "public":
		link, pad = Public(), Sizes().Scale(0.25)
	case "cluster":
		pad = Sizes().Scale(0.25)
	}
	name := cmp.Or(os.Getenv("GPUREADY_COMPARE_CLUSTER"), "compare")
	s := up(t, cluster.Config{Name: name, NodeStatus: with.status}, link, pad, Settings{})
	var contenders []*contender
	for _, takes := range with.driverTakes {
		settings := Settings{DriverTakes: takes, Registry: s.registry}
		contenders = append(contenders, with.contender(t, s.NVIDIA(settings), takes), with.contender(t, s.GPUReady(settings), takes))
	}
	for taken := 0; taken <= with.samples; {
		n := 1
		if with.test == "reset" {
			n = min(resets, with.samples+1-taken)
		}
		for _, c := range contenders {
			began := time.Now()
			s.measure(t, c, with, taken == 0, n)
			fmt.Printf("samples %d to %d of %d of %s took %.0f s\n", taken, taken+n-1, with.samples, c.file, time.Since(began).Seconds())
		}
		taken += n
	}
	s.report(t, with, contenders)
}

// report writes each contender's report, and pairs: of two stacks with the same driver, and of
// one stack with two drivers.
func (s *suite) report(t *testing.T, with comparison, contenders []*contender) {
	t.Helper()
	file := func(c *contender) string { return filepath.Join(with.out, c.file+".json") }
	for _, c := range contenders {
		for _, format := range []string{"csv", "svg"} {
			s.write(t, filepath.Join(with.out, c.file+"."+format), "report", "-o", format, file(c))
		}
		if table := filepath.Join(with.out, c.file+"-waits"); with.waits() && c.Name() == "nvidia" {
			var text strings.Builder
			fmt.Fprintln(&text, c.notice)
			require.NoError(t, writeWaits(&text, table+".csv"))
			require.NoError(t, os.WriteFile(table+".txt", []byte(text.String()), 0o644))
		}
	}
	pair := func(name string, a, b *contender) {
		s.write(t, filepath.Join(with.out, name+".html"), "report", "-o", "html", file(a), file(b))
		s.write(t, filepath.Join(with.out, name+".txt"), "compare", file(a), file(b))
		text, err := os.ReadFile(filepath.Join(with.out, name+".txt"))
		require.NoError(t, err)
		fmt.Println(string(text))
	}
	for i := 0; i < len(contenders); i += 2 {
		theirs, ours := contenders[i], contenders[i+1]
		name := "compare"
		if i > 0 {
			name += "-" + ours.takes.String()
			pair("drivers-nvidia-"+ours.takes.String(), contenders[0], theirs)
			pair("drivers-gpuready-"+ours.takes.String(), contenders[1], ours)
		}
		pair(name, ours, theirs)
	}
}

// write writes what gpu-provision prints into a file.
func (s *suite) write(t *testing.T, file string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), s.provision(), args...).Output()
	require.NoError(t, err, args)
	require.NoError(t, os.WriteFile(file, out, 0o644))
}

func (s *suite) provision() string { return filepath.Join(s.bin, "gpu-provision") }

// measure takes n samples of a stack, the first of which does not count where it is the first of
// all, and leaves the node bare.
func (s *suite) measure(t *testing.T, c *contender, with comparison, first bool, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+1)*patience)
	defer cancel()
	node := s.cluster.Nodes[0]
	if with.link == "" {
		require.NoError(t, s.registry.Warm(ctx, node))
	}
	if with.handler && !first {
		require.NoError(t, restoreHandler(ctx, node, c.handler))
	}
	require.NoError(t, c.Install(ctx, s.cluster))
	policy, err := c.Policy(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Apply(ctx, s.cluster, policy))
	wait := func(args ...string) {
		if _, err := s.Kubectl(ctx, s.cluster, append([]string{"wait", "--timeout=8m"}, args...)...); err != nil {
			s.describe(t, c)
			require.NoError(t, err)
		}
	}
	wait("--for=jsonpath={.status.state}", "clusterpolicies.nvidia.com", "--all")
	drop := 0
	if first {
		drop = 1
	}
	args := []string{"measure", "--kubeconfig", s.cluster.Kubeconfig, "--samples", strconv.Itoa(n - drop), "--drop", strconv.Itoa(drop),
		"--append", filepath.Join(with.out, c.file+".json"), "--stack", c.file, "--notice", c.notice, "--timeout=8m", "--workload-image", jobImage, "--log-level=warn"}
	if with.test == "reset" {
		require.NoError(t, Plug(node))
		wait(`--for=jsonpath={.status.allocatable.nvidia\.com/gpu}`, "nodes", "--all")
		wait("--for=condition=Ready", "--namespace", c.Namespace(), "pods", "--selector", "app=nvidia-operator-validator")
		args = append(args, "--test", "reset")
	} else {
		// The GPU is made elsewhere and moved to the bus, where it appears whole.
		bus, device := node.PathOnNode(namespace.PCI), filepath.Join(t.TempDir(), gpuAddress)
		require.NoError(t, writeGPU(device))
		args = append(args, "--test", "scale-from-zero", "--keep-nodes",
			"--add-node", fmt.Sprintf("cp -r %s %s/.new && mv %s/.new %s/%s", device, bus, bus, bus, gpuAddress))
	}
	// A sample that is not complete is in the report, with its reason, and the next one is taken.
	out, err := exec.CommandContext(ctx, s.provision(), args...).CombinedOutput()
	complete := err == nil
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == partial {
		err = nil
	}
	if !complete {
		s.describe(t, c)
		fmt.Printf("%s\n", out)
	}
	require.NoError(t, err, "gpu-provision measure")
	if with.waits() && complete && c.Name() == "nvidia" && !first {
		if took, err := readWaits(node.PathOnNode("/var/log/pods"), c.Namespace()); err != nil {
			fmt.Printf("the waits of this sample are not known: %v\n", err)
		} else {
			require.NoError(t, appendWaits(filepath.Join(with.out, c.file+"-waits.csv"), took))
		}
	}
	if with.handler && first {
		require.NoError(t, keepHandler(ctx, node, c.handler))
	}
	require.NoError(t, c.Remove(ctx, s.cluster))
}

// handlerFiles lists the files of a toolkit's containerd handler: its configuration and the runtime.
var handlerFiles = []string{containerdConfig, "/etc/containerd/conf.d", "/usr/local/nvidia"}

// keepHandler copies the handler of the toolkit that runs into a folder.
func keepHandler(ctx context.Context, n *cluster.Node, folder string) error {
	for _, path := range handlerFiles {
		if err := copyTree(ctx, n.PathOnNode(path), filepath.Join(folder, path)); err != nil {
			return err
		}
	}
	return nil
}

// restoreHandler puts it on a bare node, and boots that again.
func restoreHandler(ctx context.Context, n *cluster.Node, folder string) error {
	for _, path := range handlerFiles {
		if err := copyTree(ctx, filepath.Join(folder, path), n.PathOnNode(path)); err != nil {
			return err
		}
	}
	return n.Reboot(ctx)
}

// copyTree replaces a file or folder by a copy of another. One that is not there is left out.
func copyTree(ctx context.Context, from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}
