package validator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
)

// Paths of a node.
const (
	driverRoot    = "/run/nvidia/driver"
	moduleVersion = driverRoot + "/proc/driver/nvidia/version"
	kubeletSocket = "/var/lib/kubelet/device-plugins/kubelet.sock"
	keptProof     = "/run/nvidia/validations/cuda-proof.json"
)

// The DaemonSets and the labels that keep them off a node.
const (
	toolkit, toolkitLabel     = "nvidia-container-toolkit-daemonset", "nvidia.com/gpu.deploy.container-toolkit"
	plugin, pluginLabel       = "nvidia-device-plugin-daemonset", "nvidia.com/gpu.deploy.device-plugin"
	validator, validatorLabel = "nvidia-operator-validator", "nvidia.com/gpu.deploy.operator-validator"
)

// patience limits how long anything may take; the actual time is printed.
const patience = 3 * time.Minute

// node is the node to break.
type node struct {
	*e2e.Suite
	name string
	gpus int
}

// until retries cond many times a second until it returns no error. cond may read files of the node, its
// logs and the API server.
func (n *node) until(t *testing.T, what string, cond func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %v until %s:\n%v\n%s", patience, what, err, n.World.Describe())
		}
	}
}

// path returns the path under which this process sees a path of the node.
func (n *node) path(path string) string { return n.Node(n.name).PathOnNode(path) }

// gpusim breaks or repairs the node's simulated driver.
func (n *node) gpusim(t *testing.T, command string, args ...string) {
	t.Helper()
	// A mend after a failure is run when t.Context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program("gpusim"), append([]string{command, "--root", n.path(driverRoot)}, args...)...)
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "gpusim %s: %s", command, out)
}

// program returns the path of a built program.
func program(name string) string { return filepath.Join(os.Getenv("GPUREADY_E2E"), name) }

// reset removes a GPU and restores it in a healthy state, once the device plugin has noticed the removal:
// that is the only evidence of a reset.
func (n *node) reset(t *testing.T, gpu string) {
	t.Helper()
	n.gpusim(t, "lose", "--gpu", gpu, "--how", "gone", "--xid=false")
	n.until(t, "the device plugin has seen that the GPU is gone", func() error {
		faults := n.State(t, n.name, nodestate.DevicePlugin).DevicePlugin.Faults
		for _, f := range faults {
			if f.Evidence == "reset" {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", faults)
	})
	n.gpusim(t, "restore", "--gpu", gpu)
}

// read, write, remove and rename act on files of the node.
func (n *node) read(t *testing.T, path string) string { return n.ReadFile(t, n.name, path) }

func (n *node) write(t *testing.T, path, content string) { n.WriteFile(t, n.name, path, content) }

func (n *node) remove(t *testing.T, path string) { n.RemoveFile(t, n.name, path) }

func (n *node) rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(n.path(from), n.path(to)))
}

// signal sends a signal to a program of the node, by the IDs of its processes there.
func (n *node) signal(t *testing.T, signal, program string) {
	t.Helper()
	const longest = 15 // the kernel's limit for a name
	comm := program[:min(len(program), longest)] + "\n"
	all, err := filepath.Glob(n.path("/proc/[0-9]*/comm"))
	require.NoError(t, err)
	sent := 0
	for _, path := range all {
		if name, err := os.ReadFile(path); err != nil || string(name) != comm {
			continue
		}
		_, err := n.Node(n.name).Exec(t.Context(), "kill", "-"+signal, filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		sent++
	}
	require.NotZerof(t, sent, "no %s runs on %s", program, n.name)
}

// label labels the node; "" removes the label.
func (n *node) label(t *testing.T, key, value string) {
	t.Helper()
	arg := key + "=" + value
	if value == "" {
		arg = key + "-"
	}
	n.Kubectl(t, "label", "--overwrite", "node", n.name, arg)
}

// pod returns the pod of a DaemonSet on the node, or nil.
func (n *node) pod(daemonset string) *corev1.Pod {
	for _, p := range n.World.Pods(e2e.Namespace, "app="+daemonset) {
		if p.Spec.NodeName == n.name && p.DeletionTimestamp == nil {
			return p
		}
	}
	return nil
}

// gone waits until the node has no pod of a DaemonSet.
func (n *node) gone(t *testing.T, daemonset string) {
	t.Helper()
	n.until(t, daemonset+" is gone", func() error {
		for _, p := range n.World.Pods(e2e.Namespace, "app="+daemonset) {
			if p.Spec.NodeName == n.name {
				return fmt.Errorf("there is %s", p.Name)
			}
		}
		return nil
	})
}

// restart recreates a DaemonSet's pod. A new validator has proven nothing yet.
func (n *node) restart(t *testing.T, daemonset string) {
	t.Helper()
	p := n.pod(daemonset)
	require.NotNil(t, p)
	require.NoError(t, n.World.Client.CoreV1().Pods(e2e.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// unregister hides the kubelet's socket from the device plugin.
func (n *node) unregister(t *testing.T) { n.rename(t, kubeletSocket, kubeletSocket+".away") }

// register restores it.
func (n *node) register(t *testing.T) { n.rename(t, kubeletSocket+".away", kubeletSocket) }

// proveAgain has the plugin's layer proven again, from the beginning.
func (n *node) proveAgain(t *testing.T) {
	t.Helper()
	n.unregister(t)
	n.until(t, "the plugin's layer is refused", func() error { return n.refused(readiness.Plugin, "") })
	n.register(t)
}

// log returns the validator's log since its start.
func (n *node) log(t *testing.T) string {
	t.Helper()
	p := n.pod(validator)
	if p == nil {
		return ""
	}
	out, err := n.World.Client.CoreV1().Pods(e2e.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: "validator"}).DoRaw(t.Context())
	if err != nil {
		return ""
	}
	return string(out)
}

// layer returns the status that the validator wrote of a layer.
func (n *node) layer(l readiness.Layer) (readiness.Status, error) {
	s, err := readiness.Read(n.path(readiness.DefaultDir), l, n.Node(n.name).BootID())
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("nothing is written of %s", l)
	}
	return s, err
}

// refused returns an error unless a layer is refused for that reason, "" for any.
func (n *node) refused(l readiness.Layer, reason string) error {
	s, err := n.layer(l)
	if err != nil {
		return err
	}
	if s.NotReady == nil || reason != "" && string(s.NotReady.Reason) != reason {
		return fmt.Errorf("%s: %s", l, summary(s))
	}
	return nil
}

func summary(s readiness.Status) string {
	if r := s.NotReady; r != nil {
		return fmt.Sprintf("%s: %s; %s", r.Reason, r.Message, r.Action)
	}
	return "ready: " + s.Proof.Summary
}

// condition returns an error unless the Node's condition has that status and reason, and all the words in
// its message.
func (n *node) condition(status corev1.ConditionStatus, reason string, words ...string) error {
	c := n.World.Condition(n.name, "GPUReady")
	if c == nil || c.Status != status || c.Reason != reason {
		return fmt.Errorf("the condition is %+v", c)
	}
	for _, w := range words {
		if !strings.Contains(c.Message, w) {
			return fmt.Errorf("the condition's message has no %q: %s", w, c.Message)
		}
	}
	return nil
}

// ready returns an error unless all layers are proven, the last one by a pod, and the Node reports it.
func (n *node) ready() error {
	for _, l := range readiness.Layers() {
		s, err := n.layer(l)
		if err != nil {
			return err
		}
		if s.Proof == nil {
			return fmt.Errorf("%s: %s", l, summary(s))
		}
		if l == readiness.Plugin && !strings.Contains(s.Proof.Summary, "vectorAdd passed in a pod") {
			return fmt.Errorf("%s is proven without a pod: %s", l, s.Proof.Summary)
		}
	}
	return n.condition(corev1.ConditionTrue, "Ready", fmt.Sprintf("%d of %d GPUs ready", n.gpus, n.gpus))
}
