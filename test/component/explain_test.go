package component_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/lab/built"
)

// Kubectl gpu explain prints what only the cluster knows, and then the same as gpu-validator explain.
func TestBothProgramsExplainANodeInTheSameWords(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }
	for name, c := range map[string]struct {
		status                  corev1.ConditionStatus
		reason, message, result string
	}{
		"ready":     {"True", "Ready", "2 of 2 GPUs ready, driver 580.95.05", "ok: pods can use the GPUs of this node"},
		"no module": {"False", "KernelModuleNotLoaded", "driver: no module nvidia; next: load it", "broken at driver: KernelModuleNotLoaded"},
		"proving":   {"Unknown", "Proving", "plugin: a pod that requests a GPU has not finished yet", "waiting at pod: a pod that requests a GPU has not finished yet"},
		"no GPU":    {"False", "NoGPU", "the PCI bus has no NVIDIA GPU", "no GPU: the PCI bus has no NVIDIA GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			gpus := corev1.ResourceList{"nvidia.com/gpu": quantity.MustParse("2")}
			node := corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "2"}},
				Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"}}},
				Status: corev1.NodeStatus{Capacity: gpus, Allocatable: gpus, Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: "True"},
					{Type: "GPUReady", Status: c.status, Reason: c.reason, Message: c.message, LastTransitionTime: ago(10 * time.Hour), LastHeartbeatTime: ago(time.Minute)},
				}},
			}
			pod := corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "toolkit-x", Labels: map[string]string{"app": "nvidia-container-toolkit-daemonset", "app.kubernetes.io/part-of": "gpuready"}},
				Spec:       corev1.PodSpec{NodeName: "n1"},
				Status:     corev1.PodStatus{Phase: corev1.PodPending, Reason: "Evicted", Message: "the node is full"},
			}
			event := corev1.Event{Source: corev1.EventSource{Component: "gpu-validator"}, Type: "Warning", Reason: "XID", Message: "GPU 1: XID 79", Count: 2, LastTimestamp: ago(5 * time.Hour)}
			config := serveKubeconfig(t, map[string]any{
				"/api/v1/nodes/n1":                  &node,
				"/api/v1/pods":                      &corev1.PodList{Items: []corev1.Pod{pod}},
				"/api/v1/namespaces/default/pods":   &corev1.PodList{Items: []corev1.Pod{pod}},
				"/api/v1/namespaces/default/events": &corev1.EventList{Items: []corev1.Event{event}},
			})
			run := func(program string, args ...string) string {
				cmd := exec.Command(built.Path(t, program), append(args, "--kubeconfig="+config)...)
				cmd.Env = append(os.Environ(), "COLUMNS=80")
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				return regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:]+Z`).ReplaceAllString(string(out), "TIME")
			}
			validator, kubectl := run("gpu-validator", "explain", "--node=n1"), run("kubectl-gpu", "explain", "n1")
			require.Contains(t, validator, c.result)
			cluster, isSame := strings.CutSuffix(kubectl, validator)
			require.True(t, isSame, "kubectl gpu explain:\n%s\ngpu-validator explain:\n%s", kubectl, validator)
			require.NotEmpty(t, cluster)
			require.Contains(t, run("kubectl-gpu", "explain", "n1", "-o", "json"), `"result": "`+c.result)
		})
	}
}

// serveKubeconfig serves these objects, by path, and returns a kubeconfig.
func serveKubeconfig(t *testing.T, objects map[string]any) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		object, found := objects[r.URL.Path]
		switch {
		case strings.Contains(r.URL.Query().Get("fieldSelector"), "status.phase=Pending"):
			object = &corev1.PodList{} // all pods are scheduled
		case !found:
			w.WriteHeader(http.StatusNotFound)
			object = metav1.Status{Status: "Failure", Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
		}
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, server.URL), 0o600))
	return config
}
