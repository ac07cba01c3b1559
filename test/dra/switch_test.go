package dra

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// switchesVariable sets the number of random switches; see dra.mk.
const switchesVariable = "GPUREADY_SWITCHES"

// released limits the time until a GPU is offered by the other side after its pod has ended.
const released = 15 * time.Second

// TestSwitch switches a node between device plugin and DRA under running pods.
func TestSwitch(t *testing.T) {
	s := &suite{e2e.Up(t, cluster.Config{Nodes: 1})}
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"pods keep their GPUs from plugin to dra", s.podsKeepTheirGPUs},
		{"claims keep their GPUs from dra to plugin", s.claimsKeepTheirGPUs},
		{"an unknown value of the label changes nothing", s.anUnknownLabelIsRefused},
		{"nothing is given twice in random switches", s.randomSwitches},
	} {
		if !t.Run(scenario.name, scenario.run) {
			s.LogDiagnostics(t)
			t.Logf("%+v", s.State(t, node, nodestate.DevicePlugin).DevicePlugin)
			t.FailNow()
		}
	}
}

// serve sets the node's label; "": it has none.
func (s *suite) serve(t *testing.T, by string) {
	t.Helper()
	value := strconv.Quote(by)
	if by == "" {
		value = "null"
	}
	_, err := s.World.Client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, nodestate.ServeLabel, value), metav1.PatchOptions{})
	require.NoError(t, err)
}

// gpu runs kubectl gpu.
func (s *suite) gpu(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("GPUREADY_E2E"), "kubectl-gpu"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// holders returns the device nodes in the containers of workloads of a node, by container: what they can really
// use, whatever anybody has recorded.
func (s *suite) holders(t *testing.T, node string) map[string][]string {
	t.Helper()
	out, err := s.Node(node).Exec(t.Context(), "sh", "-c", `for p in /proc/[0-9]*; do
		[ "$(cat $p/comm 2>/dev/null)" = vectoradd ] && echo $(readlink $p/ns/mnt) $(ls $p/root/dev 2>/dev/null | grep '^nvidia[0-9]')
	done; true`)
	require.NoError(t, err)
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			all[fields[0]] = fields[1:]
		}
	}
	return all
}

// requireNoneTwice fails if two containers have the same GPU, and returns the GPUs that containers have,
// by the names of their device nodes.
func (s *suite) requireNoneTwice(t *testing.T, node string) map[string]bool {
	t.Helper()
	held := map[string]bool{}
	for container, devices := range s.holders(t, node) {
		for _, d := range devices {
			require.Falsef(t, held[d], "%s is in %s and in another container: %v", d, container, s.holders(t, node))
			held[d] = true
		}
	}
	return held
}

// classic starts a pod that requests nvidia.com/gpu; inInit: in an init container alone.
func (s *suite) classic(t *testing.T, name string, inInit bool, command ...string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"load": "classic"}}}
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, new(int64(1))
	main := corev1.Container{Name: "main", Image: s.Image("cuda-samples"), ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}
	pod.Spec.Containers = []corev1.Container{main}
	if inInit {
		idle := main
		idle.Name, idle.Resources, idle.Command = "idle", corev1.ResourceRequirements{}, []string{"vectoradd", "--help"}
		pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{main}, []corev1.Container{idle}
	}
	_, err := s.World.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
}

// waitOffered waits until just these many GPUs are allocatable and published.
func (s *suite) waitOffered(t *testing.T, within time.Duration, allocatable int64, published int) {
	t.Helper()
	began := time.Now()
	s.World.UntilWithin(t, within, fmt.Sprintf("%d GPUs are allocatable", allocatable), func() error {
		if n := s.World.Allocatable(node); n != allocatable {
			return fmt.Errorf("%d; %+v", n, s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Withheld)
		}
		return nil
	})
	for {
		n := len(s.devices(t))
		if n == published {
			return
		}
		require.Lessf(t, time.Since(began), within, "%d devices are published, not %d: %+v", n, published, s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Withheld)
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *suite) podsKeepTheirGPUs(t *testing.T) {
	s.Apply(t, "gpuready.yaml", "dra-driver.yaml", "simulated-driver.yaml")
	s.World.WaitDaemonSets(t, e2e.Namespace, "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "gpu-dra-driver", "nvidia-operator-validator")
	s.waitOffered(t, patience, 8, 0)
	s.classic(t, "classic", false, busy...)
	s.classic(t, "initial", true, busy...)
	s.waitRunning(t, "classic")
	until(t, "the init container computes", func() error {
		if n := len(s.requireNoneTwice(t, node)); n != 2 {
			return fmt.Errorf("%d GPUs are in use", n)
		}
		return nil
	})
	began := time.Now()
	t.Log("\n" + s.gpu(t, "serve", node, "dra"))
	s.waitOffered(t, patience, 0, 6)
	t.Logf("6 GPUs were published after %v", time.Since(began))
	until(t, "the node's condition names the pod", func() error {
		if text := s.gpu(t, "serve", node); !strings.Contains(text, "HeldByPod") {
			return errors.New(text)
		}
		return nil
	})
	t.Log("\n" + s.gpu(t, "serve", node))
	state := s.State(t, node, nodestate.DevicePlugin)
	require.Equal(t, nodestate.ServeDRA, state.DevicePlugin.Serve)
	require.Len(t, state.DevicePlugin.Withheld, 2)
	text := fmt.Sprintf("%+v", state.DevicePlugin.Withheld)
	require.Contains(t, text, "held by pod default/classic, by the resource nvidia.com/gpu")
	s.KillKubelet(t, node)
	s.runClaim(t, "claimed", "", busy...)
	s.waitRunning(t, "claimed")
	require.Len(t, s.requireNoneTwice(t, node), 3)
	require.Equal(t, corev1.PodRunning, s.World.Pod("default", "classic").Status.Phase)
	require.Zero(t, s.World.Pod("default", "classic").Status.ContainerStatuses[0].RestartCount)
	s.Kubectl(t, "delete", "pod", "classic", "--timeout=60s")
	s.waitOffered(t, released, 0, 7)
	s.Kubectl(t, "delete", "pod", "initial", "--timeout=60s")
	s.waitOffered(t, released, 0, 8)
	t.Log("\n" + s.gpu(t, "serve", node, "--wait", "--timeout=30s"))
}

func (s *suite) claimsKeepTheirGPUs(t *testing.T) {
	began := time.Now()
	s.serve(t, nodestate.ServePlugin)
	s.waitOffered(t, patience, 7, 0)
	t.Logf("7 GPUs were allocatable after %v", time.Since(began))
	withheld := s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Withheld
	require.Len(t, withheld, 1)
	require.Equal(t, "HeldByClaim", string(withheld[0].Reason))
	require.Contains(t, withheld[0].Message, "held by claim default/claimed")
	for i := range 7 {
		s.classic(t, fmt.Sprintf("after-%d", i), false, busy...)
	}
	for i := range 7 {
		s.waitRunning(t, fmt.Sprintf("after-%d", i))
	}
	require.Len(t, s.requireNoneTwice(t, node), 8)
	killed := time.Now()
	_, err := s.Node(node).Exec(t.Context(), "sh", "-c", "kill -9 $(pidof gpu-device-plugin) $(pidof gpu-dra-driver)")
	require.NoError(t, err)
	until(t, "the device plugin runs again", func() error {
		if state := s.State(t, node, nodestate.DevicePlugin); !state.DevicePlugin.Registered || state.Time.Before(killed) || len(state.DevicePlugin.Withheld) != 1 {
			return fmt.Errorf("%+v", state)
		}
		return nil
	})
	require.Equal(t, corev1.PodRunning, s.World.Pod("default", "claimed").Status.Phase)
	s.remove(t, "claimed")
	s.waitOffered(t, released, 8, 0)
	s.Kubectl(t, "delete", "pods", "-l", "load=classic", "--timeout=60s")
}

func (s *suite) anUnknownLabelIsRefused(t *testing.T) {
	s.serve(t, "both")
	until(t, "the device plugin refuses it by name", func() error {
		if state := s.State(t, node, nodestate.DevicePlugin); state.Reason != "ServeLabelRefused" || !strings.Contains(state.Message, `"both"`) {
			return fmt.Errorf("%s: %s", state.Reason, state.Message)
		}
		return nil
	})
	s.waitOffered(t, released, 8, 0)
	s.serve(t, "")
	until(t, "it is ready again", func() error {
		if state := s.State(t, node, nodestate.DevicePlugin); state.Phase != nodestate.Ready {
			return fmt.Errorf("%s: %s", state.Reason, state.Message)
		}
		return nil
	})
}

// load keeps pods of both kinds coming and going.
type load struct {
	*suite
	count      int
	born       map[string]time.Time
	claimsOnly bool
}

const claimTemplate = `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: { name: load }
spec: { spec: { devices: { requests: [ { name: gpu, exactly: { deviceClassName: gpu.nvidia.com } } ] } } }
`

// tick removes pods that have ended or wait too long, and starts others.
func (l *load) tick(t *testing.T) {
	t.Helper()
	pods := l.World.Client.CoreV1().Pods("default")
	waiting := map[string]int{}
	for _, p := range l.World.Pods("default", "load") {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		switch {
		case p.DeletionTimestamp != nil:
		case ended, p.Status.Phase == corev1.PodPending && time.Since(l.born[p.Name]) > 20*time.Second:
			_ = pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{})
			delete(l.born, p.Name)
		case p.Status.Phase == corev1.PodPending:
			waiting[p.Labels["load"]]++
		}
	}
	for _, kind := range []string{"classic", "claim"} {
		if waiting[kind] >= 4 || kind == "classic" && l.claimsOnly {
			continue
		}
		l.count++
		name := fmt.Sprintf("load-%d", l.count)
		l.born[name] = time.Now()
		command := []string{"vectoradd", "--for", fmt.Sprintf("%ds", 2+rand.IntN(8)), "--every", "200ms", "--elements", "1000"}
		if kind == "classic" {
			l.classic(t, name, rand.IntN(6) == 0, command...)
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"load": "claim"}}}
		pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, new(int64(1))
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("load")}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: l.Image("cuda-samples"), ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}
		_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// offered returns the GPUs that somebody offers, by the names of their device nodes.
func (s *suite) offered(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for name := range s.devices(t) {
		all["nvidia"+strings.TrimPrefix(name, "gpu-")] = true
	}
	state := s.State(t, node, nodestate.DevicePlugin)
	minor := map[string]string{}
	for _, g := range state.DevicePlugin.Inventory {
		minor[string(g.UUID)] = fmt.Sprintf("nvidia%d", g.Minor)
	}
	for _, r := range state.DevicePlugin.Resources {
		for _, d := range r.Devices {
			if d.Health == nodestate.Healthy {
				all[minor[string(d.GPU)]] = true
			}
		}
	}
	return all
}

// disturb kills an agent, deletes its pod, or kills the kubelet, or does nothing.
func (s *suite) disturb(t *testing.T) {
	t.Helper()
	programs := map[string]string{"gpu-device-plugin": "nvidia-device-plugin-daemonset", "gpu-dra-driver": "gpu-dra-driver"}
	program := slices.Sorted(maps.Keys(programs))[rand.IntN(2)]
	switch rand.IntN(5) {
	case 0:
		s.KillKubelet(t, node)
	case 1:
		_, _ = s.Node(node).Exec(t.Context(), "sh", "-c", "kill -9 $(pidof "+program+")")
	case 2, 3: // without the kubelet's back-off
		for _, p := range s.World.Pods(e2e.Namespace, "app="+programs[program]) {
			_ = s.World.Client.CoreV1().Pods(e2e.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
		}
	}
}

// agentsRun reports whether device plugin and DRA driver run: the kubelet delays the start of a container
// that was killed.
func (s *suite) agentsRun(t *testing.T) bool {
	t.Helper()
	_, err := s.Node(node).Exec(t.Context(), "sh", "-c", "pidof gpu-device-plugin && pidof gpu-dra-driver")
	return err == nil
}

// isHeldByAClaim reports whether the device plugin says that a claim holds the GPU of a minor number, and that
// claim exists: its pod has not ended before the kubelet has had the claim unprepared.
func (s *suite) isHeldByAClaim(t *testing.T, minor int) bool {
	t.Helper()
	info := s.State(t, node, nodestate.DevicePlugin).DevicePlugin
	for _, w := range info.Withheld {
		at := slices.IndexFunc(info.Inventory, func(g nodestate.GPU) bool { return g.UUID == w.GPU })
		_, text, _ := strings.Cut(w.Message, "held by claim default/")
		claim, _, _ := strings.Cut(text, " ")
		if at < 0 || info.Inventory[at].Minor != minor || w.Reason != "HeldByClaim" || claim == "" {
			continue
		}
		_, err := s.World.Client.ResourceV1().ResourceClaims("default").Get(t.Context(), claim, metav1.GetOptions{})
		return err == nil
	}
	return false
}

func (s *suite) randomSwitches(t *testing.T) {
	switches := countOr(t, switchesVariable, 2)
	s.ApplyText(t, claimTemplate)
	l := &load{suite: s, born: map[string]time.Time{}}
	idle := map[string]time.Time{} // since when neither a container has a GPU nor anybody offers it
	longest, seen := time.Duration(0), 0
	modes := []string{nodestate.ServeDRA, nodestate.ServePlugin}
	// A kubelet that was killed may start no pod in two switches.
	for i := 0; i < switches || seen == 0 && i < 10*switches; i++ {
		s.serve(t, modes[i%2])
		clear(idle) // the switch is the reason
		at, end := time.Now().Add(time.Duration(rand.IntN(6000))*time.Millisecond), time.Now().Add(time.Duration(5+rand.IntN(12))*time.Second)
		for disturbed := false; time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			if !disturbed && time.Now().After(at) {
				disturbed = true
				s.disturb(t)
			}
			l.tick(t)
			held := s.requireNoneTwice(t, node)
			seen = max(seen, len(held))
			if !s.agentsRun(t) {
				clear(idle)
				continue
			}
			offered := s.offered(t)
			for n := range 8 {
				name := fmt.Sprintf("nvidia%d", n)
				since, was := idle[name]
				switch {
				case held[name] || offered[name] || s.isHeldByAClaim(t, n):
					delete(idle, name)
				case !was:
					idle[name] = time.Now()
				default:
					longest = max(longest, time.Since(since))
					require.Lessf(t, time.Since(since), released, "%s is idle, and nobody offers it: %+v", name, s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Withheld)
				}
			}
		}
	}
	t.Logf("%d switches, %d pods, up to %d GPUs in use; the longest time that a GPU was idle and offered by nobody: %v", switches, l.count, seen, longest)
	require.Positive(t, seen)
	s.serve(t, "")
	s.Kubectl(t, "delete", "pods", "-l", "load", "--timeout=60s")
	s.waitOffered(t, patience, 8, 0)
	require.Empty(t, slices.Sorted(maps.Keys(s.holders(t, node))))
}
