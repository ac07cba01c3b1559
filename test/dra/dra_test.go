// Package dra tests gpu-dra-driver on a real cluster, with the manifests that a user gets. `make e2e-dra`
// runs the tests.
package dra

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const (
	node = "n1"
	// patience limits every wait.
	patience = 2 * time.Minute
)

type suite struct{ *e2e.Suite }

// TestDRA runs the scenarios in order, each on the state that the one before left.
func TestDRA(t *testing.T) {
	s := &suite{e2e.Up(t, cluster.Config{Nodes: 1})}
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"three manifests publish 8 GPUs", s.manifestsPublishGPUs},
		{"a pod with a claim computes on one GPU", s.aClaimGetsOneGPU},
		{"a broken GPU gets a taint until it is reset", s.aBrokenGPUGetsATaint},
		{"a device that is allocated twice is refused", s.doubleUseIsRefused},
		{"a killed driver goes on where it was", s.aKilledDriverGoesOn},
		{"an update of the driver keeps claims", s.anUpdateKeepsClaims},
		{"a chosen fault evicts the pod", s.aChosenFaultEvicts},
		{"nothing is lost or given twice while driver and kubelet are killed", s.killsLoseNothing},
		{"after a reboot a claim is prepared again", s.aRebootPreparesAgain},
		{"the API server accepts every example", s.examplesAreAccepted},
		{"two pods share a GPU and a third waits for all of it", s.twoPodsShareAGPU},
		{"pods with classic requests get devices by class", s.classicRequestsGetDevices},
		{"two pods are clients of the MPS control daemon", s.claimsShareByMPS},
		{"a GPU is partitioned as claims need it", s.partitionsAreCreatedForClaims},
		{"a tenant that crashes takes nothing from its neighbours", s.aCrashingTenantTakesNothing},
		{"a GPU without partitions is whole again", s.partitionsEnd},
		{"the driver's token is good for its own node only", s.theTokenIsConfined},
	} {
		if !t.Run(scenario.name, scenario.run) {
			s.LogDiagnostics(t)
			t.Log(s.Kubectl(t, "get", "resourceslices,resourceclaims,deviceclasses", "-A", "-o", "wide"))
			t.FailNow()
		}
	}
}

// until waits until cond returns no error. Unlike the World's, it needs no event of a pod or a node.
func until(t *testing.T, what string, cond func() error) {
	t.Helper()
	limit := time.Now().Add(patience)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// devices returns the published devices by name.
func (s *suite) devices(t *testing.T) map[string]resourceapi.Device {
	t.Helper()
	list, err := s.World.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	all := map[string]resourceapi.Device{}
	for _, slice := range list.Items {
		require.Equal(t, "gpu.nvidia.com", slice.Spec.Driver)
		require.Equal(t, node, *slice.Spec.NodeName)
		for _, d := range slice.Spec.Devices {
			all[d.Name] = d
		}
	}
	return all
}

// waitDevices waits until 8 devices are published and just those of the names have a taint.
func (s *suite) waitDevices(t *testing.T, tainted ...string) {
	t.Helper()
	until(t, fmt.Sprintf("8 devices are published, of which %v have a taint", tainted), func() error {
		devices := s.devices(t)
		found := []string{}
		for name, d := range devices {
			if len(d.Taints) > 0 {
				found = append(found, name)
			}
		}
		if len(devices) != 8 || strings.Join(found, " ") != strings.Join(tainted, " ") {
			return fmt.Errorf("%d devices, tainted: %v", len(devices), found)
		}
		return nil
	})
}

func (s *suite) manifestsPublishGPUs(t *testing.T) {
	s.Apply(t, "gpuready.yaml", "dra-driver.yaml")
	s.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/nvidia-device-plugin-daemonset", "GPU_SERVE=dra")
	s.Apply(t, "simulated-driver.yaml")
	s.World.WaitDaemonSets(t, e2e.Namespace, "nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "gpu-dra-driver", "nvidia-operator-validator")
	s.waitDevices(t)
	require.Empty(t, s.State(t, node, nodestate.DevicePlugin).DevicePlugin.Resources)
	require.Zero(t, s.World.Allocatable(node), "the kubelet has no resource")
	for _, d := range s.devices(t) {
		require.True(t, *d.Attributes["simulated"].BoolValue)
	}
	s.World.Until(t, "the node's condition says that its GPUs are ready", func() error {
		if c := s.World.Condition(node, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

func (s *suite) aClaimGetsOneGPU(t *testing.T) {
	s.Apply(t, "examples/claim.yaml")
	pod := s.World.WaitEnded(t, "default", "claim")
	logs := s.Kubectl(t, "logs", "claim")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase, logs)
	require.Contains(t, logs, "Test PASSED (SIMULATED)")
	s.Kubectl(t, "delete", "pod", "claim", "--timeout=60s")
	s.runClaim(t, "lists", "", "nvidia-smi", "-L")
	s.World.WaitEnded(t, "default", "lists")
	require.Equal(t, 1, strings.Count(s.Kubectl(t, "logs", "lists"), "UUID: GPU-"), "it sees its own GPU only")
	s.remove(t, "lists")
}

// runClaim starts a pod with a claim of one GPU; uuid "": any.
func (s *suite) runClaim(t *testing.T, name, uuid string, command ...string) {
	t.Helper()
	selector := "device.attributes['gpu.nvidia.com'].type == 'gpu'"
	if uuid != "" {
		selector = fmt.Sprintf("device.attributes['gpu.nvidia.com'].uuid == '%s'", uuid)
	}
	s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %[1]s }
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors: [ { cel: { expression: "%[2]s" } } ]
`, name, selector))
	s.runPod(t, name, command...)
}

// runPod starts a pod with the claim of its name.
func (s *suite) runPod(t *testing.T, name string, command ...string) {
	t.Helper()
	args, err := json.Marshal(command)
	require.NoError(t, err)
	s.ApplyText(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: { name: %[1]s }
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 1
  resourceClaims: [ { name: gpu, resourceClaimName: %[1]s } ]
  containers:
    - name: main
      image: %[2]s
      imagePullPolicy: IfNotPresent
      command: %[3]s
      resources: { claims: [ { name: gpu } ] }
`, name, s.Image("cuda-samples"), args))
}

// busy is the vectorAdd job, repeated for as long as the pod lives.
var busy = []string{"vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"}

func (s *suite) waitRunning(t *testing.T, name string) {
	t.Helper()
	s.World.Until(t, name+" runs", func() error {
		if p := s.World.Pod("default", name); p == nil || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

func (s *suite) remove(t *testing.T, name string) {
	t.Helper()
	s.Kubectl(t, "delete", "pod/"+name, "resourceclaim/"+name, "--timeout=60s")
}

func (s *suite) aBrokenGPUGetsATaint(t *testing.T) {
	uuid := *s.devices(t)["gpu-3"].Attributes["uuid"].StringValue
	s.Gpusim(t, node, "xid", "--gpu", "3", "--xid", "79")
	s.waitDevices(t, "gpu-3")
	taint := s.devices(t)["gpu-3"].Taints[0]
	require.Equal(t, "gpuready.io/unhealthy", taint.Key)
	require.Equal(t, "XID", taint.Value)
	s.runClaim(t, "patient", uuid, "vectoradd")
	s.waitUnschedulable(t, "patient")
	s.resetGPU(t, "3", uuid)
	pod := s.World.WaitEnded(t, "default", "patient")
	require.Equal(t, corev1.PodSucceeded, pod.Status.Phase)
	s.remove(t, "patient")
}

// waitUnschedulable waits until the scheduler has not placed a pod.
func (s *suite) waitUnschedulable(t *testing.T, pod string) {
	t.Helper()
	s.World.Until(t, "the scheduler does not place "+pod, func() error {
		p := s.World.Pod("default", pod)
		if p != nil {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", p)
	})
}

// doubleUseIsRefused makes what the scheduler never does: a second claim with the same device.
func (s *suite) doubleUseIsRefused(t *testing.T) {
	s.runClaim(t, "holder", "", busy...)
	s.waitRunning(t, "holder")
	claims := s.World.Client.ResourceV1().ResourceClaims("default")
	holder, err := claims.Get(t.Context(), "holder", metav1.GetOptions{})
	require.NoError(t, err)
	thief := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: holder.Spec}
	thief, err = claims.Create(t.Context(), thief, metav1.CreateOptions{})
	require.NoError(t, err)
	thief.Status.Allocation = holder.Status.Allocation
	thief.Finalizers = append(thief.Finalizers, resourceapi.Finalizer)
	thief, err = claims.Update(t.Context(), thief, metav1.UpdateOptions{})
	require.NoError(t, err)
	thief.Status.Allocation = holder.Status.Allocation
	_, err = claims.UpdateStatus(t.Context(), thief, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.runPod(t, "thief", "vectoradd")
	s.waitRefused(t, "thief", "is in use by claim default/holder")
	s.remove(t, "thief")
}

// waitRefused waits for an Event on a pod with a refusal.
func (s *suite) waitRefused(t *testing.T, pod, text string) {
	t.Helper()
	s.World.Until(t, "an Event of pod "+pod+" says why it does not start", func() error {
		var all []string
		for _, e := range s.World.Events("Pod", pod) {
			all = append(all, e.Message)
			if strings.Contains(e.Message, text) && strings.Contains(e.Message, "next: ") {
				return nil
			}
		}
		return fmt.Errorf("its Events: %q", all)
	})
}

func (s *suite) aKilledDriverGoesOn(t *testing.T) {
	_, err := s.Node(node).Exec(t.Context(), "sh", "-c", "kill -9 $(pidof gpu-dra-driver)")
	require.NoError(t, err)
	s.World.Until(t, "the driver's container was started again", func() error {
		for _, p := range s.World.Pods(e2e.Namespace, "app=gpu-dra-driver") {
			for _, c := range p.Status.ContainerStatuses {
				if c.RestartCount > 0 && c.Ready {
					return nil
				}
			}
		}
		return fmt.Errorf("it was not")
	})
	s.waitDevices(t)
	memory, err := s.Node(node).Exec(t.Context(), "sh", "-c", "grep VmHWM /proc/$(pidof gpu-dra-driver)/status")
	require.NoError(t, err)
	t.Logf("the driver's memory: %s", memory)
	// Another GPU: by the end of the false claim the scheduler counts the holder's as free.
	s.runClaim(t, "next", *s.devices(t)["gpu-5"].Attributes["uuid"].StringValue, "vectoradd")
	require.Equal(t, corev1.PodSucceeded, s.World.WaitEnded(t, "default", "next").Status.Phase)
	s.remove(t, "next")
	require.Equal(t, corev1.PodRunning, s.World.Pod("default", "holder").Status.Phase, "who has a GPU keeps it")
	require.Contains(t, s.ReadFile(t, node, record), `"name":"holder"`)
	s.remove(t, "holder")
	until(t, "nothing is prepared any more", func() error {
		if text := s.ReadFile(t, node, record); !strings.Contains(text, `"claims":[]`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// aRebootPreparesAgain reboots the node under a pod with a claim: it goes on with the same GPU.
func (s *suite) aRebootPreparesAgain(t *testing.T) {
	s.runClaim(t, "survivor", *s.devices(t)["gpu-6"].Attributes["uuid"].StringValue, busy...)
	s.waitRunning(t, "survivor")
	before := s.Node(node).BootID()
	require.Contains(t, s.ReadFile(t, node, record), before)
	s.Reboot(t, node)
	after := s.Node(node).BootID()
	require.NotEqual(t, before, after)
	until(t, "the claim is prepared in the new boot", func() error {
		if text := s.ReadFile(t, node, record); !strings.Contains(text, after) || !strings.Contains(text, `"name":"survivor"`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	s.World.Until(t, "the pod computes again", func() error {
		for _, c := range s.World.Pod("default", "survivor").Status.ContainerStatuses {
			if c.RestartCount > 0 && c.Ready {
				return nil
			}
		}
		return fmt.Errorf("%+v", s.World.Pod("default", "survivor").Status)
	})
	// The job runs until its first failure, and only then prints a result.
	until(t, "the GPU has computed in the new boot", func() error {
		if logs := s.Kubectl(t, "logs", "survivor"); !strings.Contains(logs, "Copy output data from the CUDA device") {
			return fmt.Errorf("%s", logs)
		}
		return nil
	})
	s.waitDevices(t)
	s.remove(t, "survivor")
}

// theTokenIsConfined uses the driver's rights without a token of its pod.
func (s *suite) theTokenIsConfined(t *testing.T) {
	slice := strings.TrimSpace(s.Kubectl(t, "get", "resourceslices", "-o", "name"))
	out := s.RequireRefused(t, "delete", slice, "--as=system:serviceaccount:gpuready:gpu-dra-driver")
	require.Contains(t, out, "gpu-dra-driver may write ResourceSlices of gpu.nvidia.com and of the Node that its pod runs on")
	s.RequireRefused(t, "get", "pods", "--as=system:serviceaccount:gpuready:gpu-dra-driver")
	s.RequireRefused(t, "get", "resourceclaims", "-A", "--as=system:serviceaccount:gpuready:gpu-dra-driver")
}
