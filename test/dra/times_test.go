package dra

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// timedPods is the number of pods of each kind that TestClaimToRunning starts.
const timedPods = 20

// requireBench skips a test that only measures, unless make bench-dra runs it.
func requireBench(t *testing.T) {
	t.Helper()
	if os.Getenv("GPUREADY_BENCH") == "" {
		t.Skip("GPUREADY_BENCH is not set: make bench-dra runs it")
	}
}

// TestClaimToRunning measures the time from the creation of a pod until its container runs, the image
// being present: of pods that request nvidia.com/gpu on a node with a device plugin, and of pods with a
// claim on a node with the DRA driver, in alternation. Then it removes the driver and measures when its
// devices are gone from the API.
func TestClaimToRunning(t *testing.T) {
	requireBench(t)
	s := &suite{e2e.Up(t, cluster.Config{Nodes: 2})}
	s.Apply(t, "gpuready.yaml", "dra-driver.yaml", "simulated-driver.yaml")
	s.Kubectl(t, "label", "node", "n2", nodestate.ServeLabel+"="+nodestate.ServeDRA)
	s.World.WaitDaemonSets(t, e2e.Namespace, "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "gpu-dra-driver", "nvidia-operator-validator")
	s.World.WaitAllocatable(t, 8, "n1")
	s.WaitPublished(t, "n2", 8)
	s.ApplyText(t, claimTemplate)
	times := map[string][]time.Duration{}
	for range timedPods {
		for kind, node := range map[string]string{"classic": "n1", "claim": "n2"} {
			took := s.timePod(t, kind, node)
			t.Logf("%s: %v", kind, took)
			times[kind] = append(times[kind], took)
		}
	}
	for _, kind := range []string{"classic", "claim"} {
		slices.Sort(times[kind])
		t.Logf("%-8s pod created → running: median %v, minimum %v, maximum %v of %d", kind, times[kind][timedPods/2], times[kind][0], times[kind][timedPods-1], timedPods)
	}
	began := time.Now()
	s.Kubectl(t, "-n", e2e.Namespace, "delete", "daemonset/gpu-dra-driver", "--timeout=60s")
	s.WaitPublished(t, "n2", 0)
	t.Logf("the driver removed → its devices are gone from the API: %v", time.Since(began))
}

// timePod runs a pod of a kind on a node, returns the time from its creation until it runs, and deletes
// it.
func (s *suite) timePod(t *testing.T, kind, node string) time.Duration {
	t.Helper()
	pods := s.World.Client.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "timed"}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: node}, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{Name: "main", Image: s.Image("cuda-samples"), ImagePullPolicy: corev1.PullIfNotPresent, Command: busy}},
	}}
	if kind == "claim" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("load")}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	} else {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}
	watch, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=timed", TimeoutSeconds: new(int64(patience / time.Second))})
	require.NoError(t, err)
	defer watch.Stop()
	began, took := time.Now(), time.Duration(0)
	_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	for event := range watch.ResultChan() {
		p, is := event.Object.(*corev1.Pod)
		require.Truef(t, is, "%+v", event.Object)
		if took == 0 && p.Status.Phase == corev1.PodRunning {
			took = time.Since(began)
			require.NoError(t, pods.Delete(t.Context(), "timed", metav1.DeleteOptions{}))
		}
		if event.Type == "DELETED" {
			require.NotZero(t, took, "the %s pod has ended before it ran: %+v", kind, p.Status)
			return took
		}
	}
	t.Fatalf("the %s pod did not run and end within %v", kind, patience)
	return 0
}

// The fleet of TestFleetWrites: of its nodes, one in a hundred changes.
const (
	churnNodes   = 5000
	churnChanged = churnNodes / 100
)

// TestFleetWrites counts what the drivers of a large cluster write when a GPU of one node in a hundred
// breaks and is repaired. The drivers of those nodes publish with kubeletplugin's own controller; the slices
// of the other nodes lie in the API server beside theirs.
func TestFleetWrites(t *testing.T) {
	requireBench(t)
	s := &suite{e2e.Up(t, cluster.Config{Bare: true})}
	client := s.unlimitedClient(t)
	began := time.Now()
	createAll(t, churnNodes, func(i int) error { return createFleetNode(t, client, fmt.Sprintf("fleet-%04d", i)) })
	t.Logf("%d nodes of %d GPUs, made in %v", churnNodes, fleetGPUs, time.Since(began))
	controllers := make([]*resourceslice.Controller, churnChanged)
	publish := func(i int, health nodestate.Condition) resourceslice.DriverResources {
		name := fmt.Sprintf("fleet-%04d", i*100)
		state := fleetState(name)
		state.DevicePlugin.Inventory[3].Condition = health
		return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{name: {Slices: inventory.New(state, inventory.Problem{}, fleetRoot).Slices()}}}
	}
	healthy := nodestate.Condition{Health: nodestate.Healthy}
	var group errgroup.Group
	for i := range controllers {
		group.Go(func() (err error) {
			name, resources := fmt.Sprintf("fleet-%04d", i*100), publish(i, healthy)
			node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			controllers[i], err = resourceslice.StartController(t.Context(), resourceslice.Options{
				DriverName: inventory.Driver, KubeClient: client, Resources: &resources,
				Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}})
			return err
		})
	}
	require.NoError(t, group.Wait())
	defer func() {
		for _, c := range controllers {
			c.Stop()
		}
	}()
	const quiet = 40 * time.Second // beyond the controllers' delay of 30 s after an event
	for _, period := range []string{"after their start", "idle"} {
		before := s.sliceWrites(t)
		select {
		case <-t.Context().Done():
		case <-time.After(quiet):
		}
		t.Logf("writes of %d drivers, %s, in %v: %d", churnChanged, period, quiet, s.sliceWrites(t)-before)
	}
	for _, change := range []struct {
		what   string
		health nodestate.Condition
		taints int
	}{
		{"a GPU breaks", nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Since: time.Now()}, churnChanged},
		{"it is repaired", healthy, 0},
	} {
		before, began := s.sliceWrites(t), time.Now()
		for i, c := range controllers {
			resources := publish(i, change.health)
			c.Update(&resources)
		}
		until(t, fmt.Sprintf("%d devices have a taint", change.taints), func() error {
			if n := s.countTaints(t, client); n != change.taints {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		t.Logf("%s on %d nodes: %d writes, the last within %v", change.what, churnChanged, s.sliceWrites(t)-before, time.Since(began))
	}
}

// countTaints returns the number of devices with a taint in the cluster.
func (s *suite) countTaints(t *testing.T, client kubernetes.Interface) int {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	n := 0
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			n += len(d.Taints)
		}
	}
	return n
}

// sliceWrites returns how many requests the API server has had that write ResourceSlices.
func (s *suite) sliceWrites(t *testing.T) int {
	t.Helper()
	data, err := s.World.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	n := 0
	for line := range bytes.Lines(data) {
		text := string(line)
		if !strings.HasPrefix(text, "apiserver_request_total{") || !strings.Contains(text, `resource="resourceslices"`) {
			continue
		}
		for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
			if strings.Contains(text, `verb="`+verb+`"`) {
				count, err := strconv.ParseFloat(strings.TrimSpace(text[strings.LastIndex(text, " "):]), 64)
				require.NoError(t, err)
				n += int(count)
			}
		}
	}
	return n
}
