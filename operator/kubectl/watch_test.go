package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// kubeconfigOf writes a kubeconfig with two contexts: c, which is the server's, and nobody.
func kubeconfigOf(t *testing.T, url string) string {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"nobody",
		"clusters":[{"name":"c","cluster":{"server":%q}},{"name":"n","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c"}},{"name":"nobody","context":{"cluster":"n"}}]}`, url), 0o600))
	return file
}

func TestWatchPrintsWhatChanges(t *testing.T) {
	changes := make(chan *v1.ClusterPolicy)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{policy()}})
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case p := <-changes:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": p})
				w.(http.Flusher).Flush()
			}
		}
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- runCommand(ctx, []string{"status", "-w", "--context", "c", "--kubeconfig", kubeconfigOf(t, server.URL)}, in, &stderr)
		_ = in.Close()
	}()
	read := func(until string) string {
		var text strings.Builder
		part := make([]byte, 64<<10)
		for !strings.Contains(text.String(), until) {
			n, err := out.Read(part)
			require.NoError(t, err, "%s%s", &text, &stderr)
			text.Write(part[:n])
		}
		return text.String()
	}
	require.Contains(t, read("kubectl gpu explain NODE"), "ClusterPolicy gpu-cluster-policy: notReady, 1 of 2 GPU nodes ready")
	changed := policy()
	changed.Status.State, changed.Status.Nodes.Ready = v1.Ready, 2
	changes <- changed
	lines := strings.Split(strings.TrimSpace(read("2 of 2")), "\n")
	require.Len(t, lines, 2, "only the title has changed: %q", lines)
	_, err := time.Parse(time.RFC3339, lines[0])
	require.NoError(t, err)
	require.Equal(t, "ClusterPolicy gpu-cluster-policy: ready, 2 of 2 GPU nodes ready", lines[1])
	cancel()
	require.Zero(t, <-ended, stderr.String())
}

func TestScreenIsRedrawnOnlyWhenItsTextChanges(t *testing.T) {
	began := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	node := func(reason, heartbeat string) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: heartbeat},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "GPUReady", Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(began)}}},
		}
	}
	view := statusView{screen: true}
	show := func(n corev1.Node, after time.Duration, width int) string {
		var w bytes.Buffer
		s := summarize(nil, []corev1.Node{n}, began.Add(after))
		require.NoError(t, view.text(&w, style{Width: width}, s))
		view.last = &s
		return w.String()
	}
	first := show(node("Ready", "1"), time.Second, 80)
	require.True(t, strings.HasPrefix(first, clearScreen), first)
	require.Contains(t, first, "1 of 1 GPU nodes ready")
	require.Empty(t, show(node("Ready", "2"), 2*time.Minute, 80), "a heartbeat changes the Node, and nothing that is shown")
	require.Contains(t, show(node("Degraded", "3"), 3*time.Minute, 80), clearScreen+"No ClusterPolicy")
	require.Empty(t, show(node("Degraded", "4"), 4*time.Minute, 80))
	require.Contains(t, show(node("Degraded", "5"), 5*time.Minute, 60), "Degraded", "the window has another size")
}

func TestWatchBeginsBeforeTheDefinitionIsInstalled(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch policies := strings.HasSuffix(r.URL.Path, "/"+v1.Resource); {
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case policies && asked.Add(1) <= 3:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
		case policies:
			_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{policy()}})
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{}})
		}
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- runCommand(ctx, []string{"status", "-w", "-o", "name", "--context", "c", "--kubeconfig", kubeconfigOf(t, server.URL)}, in, io.Discard)
		_ = in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "clusterpolicy.nvidia.com/gpu-cluster-policy\n", line)
	cancel()
	_, _ = io.Copy(io.Discard, out)
	require.Zero(t, <-ended)
}

func TestTheFlagsOfKubectl(t *testing.T) {
	var headers http.Header
	a := fixture()
	elsewhere := pod("nvidia-device-plugin-daemonset-z", "nvidia-device-plugin-daemonset", "gpu-2", false)
	elsewhere.Namespace = "gpu-operator"
	a.lists["/api/v1/pods"] = []any{elsewhere}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers = r.Header.Clone()
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	config := kubeconfigOf(t, server.URL)
	call := func(args string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		code := runCommand(t.Context(), strings.Fields(args), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	for args, want := range map[string]string{
		"--context c --kubeconfig " + config + " --as alice --as-group a --as-group b status":                            "ClusterPolicy gpu-cluster-policy",
		"status --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b -o yaml":                    "- created: ",
		"status -o name --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b":                    "clusterpolicy.nvidia.com/gpu-cluster-policy\nnode/gpu-2\n",
		"explain gpu-2 -A --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b":                  "gpu-operator/nvidia-device-plugin-daemonset-z",
		"explain gpu-2 -o yaml --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b":             "cluster:\n",
		"status -o wide --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b":                    "NVIDIADRIVER",
		"timers --output=yaml --context=c --kubeconfig=" + config + " --as=alice --as-group=a --as-group=b":              "maxNodeProvisionTime: ",
		"__complete --context c --kubeconfig " + config + " --as alice --as-group a --as-group b explain gpu":            "gpu-1\ngpu-2\n:4\n",
		"__complete explain --context = c --kubeconfig=" + config + " --as=alice --as-group=a --as-group b g":            "gpu-1\ngpu-2\n:4\n",
		"__complete migrate node -o json --context c --kubeconfig=" + config + " --as alice --as-group=a --as-group b g": "gpu-1\ngpu-2\n:4\n",
	} {
		headers = nil
		_, stdout, stderr := call(args)
		require.Contains(t, stdout, want, "%s: %s", args, stderr)
		require.Equal(t, []string{"alice"}, headers["Impersonate-User"], args)
		require.Equal(t, []string{"a", "b"}, headers["Impersonate-Group"], args)
	}
	code, _, stderr := call("status --as-group=a --kubeconfig=" + config)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "--as-group needs --as")
	_, stdout, _ := call("__complete --context c st")
	require.Contains(t, stdout, "status\t")
	_, stdout, _ = call("__complete migrate --context c n")
	require.Contains(t, stdout, "node\n")
}

func TestTheSummaryNamesNodesWithoutAPolicy(t *testing.T) {
	s := summarize(nil, []corev1.Node{*node("gpu-1", "True", "Ready", "8 of 8"), *node("gpu-2", "False", "X", "driver: no")}, now)
	require.Equal(t, []string{"node/gpu-2"}, s.names())
	var wide bytes.Buffer
	require.NoError(t, summarize([]v1.ClusterPolicy{*policy()}, nil, now).text(&wide, style{Width: 1000, Wide: true}))
	requireGolden(t, "status-wide.txt", wide.String())
}
