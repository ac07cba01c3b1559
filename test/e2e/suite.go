package e2e

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/folder"
)

// Suite is a cluster with this tree's images, for the scenarios of one test.
type Suite struct {
	*cluster.Cluster
	World       *ClusterState
	kubectlPath string
	passed      []string // names of scenarios
}

// Version returns the tag of this tree's images, which its manifests name.
func Version() string { return version.Release() }

// NextVersion returns the tag of the same programs' second images, for rolling updates.
func NextVersion() string { return version.Release() + "-next" }

// variable names the environment variable with the folder of the built programs and images.
// `make e2e` sets it; without it the scenarios are skipped.
const variable = "GPUREADY_E2E"

// kubernetesVariable names the environment variable with the minor version of Kubernetes that clusters
// run. `make e2e-versions` sets it; by default it is the newest.
const kubernetesVariable = "GPUREADY_E2E_KUBERNETES"

// Up starts a cluster for a test and ends it with the test.
func Up(t *testing.T, c cluster.Config) *Suite {
	t.Helper()
	bin := os.Getenv(variable)
	if bin == "" {
		t.Skipf("%s is not set: make e2e runs the scenarios on a cluster", variable)
	}
	if !c.Bare { // else no pod runs there
		c.Images = append(c.Images, archives(t, filepath.Join(bin, "images"))...)
	}
	return Start(t, c)
}

// NextImages returns the archives with the images of the next version, for clusters on which something is
// upgraded.
func NextImages(t *testing.T) []string {
	t.Helper()
	bin := os.Getenv(variable)
	if bin == "" {
		return nil // Up skips the test
	}
	return archives(t, filepath.Join(bin, "images-next"))
}

func archives(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	require.NoError(t, err)
	require.NotEmptyf(t, all, "no images in %s", dir)
	return all
}

// Start is like Up, without this tree's images: nodes have those of the configuration.
func Start(t *testing.T, c cluster.Config) *Suite {
	t.Helper()
	if os.Getenv(recordsVariable) != "" {
		builtCommit(t)
	}
	if os.Geteuid() == 0 { // else cluster.Up says what is missing
		takePlace(t)
	}
	c.Name = name(t, os.Getenv(variable))
	c.Progress = func(s cluster.Step) { t.Logf("%5.1f s  %s", s.Took.Seconds(), s.What) }
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // includes building the binaries
	defer cancel()
	var err error
	c.Binaries, err = binaries.Ensure(ctx, binaries.Options{Out: os.Stderr, Kubernetes: os.Getenv(kubernetesVariable)})
	require.NoError(t, err)
	up, err := cluster.Up(ctx, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, up.Down()) })
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	world, err := Watch(watching, up.Kubeconfig)
	require.NoError(t, err)
	s := &Suite{Cluster: up, World: world, kubectlPath: c.Binaries.Path("kubectl")}
	if dir := os.Getenv(recordsVariable); dir != "" {
		began := time.Now()
		t.Cleanup(func() { s.recordSupport(t, dir, c.Gates, began) })
	}
	return s
}

// takePlace waits until a Suite may be up on this machine, and counts it until the test ends. Of all test
// programs together, two a processor may be up, and three in any case. With more of them nothing ends
// sooner, and programs get the processors too late for the times that scenarios allow.
func takePlace(t *testing.T) {
	t.Helper()
	ctx, began := t.Context(), time.Now()
	if end, limited := t.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-time.Minute))
		defer cancel()
	}
	place, err := folder.TakePlace(ctx, "/run/gpuready-e2e-cluster", max(3, 2*runtime.NumCPU()))
	require.NoError(t, err, "waiting for other clusters' ends")
	t.Cleanup(func() { require.NoError(t, place.Close()) })
	if waited := time.Since(began); waited > time.Second {
		t.Logf("waited %.0f s until another cluster of this machine had ended", waited.Seconds())
	}
}

// name derives a cluster's name from the test and the checkout. The next run of the same test
// then removes a killed cluster, and other checkouts do not collide.
func name(t *testing.T, checkout string) string {
	test := strings.ToLower(strings.TrimPrefix(strings.Split(t.Name(), "/")[0], "Test"))
	h := fnv.New32a()
	h.Write([]byte(checkout))
	return fmt.Sprintf("e2e-%s-%04x", test, h.Sum32()&0xffff)
}

// Image returns the full name of one of our images, as in the manifests.
func (s *Suite) Image(name string) string { return "gpuready/" + name + ":" + Version() }

// NextImage is like Image, for the next version.
func (s *Suite) NextImage(name string) string { return "gpuready/" + name + ":" + NextVersion() }

// scenario is a named test.
type scenario struct {
	name string
	run  func(t *testing.T, s *Suite)
}

// play runs scenarios in order, each on the state that the one before left. The first failure
// ends it, because the following ones would fail for the same reason. The output nearest to
// the cause comes last.
func (s *Suite) play(t *testing.T, scenarios ...scenario) {
	t.Helper()
	for _, c := range scenarios {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, s) }) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
		s.passed = append(s.passed, c.name)
	}
}

// LogDiagnostics prints the last lines of our agents' logs, including those before a restart, and the
// state of all pods and nodes.
func (s *Suite) LogDiagnostics(t *testing.T) {
	t.Helper()
	printLog := func(p *corev1.Pod, which ...string) {
		args := append([]string{"-n", p.Namespace, "logs", p.Name, "--prefix", "--tail=25"}, which...)
		if out, err := s.kubectl(t, args...); err == nil {
			t.Logf("%s on %s:\n%s", p.Name, p.Spec.NodeName, out)
		}
	}
	for _, p := range s.World.Pods(Namespace, "") {
		printLog(p, "--all-containers")
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.RestartCount > 0 {
				printLog(p, "--previous", "--container="+c.Name)
			}
		}
	}
	t.Log("at the end:\n" + s.World.Describe())
}

// State returns the state that a component reports on a node, or an empty one if it has
// reported nothing.
func (s *Suite) State(t *testing.T, node string, component nodestate.Component) nodestate.State {
	t.Helper()
	n := s.Node(node)
	state, err := nodestate.ReadBoot(n.PathOnNode("/run/nvidia/gpuready/"+string(component)), n.BootID())
	if err != nil && !nodestate.IsAbsent(err) {
		t.Logf("%s of %s: %v", component, node, err)
	}
	if state.DevicePlugin == nil {
		state.DevicePlugin = &nodestate.DevicePluginInfo{}
	}
	if state.Toolkit == nil {
		state.Toolkit = &nodestate.ToolkitInfo{}
	}
	if state.Toolkit.Injection == nil {
		state.Toolkit.Injection = &nodestate.Injection{}
	}
	return state
}

// KillKubelet kills a node's kubelet; it is started again.
func (s *Suite) KillKubelet(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, s.Node(node).KillKubelet(t.Context()))
}

// RestartContainerd restarts a node's containerd.
func (s *Suite) RestartContainerd(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, s.Node(node).RestartContainerd(t.Context()))
}

// Reboot reboots a node.
func (s *Suite) Reboot(t *testing.T, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, s.Node(node).Reboot(ctx))
}

// WriteFile writes a file on a node.
func (s *Suite) WriteFile(t *testing.T, node, path, content string) {
	t.Helper()
	at := s.Node(node).PathOnNode(path)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte(content), 0o644))
}

// ReadFile reads a file of a node.
func (s *Suite) ReadFile(t *testing.T, node, path string) string {
	t.Helper()
	data, err := os.ReadFile(s.Node(node).PathOnNode(path))
	require.NoError(t, err)
	return string(data)
}

// RemoveFile removes a file of a node.
func (s *Suite) RemoveFile(t *testing.T, node, path string) {
	t.Helper()
	require.NoError(t, os.Remove(s.Node(node).PathOnNode(path)))
}

// places are the directories of a node in which gpuready may leave files.
var places = []string{"/run/nvidia", "/run/cdi", "/etc/cdi", "/usr/local", "/dev", "/etc/containerd", "/var/lib/kubelet/device-plugins", "/run/nri"}

// Files lists the contents of those directories, as paths of the node.
func (s *Suite) Files(t *testing.T, node string) []string {
	t.Helper()
	var files []string
	n := s.Node(node)
	for _, place := range places {
		root := n.PathOnNode(place)
		err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				files = append(files, place+strings.TrimPrefix(path, root))
			}
			return nil
		})
		require.NoError(t, err)
	}
	return files
}
