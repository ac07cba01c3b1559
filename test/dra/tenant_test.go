package dra

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// crashTime returns how long a tenant crashes: ten minutes with GPUREADY_LONG.
func crashTime() time.Duration {
	if os.Getenv("GPUREADY_LONG") != "" {
		return 10 * time.Minute
	}
	return 40 * time.Second
}

// aCrashingTenantTakesNothing has the program of one tenant fault again and again on its partition, by an XID that
// stays on it, while two others hold partitions of the same GPU. The driver evicts for that XID.
func (s *suite) aCrashingTenantTakesNothing(t *testing.T) {
	s.rollout(t, "set", "env", "daemonset/gpu-dra-driver", "EVICT=69")
	for _, tenant := range []string{"quiet", "crashing"} {
		s.Kubectl(t, "create", "namespace", tenant)
	}
	neighbours := map[string]string{"small": "1g.10gb", "large": "3g.40gb"}
	for name, profile := range neighbours {
		s.runTenant(t, "quiet", name, profile)
	}
	for name := range neighbours {
		s.waitTenant(t, "quiet", name)
	}
	taints := s.watchTaints(t)
	crashes, end := 0, time.Now().Add(crashTime())
	for ; time.Now().Before(end) || crashes < 2; crashes++ {
		s.runTenant(t, "crashing", "job", "1g.10gb")
		s.waitTenant(t, "crashing", "job")
		its := s.deviceOf(t, "crashing", "job")
		taints.allow(its)
		s.Gpusim(t, node, "xid", "--gpu", fmt.Sprint(partitioned), "--xid", "69", "--gi", fmt.Sprint(s.instanceAt(t, its)), "--ci", "0")
		s.World.Until(t, "the pod that crashed is evicted", func() error {
			if p := s.World.Pod("crashing", "job"); p != nil && p.DeletionTimestamp == nil {
				return fmt.Errorf("%s", p.Status.Phase)
			}
			return nil
		})
		s.Kubectl(t, "-n", "crashing", "delete", "--ignore-not-found", "--timeout=60s", "pod/job", "resourceclaim/job")
		until(t, "its fault has ended with its partition", func() error {
			for name, d := range s.devices(t) {
				if len(d.Taints) > 0 {
					return fmt.Errorf("%s has %v", name, d.Taints)
				}
			}
			return nil
		})
		s.requireUndisturbed(t, slices.Sorted(maps.Keys(neighbours)))
	}
	require.Empty(t, taints.stop(), "taints of what the others have, or may be given")
	t.Logf("%d crashes in %v", crashes, crashTime())
	for name := range neighbours {
		s.Kubectl(t, "-n", "quiet", "delete", "--timeout=60s", "pod/"+name, "resourceclaim/"+name)
	}
	s.Kubectl(t, "delete", "namespace", "quiet", "crashing", "--timeout=90s")
	s.rollout(t, "set", "env", "daemonset/gpu-dra-driver", "EVICT-")
}

// requireUndisturbed requires that the neighbours run as before, and that the node is ready.
func (s *suite) requireUndisturbed(t *testing.T, pods []string) {
	t.Helper()
	for _, name := range pods {
		p := s.World.Pod("quiet", name)
		require.NotNil(t, p, name)
		require.Nil(t, p.DeletionTimestamp, name)
		require.Equal(t, corev1.PodRunning, p.Status.Phase, name)
		require.Zero(t, p.Status.ContainerStatuses[0].RestartCount, name)
		for _, status := range p.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, r := range status.Resources {
				require.NotEqual(t, corev1.ResourceHealthStatusUnhealthy, r.Health, "%s: %s", name, r.ResourceID)
			}
		}
	}
	if c := s.World.Condition(node, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
		t.Fatalf("the node's condition: %+v", c)
	}
}

// taintWatch records the taints of devices, without missing a moment.
type taintWatch struct {
	mu      sync.Mutex
	allowed map[string]bool // devices that may have a taint
	found   []string        // of others
	stop    func() []string
}

func (w *taintWatch) allow(device string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowed[device] = true
}

func (w *taintWatch) addTaints(slice *resourceapi.ResourceSlice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range slice.Spec.Devices {
		if len(d.Taints) > 0 && !w.allowed[d.Name] {
			w.found = append(w.found, fmt.Sprintf("%s: %v", d.Name, d.Taints))
		}
	}
}

// watchTaints watches the ResourceSlices until stop is called, which returns the taints of devices that were not
// allowed one.
func (s *suite) watchTaints(t *testing.T) *taintWatch {
	t.Helper()
	w := &taintWatch{allowed: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	list, err := s.World.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	watching, err := s.World.Client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	var group sync.WaitGroup
	group.Go(func() {
		for e := range watching.ResultChan() {
			if slice, is := e.Object.(*resourceapi.ResourceSlice); is && e.Type != watch.Deleted {
				w.addTaints(slice)
			}
		}
	})
	w.stop = sync.OnceValue(func() []string {
		cancel()
		watching.Stop()
		group.Wait()
		return w.found
	})
	t.Cleanup(func() { w.stop() })
	return w
}

// runTenant starts a pod of a tenant with a claim of a MIG device of a profile.
func (s *suite) runTenant(t *testing.T, namespace, name, profile string) {
	t.Helper()
	s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %[2]s, namespace: %[1]s }
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: mig.nvidia.com
          selectors: [ { cel: { expression: "device.attributes['gpu.nvidia.com'].profile == '%[3]s'" } } ]
---
apiVersion: v1
kind: Pod
metadata: { name: %[2]s, namespace: %[1]s }
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 1
  resourceClaims: [ { name: gpu, resourceClaimName: %[2]s } ]
  containers:
    - name: main
      image: %[4]s
      imagePullPolicy: IfNotPresent
      command: ["%[5]s"]
      resources: { claims: [ { name: gpu } ] }
`, namespace, name, profile, s.Image("cuda-samples"), strings.Join(busy, `", "`)))
}

func (s *suite) waitTenant(t *testing.T, namespace, name string) {
	t.Helper()
	s.World.Until(t, name+" of "+namespace+" runs", func() error {
		if p := s.World.Pod(namespace, name); p == nil || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

// deviceOf returns the device that a claim has got.
func (s *suite) deviceOf(t *testing.T, namespace, name string) string {
	t.Helper()
	c, err := s.World.Client.ResourceV1().ResourceClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return c.Status.Allocation.Devices.Results[0].Device
}

// instanceAt returns the number of the GPU instance of a partition, whose name ends in its memory slice.
func (s *suite) instanceAt(t *testing.T, device string) (id int) {
	t.Helper()
	start, err := strconv.Atoi(device[strings.LastIndex(device, "-")+1:])
	require.NoError(t, err)
	until(t, "the device plugin lists the GPU instance of "+device, func() error {
		for _, g := range s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Inventory {
			for _, i := range g.Instances {
				if g.Index == partitioned && i.Start == start {
					id = i.ID
					return nil
				}
			}
		}
		return fmt.Errorf("it does not")
	})
	return id
}
