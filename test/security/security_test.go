package security

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// patience limits every wait. The expected times are seconds.
const patience = 3 * time.Minute

// attack is one attempt to do harm. Attacks share a node, and each restores its state.
type attack struct {
	name string
	run  func(t *testing.T, n *node)
}

// attacks lists the attacks in order.
var attacks = []attack{
	{"agents write nothing else of the host", agentsWriteNothingElse},
	{"workloads get GPUs alone", workloadsGetGPUsAlone},
	{"a client of MPS fills and removes what it is given", mpsClientFillsAndRemoves},
	{"metrics ports are flooded", metricsPortsAreFlooded},
	{"the hooks of a GPU's container write through a volume", hookWritesThroughAVolume},
	{"an ordinary pod still gets its GPU", ordinaryPodGetsItsGPU}, // stays last
}

// TestSecurity runs all attacks on one node with 8 simulated GPUs.
func TestSecurity(t *testing.T) {
	s := e2e.Up(t, cluster.Config{Nodes: 1, Images: hostileImages(t)})
	n := &node{Suite: s, name: "n1"}
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	s.World.WaitAllocatable(t, 8, n.name)
	for _, a := range attacks {
		if !t.Run(a.name, func(t *testing.T) { a.run(t, n) }) {
			s.LogDiagnostics(t)
		}
	}
}

// toolboxImage has busybox, with a shell and the usual commands in /bin.
const toolboxImage = "docker.io/library/toolbox:v1"

// hostileImages builds the attackers' images: a toolbox, and those that an attack adds here. It returns
// their archives.
func hostileImages(t *testing.T) []string {
	if os.Getenv("GPUREADY_E2E") == "" {
		return nil
	}
	return []string{
		buildImage(t, binaries.Image{Name: toolboxImage}),
		buildImage(t, greedy()),
		buildHidingImage(t),
	}
}

// buildImage adds busybox to an image, writes its archive and returns the file.
func buildImage(t *testing.T, i binaries.Image) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err, "install busybox-static")
	files, links := map[string][]byte{"/bin/busybox": busybox}, map[string]string{}
	for applet := range strings.FieldsSeq("cat chmod cp dd echo false find grep id ln ls mkdir mkfifo mknod mount mv nc rm sh sleep stat touch true umount") {
		links["/bin/"+applet] = "busybox"
	}
	maps.Copy(files, i.Files)
	maps.Copy(links, i.Links)
	i.Files, i.Links = files, links
	if i.Env == nil {
		i.Env = []string{"PATH=/bin"}
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, binaries.WriteImage(file, i))
	return file
}

// node is the attacked node.
type node struct {
	*e2e.Suite
	name string
}

// hostPath returns the path under which this process sees a path of the node.
func (n *node) hostPath(path string) string { return n.Node(n.name).PathOnNode(path) }

// shellPod returns a pod in the namespace default that runs a script in the toolbox
// image as an unprivileged user. Attacks change it before they create it.
func (n *node) shellPod(name, script string) *corev1.Pod {
	no, user := false, int64(1000)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: n.name, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "main", Image: toolboxImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sh", "-c", script},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &user, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// withGPUs makes a pod request GPUs, so that the scheduler places it.
func withGPUs(pod *corev1.Pod, gpus int64) *corev1.Pod {
	pod.Spec.NodeName = ""
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{e2e.GPU: *resource.NewQuantity(gpus, resource.DecimalSI)}
	return pod
}

// create creates a pod, which is deleted when the test ends.
func (n *node) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pods := n.World.Client.CoreV1().Pods(pod.Namespace)
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
	})
	n.World.Until(t, "pod "+pod.Name+" is known", func() error {
		if n.World.Pod(pod.Namespace, pod.Name) == nil {
			return errors.New("it is not")
		}
		return nil
	})
}

// starts waits until a container of a pod runs, has ended, or was refused, and returns the pod.
func (n *node) starts(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var now *corev1.Pod
	n.World.Until(t, "pod "+pod.Name+" has started or was refused", func() error {
		now = n.World.Pod(pod.Namespace, pod.Name)
		if now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded {
			return nil
		}
		for _, c := range now.Status.ContainerStatuses {
			if c.State.Waiting == nil || strings.HasSuffix(c.State.Waiting.Reason, "Error") || c.State.Waiting.Reason == "CrashLoopBackOff" {
				return nil
			}
		}
		return fmt.Errorf("it is %s", now.Status.Phase)
	})
	return now
}

// output creates a pod, waits for its end and returns its output and phase.
func (n *node) output(t *testing.T, pod *corev1.Pod) (string, corev1.PodPhase) {
	t.Helper()
	n.create(t, pod)
	ended := n.World.WaitEnded(t, pod.Namespace, pod.Name)
	out, err := n.TryKubectl(t, "-n", pod.Namespace, "logs", pod.Name)
	require.NoErrorf(t, err, "%+v\n%s", ended.Status, out)
	return out, ended.Status.Phase
}

func ordinaryPodGetsItsGPU(t *testing.T, n *node) {
	n.World.WaitAllocatable(t, 8, n.name)
	out, phase := n.Result(t, e2e.Job{Name: "ordinary", GPUs: 1, Command: []string{"vectoradd"}})
	require.Equal(t, corev1.PodSucceeded, phase, out)
	require.Contains(t, out, "Test PASSED")
}
