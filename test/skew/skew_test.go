// Package skew tests this release together with the one before it, on a real cluster: components of
// both on one node, an upgrade and the way back, by manifests and by the operator's chart, with GPUs of
// the device plugin, with claims and with MPS. Pods use GPUs all the while, and none may be restarted or
// lose a GPU. `make e2e-skew` runs it.
package skew

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// node is the node with the GPUs.
const node = "n1"

// variable names the environment variable with the folder of the release before: its images, its
// chart, and its tree.
const variable = "GPUREADY_E2E_PREVIOUS"

// DaemonSets.
const (
	driverSet    = "nvidia-driver-daemonset"
	pluginSet    = "nvidia-device-plugin-daemonset"
	mpsSet       = "nvidia-device-plugin-mps-control-daemon"
	draDriverSet = "gpu-dra-driver"
)

type suite struct {
	*e2e.Suite
	dir      string            // of the release before
	previous string            // its version
	images   map[string]string // by DaemonSet
}

// up starts a cluster that has the images of both releases.
func up(t *testing.T) *suite {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("%s is not set: make e2e-skew runs the scenarios on a cluster", variable)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "images/*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, archives, "no images in %s", dir)
	s := &suite{Suite: e2e.Up(t, cluster.Config{Nodes: 1, Images: archives}), dir: dir, previous: filepath.Base(dir), images: map[string]string{
		driverSet: "driver-simulator", "nvidia-container-toolkit-daemonset": "toolkit", pluginSet: "device-plugin", "nvidia-operator-validator": "validator",
	}}
	require.NotEqual(t, s.previous, e2e.Version(), "the release before is this one")
	return s
}

// applyPrevious applies manifests of the release before.
func (s *suite) applyPrevious(t *testing.T, names ...string) {
	t.Helper()
	args := []string{"apply"}
	for _, name := range names {
		args = append(args, "-f", filepath.Join(s.dir, "tree/deployments/static", name))
	}
	s.Kubectl(t, args...)
}

// releases chooses the release of each component: images and DaemonSets that are named have this
// tree's, the others that of the release before.
type releases []string

func (r releases) String() string {
	if len(r) == 0 {
		return "all of the release before"
	}
	return "new " + strings.Join(r, " and ") // kubectl splits the names of files at commas
}

// TestManifests installs the release before by its manifests, and changes the release of each component
// alone, of all others, and of all, and back.
func TestManifests(t *testing.T) {
	s := up(t)
	s.applyPrevious(t, "gpuready.yaml", "simulated-driver.yaml")
	s.settled(t, e2e.Namespace, s.chosen(nil), 8)
	tenants := s.Occupy(t, node, 3)

	// Each differs from the one before by few components, and each component is both the only new
	// and the only old one.
	for _, r := range []releases{
		{"toolkit"}, {"device-plugin"}, {"validator"}, {"driver-simulator"},
		{"driver-simulator", "device-plugin", "validator"}, {"driver-simulator", "toolkit", "validator"},
		{"driver-simulator", "toolkit", "device-plugin"}, {"toolkit", "device-plugin", "validator"}, {},
	} {
		if !t.Run(r.String(), func(t *testing.T) {
			s.choose(t, r)
			s.settled(t, e2e.Namespace, s.chosen(r), 8)
			tenants.RequireUndisturbed(t)
			s.RequireFree(t, node, 2)
		}) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}

	// A free GPU breaks under the release before.
	victim := s.freeGPU(t)
	s.Gpusim(t, node, "xid", "--gpu", victim, "--xid", "79")
	s.settled(t, e2e.Namespace, s.chosen(nil), 7)
	fault := s.fault(t, victim)
	all := releases(slices.Sorted(maps.Values(s.images)))

	if !t.Run("upgrade", func(t *testing.T) {
		s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
		s.settled(t, e2e.Namespace, s.chosen(all), 7)
		tenants.RequireUndisturbed(t)
		require.Equal(t, fault, s.fault(t, victim), "the new device plugin reads the state of the old one")
		s.RequireFree(t, node, 1)
	}) || !t.Run("rollback", func(t *testing.T) {
		s.applyPrevious(t, "gpuready.yaml", "simulated-driver.yaml")
		s.settled(t, e2e.Namespace, s.chosen(nil), 7)
		tenants.RequireUndisturbed(t)
		require.Equal(t, fault, s.fault(t, victim), "the old device plugin reads the state of the new one")
		s.RequireFree(t, node, 1)
	}) {
		s.LogDiagnostics(t)
	}
}

// namespace is the namespace of the chart's release.
const namespace = "gpuready-system"

// TestChart installs the chart of the release before, upgrades it, runs the new operator with one
// component of the release before, and rolls back. The driver stays what it is: a release of
// gpuready does not choose it.
func TestChart(t *testing.T) {
	s := up(t)
	charts, err := filepath.Glob(filepath.Join(s.dir, "charts/gpuready-*.tgz"))
	require.NoError(t, err)
	require.Len(t, charts, 1, s.dir)
	values := []string{
		"--namespace", namespace, "--wait", "--timeout", "4m", "--set", "nfd.enabled=false",
		"--set", "driver.simulated.enabled=true", "--set", "driver.simulated.profile=h100-sxm", "--set", "driver.simulated.version=" + s.previous,
	}
	s.Kubectl(t, "label", "node", node, "nvidia.com/gpu.present=true")
	s.helm(t, append([]string{"install", "gpuready", charts[0], "--create-namespace"}, values...)...)
	s.settled(t, namespace, s.chosen(nil), 8)
	tenants := s.Occupy(t, node, 3)
	operator := func(t *testing.T, tag string) {
		t.Helper()
		image := s.Kubectl(t, "-n", namespace, "get", "deployment", "gpuready-operator", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		require.True(t, strings.HasSuffix(image, "/operator:"+tag), image)
	}
	agents := releases{"toolkit", "device-plugin", "validator"}
	driver := s.World.Pods(namespace, "app="+driverSet)
	require.Len(t, driver, 1)

	for _, step := range []struct {
		name string
		do   func(t *testing.T)
		want releases
	}{
		{"upgrade", func(t *testing.T) {
			chart := filepath.Join(os.Getenv("GPUREADY_E2E"), "charts/gpuready-"+strings.TrimPrefix(e2e.Version(), "v")+".tgz")
			s.helm(t, append([]string{"upgrade", "gpuready", chart}, values...)...)
			operator(t, e2e.Version())
		}, agents},
		{"the policy keeps the old device plugin", func(t *testing.T) {
			s.patch(t, `{"spec":{"devicePlugin":{"version":"`+s.previous+`"}}}`)
		}, releases{"toolkit", "validator"}},
		{"the policy keeps the old toolkit", func(t *testing.T) {
			s.patch(t, `{"spec":{"devicePlugin":{"version":null},"toolkit":{"version":"`+s.previous+`"}}}`)
		}, releases{"device-plugin", "validator"}},
		{"the policy keeps nothing", func(t *testing.T) {
			s.patch(t, `{"spec":{"toolkit":{"version":null}}}`)
		}, agents},
		{"rollback", func(t *testing.T) {
			s.helm(t, "rollback", "gpuready", "1", "--namespace", namespace, "--wait", "--timeout", "4m")
			operator(t, s.previous)
		}, nil},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			step.do(t)
			s.settled(t, namespace, s.chosen(step.want), 8)
			tenants.RequireUndisturbed(t)
			s.RequireFree(t, node, 2)
			now := s.World.Pods(namespace, "app="+driverSet)
			require.Len(t, now, 1)
			require.Equal(t, driver[0].UID, now[0].UID, "the driver's pod stays, although its template names another validator")
		}) {
			for _, args := range [][]string{{"get", "clusterpolicies.nvidia.com", "-o", "yaml"}, {"-n", namespace, "logs", "--tail=60", "deployment/gpuready-operator"}} {
				out, err := s.TryKubectl(t, args...)
				t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
			}
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
}

// chosen returns the tag of each DaemonSet's image.
func (s *suite) chosen(r releases) map[string]string {
	tags := map[string]string{}
	for daemonset, image := range s.images {
		if tags[daemonset] = s.previous; slices.Contains(r, image) || slices.Contains(r, daemonset) {
			tags[daemonset] = e2e.Version()
		}
	}
	return tags
}

// choose sets the images of the DaemonSets of the manifests. The variable with which the validator
// starts its pods names its own image.
func (s *suite) choose(t *testing.T, r releases) {
	t.Helper()
	for daemonset, tag := range s.chosen(r) {
		image := "gpuready/" + s.images[daemonset] + ":" + tag
		s.Kubectl(t, "-n", e2e.Namespace, "set", "image", "daemonset/"+daemonset, "*="+image)
		if s.images[daemonset] == "validator" {
			s.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/"+daemonset, "VALIDATOR_IMAGE="+image)
		}
	}
}

// settled waits until each DaemonSet runs ready pods with the wanted tags only, that many GPUs are
// allocatable, and all layers are proven. Each component's state must be readable, and kubectl-gpu of
// both releases must report the node as ready.
func (s *suite) settled(t *testing.T, namespace string, tags map[string]string, gpus int64) {
	t.Helper()
	s.World.UntilWithin(t, 4*time.Minute, "the components have the wanted releases", func() error {
		var errs []error
		for daemonset, tag := range tags {
			pods := s.World.Pods(namespace, "app="+daemonset)
			if len(pods) == 0 {
				errs = append(errs, fmt.Errorf("%s has no pod", daemonset))
			}
			for _, p := range pods {
				switch c := p.Spec.Containers[0]; {
				case p.DeletionTimestamp != nil:
					errs = append(errs, fmt.Errorf("%s ends", p.Name))
				case !strings.HasSuffix(c.Image, "gpuready/"+s.images[daemonset]+":"+tag):
					errs = append(errs, fmt.Errorf("%s has %s, not %s", p.Name, c.Image, tag))
				}
			}
		}
		return errors.Join(errs...)
	})
	current := slices.Sorted(maps.Keys(tags))
	if namespace != e2e.Namespace {
		// The operator replaces no pod of a driver unless the driver changes.
		current = slices.DeleteFunc(current, func(daemonset string) bool { return daemonset == driverSet })
	}
	s.World.WaitDaemonSets(t, namespace, current...)
	s.World.WaitAllocatable(t, gpus, node)
	s.World.Until(t, "the validator of one release has proven the components of both", func() error {
		c := s.World.Condition(node, "GPUReady")
		if c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("GPUReady is %+v", c)
		}
		return nil
	})
	for _, component := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin} {
		n := s.Node(node)
		_, err := nodestate.ReadBoot(n.PathOnNode("/run/nvidia/gpuready/"+string(component)), n.BootID())
		require.NoError(t, err, component)
	}
	for _, program := range []string{filepath.Join(s.dir, "kubectl-gpu"), filepath.Join(os.Getenv("GPUREADY_E2E"), "kubectl-gpu")} {
		s.run(t, program, "status")
		var report struct {
			Result string `json:"result"`
		}
		out := s.run(t, program, "explain", node, "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(out), &report), out)
		require.True(t, strings.HasPrefix(report.Result, "ok"), "%s: %s", program, report.Result)
	}
}

// freeGPU returns a GPU that no pod holds: the kubelet offers only those to a pod that ends.
func (s *suite) freeGPU(t *testing.T) string {
	t.Helper()
	out, phase := s.Result(t, e2e.Job{Name: "names-a-gpu", Node: node, GPUs: 1, Command: []string{"nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"}})
	require.Equal(t, corev1.PodSucceeded, phase, out)
	return strings.TrimSpace(out)
}

// fault returns the device plugin's record of a GPU's fault.
func (s *suite) fault(t *testing.T, gpu string) string {
	t.Helper()
	for _, f := range s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Faults {
		if string(f.GPU) == gpu {
			return fmt.Sprintf("%s %s since %s", f.GPU, f.Reason, f.Since)
		}
	}
	t.Fatalf("the device plugin's state has no fault of %s", gpu)
	return ""
}

func (s *suite) patch(t *testing.T, patch string) {
	t.Helper()
	s.Kubectl(t, "patch", "clusterpolicies.nvidia.com", "gpu-cluster-policy", "--type=merge", "-p", patch)
}

func (s *suite) helm(t *testing.T, args ...string) {
	t.Helper()
	s.run(t, filepath.Join(os.Getenv("GPUREADY_E2E"), "tools/helm"), args...)
}

// run runs a program as a cluster administrator, and returns its output.
func (s *suite) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoErrorf(t, cmd.Run(), "%s %s:\n%s\n%s", program, strings.Join(args, " "), &out, s.World.Describe())
	return out.String()
}
