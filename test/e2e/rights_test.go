package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// aTokenIsGoodForItsOwnNodeOnly uses the token of the validator on n1 from elsewhere. It must
// not allow writes about n2, nor pods there.
func aTokenIsGoodForItsOwnNodeOnly(t *testing.T, s *Suite) {
	client := s.clientOf(t, "n1")
	patchStatus := func(node string) error {
		patch := []byte(`{"status":{"conditions":[{"type":"GPUReady","status":"True","reason":"Forged","message":"by a token of n1"}]}}`)
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	require.NoError(t, patchStatus("n1"), "its own node")
	require.Truef(t, forbidden(patchStatus("n2")), "%v", patchStatus("n2"))

	cordon := func(node string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/unschedulable","value":true}]`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, node := range []string{"n1", "n2"} {
		require.Truef(t, forbidden(cordon(node)), "cordoning %s: %v", node, cordon(node))
	}

	label := func(node, name string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"forged"},"annotations":{"gpuready.io/feature-labels":"x"}}}`, name)
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.NoError(t, label("n1", "nvidia.com/gpu.machine"), "what its own GPUs are")
	require.Truef(t, forbidden(label("n2", "nvidia.com/gpu.machine")), "%v", label("n2", "nvidia.com/gpu.machine"))
	for _, name := range []string{"nvidia.com/gpu.deploy.driver", nodestate.ConfigLabel, "node-role.kubernetes.io/control-plane"} {
		require.Truef(t, forbidden(label("n1", name)), "%s: %v", name, label("n1", name))
	}

	pod := func(node string) error {
		_, err := client.CoreV1().Pods(Namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "forged", Namespace: Namespace},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: s.Image("cuda-samples")}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.Truef(t, forbidden(pod("n2")), "%v", pod("n2"))

	_, err := client.CoreV1().Secrets(Namespace).List(t.Context(), metav1.ListOptions{})
	require.Truef(t, apierrors.IsForbidden(err), "secrets: %v", err)
}

// forbidden reports whether an admission policy refused the request. RBAC alone would allow it.
func forbidden(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'gpuready-validator-")
}

// clientOf returns a client with the token of the validator's pod on a node.
func (s *Suite) clientOf(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	for _, p := range s.World.Pods(Namespace, "app=nvidia-operator-validator") {
		if p.Spec.NodeName != node {
			continue
		}
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
		}}
		token, err := s.World.Client.CoreV1().ServiceAccounts(Namespace).CreateToken(t.Context(), p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		require.NoError(t, err)
		config := rest.AnonymousClientConfig(s.World.Config)
		config.BearerToken = token.Status.Token
		client, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		return client
	}
	t.Fatalf("node %s has no validator", node)
	return nil
}

// anAgentWithoutInjectionReportsIt removes the annotation by which the toolkit recognizes our
// pods. The device plugin then gets no devices, and must report exactly that.
func anAgentWithoutInjectionReportsIt(t *testing.T, s *Suite) {
	const ds = "nvidia-device-plugin-daemonset"
	annotate := func(value string) {
		s.Kubectl(t, "-n", Namespace, "patch", "daemonset", ds, "--type=merge", "-p",
			`{"spec":{"template":{"metadata":{"annotations":{"gpuready.io/management":"`+value+`"}}}}}`)
	}
	annotate("false")
	s.World.Until(t, "the device plugin says InjectionMissing", func() error {
		for _, node := range []string{"n1", "n2"} {
			if state := s.State(t, node, nodestate.DevicePlugin); state.Reason == "InjectionMissing" {
				return nil
			}
		}
		return fmt.Errorf("n1 says %+v", s.State(t, "n1", nodestate.DevicePlugin))
	})
	var output string
	s.World.Until(t, "its container has ended with its reason", func() error {
		for _, p := range s.World.Pods(Namespace, "app="+ds) {
			for _, c := range p.Status.ContainerStatuses {
				for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
					if end != nil && p.Annotations["gpuready.io/management"] == "false" {
						output = end.Message
						return nil
					}
				}
			}
		}
		return fmt.Errorf("it runs")
	})
	require.Contains(t, output, "InjectionMissing")
	for _, other := range []string{"NoPermission", "DriverFailed", "NoDriver", "DriverVersionMismatch"} {
		require.NotContains(t, output, other)
	}
	annotate("true")
	s.World.WaitDaemonSets(t, Namespace, ds)
	s.World.WaitAllocatable(t, 8, "n1", "n2")
}
