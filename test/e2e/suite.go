package e2e

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/cluster"
	"github.com/gpuready/gpuready/test/cluster/binaries"
)

// Suite is a cluster with the images of this tree, for the scenarios of one test.
type Suite struct {
	*cluster.Cluster
	World       *World
	kubectlPath string
}

// The images are named with the version of the manifests; the next one is the
// same program under another name, for rolling updates.
const (
	version     = "v0.1.0"
	nextVersion = "v0.1.1"
)

// variable names the environment variable that says where the built programs and
// images are: `make e2e` sets it, and without it the scenarios are skipped.
const variable = "GPUREADY_E2E"

// Up starts a cluster for a test and ends it with the test.
func Up(t *testing.T, c cluster.Config) *Suite {
	t.Helper()
	bin := os.Getenv(variable)
	if bin == "" {
		t.Skipf("%s is not set: make e2e runs the scenarios on a cluster", variable)
	}
	for _, dir := range []string{"images", "images-next"} {
		if c.Bare {
			break // where no pod runs
		}
		archives, err := filepath.Glob(filepath.Join(bin, dir, "*.tar"))
		require.NoError(t, err)
		require.NotEmptyf(t, archives, "no images in %s", filepath.Join(bin, dir))
		c.Images = append(c.Images, archives...)
	}
	c.Name = name(t, bin)
	c.Progress = func(s cluster.Step) { t.Logf("%5.1f s  %s", s.Took.Seconds(), s.What) }
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // with the binaries' build
	defer cancel()
	var err error
	c.Binaries, err = binaries.Ensure(ctx, binaries.Options{Out: os.Stderr})
	require.NoError(t, err)
	up, err := cluster.Up(ctx, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, up.Down()) })
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	world, err := Watch(watching, up.Kubeconfig)
	require.NoError(t, err)
	return &Suite{Cluster: up, World: world, kubectlPath: c.Binaries.Path("kubectl")}
}

// name is the same for a test of the same checkout, so that a cluster that was
// killed is cleared away by the next, and another for the same test of another.
func name(t *testing.T, checkout string) string {
	test := strings.ToLower(strings.TrimPrefix(strings.Split(t.Name(), "/")[0], "Test"))
	h := fnv.New32a()
	h.Write([]byte(checkout))
	return fmt.Sprintf("e2e-%s-%04x", test, h.Sum32()&0xffff)
}

// Image is the full name of one of our images, as the manifests have it.
func (s *Suite) Image(name string) string { return "gpuready/" + name + ":" + version }

// NextImage is the same for the version after it.
func (s *Suite) NextImage(name string) string { return "gpuready/" + name + ":" + nextVersion }

// scenario is one that tells its name.
type scenario struct {
	name string
	run  func(t *testing.T, s *Suite)
}

// play plays scenarios one after the other, each on what the one before left. The
// first that fails ends it: those after it would tell of the same. What is closest
// to the cause is told last.
func (s *Suite) play(t *testing.T, scenarios ...scenario) {
	t.Helper()
	for _, c := range scenarios {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, s) }) {
			s.TellLogs(t)
			t.FailNow()
		}
	}
}

// TellLogs prints the last lines of what our agents logged, also before they were
// restarted, and how all pods and nodes are.
func (s *Suite) TellLogs(t *testing.T) {
	t.Helper()
	tell := func(p *corev1.Pod, which ...string) {
		args := append([]string{"-n", p.Namespace, "logs", p.Name, "--prefix", "--tail=25"}, which...)
		if out, err := s.kubectl(t, args...); err == nil {
			t.Logf("%s on %s:\n%s", p.Name, p.Spec.NodeName, out)
		}
	}
	for _, p := range s.World.Pods(Namespace, "") {
		tell(p, "--all-containers")
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.RestartCount > 0 {
				tell(p, "--previous", "--container="+c.Name)
			}
		}
	}
	t.Log("at the end:\n" + s.World.Describe())
}

// State is what a component of a node says of itself; empty where it has said
// nothing.
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

// places are the directories of a node in which gpuready may leave something.
var places = []string{"/run/nvidia", "/run/cdi", "/etc/cdi", "/usr/local", "/dev", "/etc/containerd", "/var/lib/kubelet/device-plugins", "/run/nri"}

// Files lists what is in those directories, as paths of the node.
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
