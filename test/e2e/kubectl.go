package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is the namespace in which gpuready is installed.
const Namespace = "gpuready"

// manifests is the users' manifest folder, relative to this folder.
const manifests = "../../deployments/static"

// Kubectl runs kubectl as a user would, and returns its output.
func (s *Suite) Kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.kubectl(t, args...)
	require.NoErrorf(t, err, "kubectl %s:\n%s", strings.Join(args, " "), out)
	return out
}

// RequireRefused runs a kubectl command that must be refused, and returns the reason.
func (s *Suite) RequireRefused(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.kubectl(t, args...)
	require.Errorf(t, err, "kubectl %s was not refused:\n%s", strings.Join(args, " "), out)
	return out
}

// TryKubectl runs kubectl, and returns its output and error.
func (s *Suite) TryKubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return s.kubectl(t, args...)
}

func (s *Suite) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.kubectlPath, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	return out.String() + withoutLog(stderr.String()), err
}

// logLine is a line of the log of client-go, which writes it to standard error now and then, such as when a
// watch ends early that nobody waits for any more.
var logLine = regexp.MustCompile(`(?m)^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] .*\n?`)

// withoutLog returns what a client of the API server printed, without the log of client-go.
func withoutLog(printed string) string { return logLine.ReplaceAllString(printed, "") }

// KubectlPath returns the path of the cluster's kubectl, for programs beside the test.
func (s *Suite) KubectlPath() string { return s.kubectlPath }

// Shell runs a command line of the documentation in a folder, with the cluster's kubectl.
func (s *Suite) Shell(t *testing.T, dir, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "PATH="+filepath.Dir(s.kubectlPath)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "%s:\n%s", line, out)
	return withoutLog(string(out))
}

// Apply applies manifests of deployments/static, as they are.
func (s *Suite) Apply(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.Kubectl(t, "apply", "-f", filepath.Join(manifests, name))
	}
}

// Delete deletes the objects of manifests of deployments/static.
func (s *Suite) Delete(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		s.Kubectl(t, "delete", "--ignore-not-found", "--timeout=120s", "-f", filepath.Join(manifests, name))
	}
}

// Gpusim runs gpusim in the driver's pod on a node, to break or repair a GPU.
func (s *Suite) Gpusim(t *testing.T, node string, args ...string) string {
	t.Helper()
	for _, p := range s.World.Pods(Namespace, "app=nvidia-driver-daemonset") {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			return s.Kubectl(t, append([]string{"-n", Namespace, "exec", p.Name, "--", "gpusim"}, args...)...)
		}
	}
	t.Fatalf("node %s has no driver pod\n%s", node, s.World.Describe())
	return ""
}

// ApplyText applies a manifest that is not a file, or a changed one.
func (s *Suite) ApplyText(t *testing.T, manifest string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	require.NoError(t, os.WriteFile(path, []byte(manifest), 0o644))
	s.Kubectl(t, "apply", "-f", path)
}

// Job is a pod that a user runs.
type Job struct {
	Name     string
	Node     string // "": any node with room
	GPUs     int64
	Resource corev1.ResourceName // the resource that GPUs counts; default: GPU
	Command  []string            // of the cuda-samples image, or an injected program
}

// Run creates the pod, and deletes it at the end of the test.
func (s *Suite) Run(t *testing.T, j Job) {
	t.Helper()
	never := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: j.Name, Namespace: "default"},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &never,
			Containers: []corev1.Container{{
				Name: "main", Image: s.Image("cuda-samples"), Command: j.Command, ImagePullPolicy: corev1.PullIfNotPresent,
			}},
			TerminationGracePeriodSeconds: new(int64),
		},
	}
	if j.Node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: j.Node}
	}
	if j.GPUs > 0 {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{cmp.Or(j.Resource, GPU): *resource.NewQuantity(j.GPUs, resource.DecimalSI)}
	}
	_, err := s.World.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	s.World.Until(t, "pod "+j.Name+" is known", func() error {
		if s.World.Pod("default", j.Name) == nil {
			return errors.New("it is not")
		}
		return nil
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_ = s.World.Client.CoreV1().Pods("default").Delete(ctx, j.Name, metav1.DeleteOptions{})
		_ = s.World.until(ctx, func() error {
			if s.World.Pod("default", j.Name) != nil {
				return context.DeadlineExceeded
			}
			return nil
		})
	})
}

// Result runs a pod to its end, and returns its output and phase.
func (s *Suite) Result(t *testing.T, j Job) (string, corev1.PodPhase) {
	t.Helper()
	s.Run(t, j)
	pod := s.World.WaitEnded(t, "default", j.Name)
	out, err := s.kubectl(t, "logs", j.Name)
	require.NoErrorf(t, err, "%s is %s: %s: %s\n%s", j.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, out)
	return out, pod.Status.Phase
}
