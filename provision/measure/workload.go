package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/provision/step"
)

// DefaultImage returns the image of gpuready's CUDA samples. By default it runs vectoradd.
func DefaultImage() string { return "gpuready/cuda-samples:" + version.Release() }

// Workload describes the pods that run on the GPUs. The zero value runs none.
type Workload struct {
	Pod       *corev1.Pod // nil: none
	Namespace string
	Count     int            // number of pods, at least 1, for scenarios that do not choose nodes; else 0
	Result    *regexp.Regexp // matches the line of its log that is the result; nil: the result is that it exits with 0
}

// NewWorkload returns a pod that runs an image's own command with one device of a
// resource. It conforms to the restricted Pod Security Standard.
func NewWorkload(image string, name corev1.ResourceName) *corev1.Pod {
	no, yes := false, true
	user := int64(65532)
	oneDevice := resource.MustParse("1")
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
			Tolerations:     []corev1.Toleration{{Key: string(name), Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "workload", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: oneDevice}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// countResults returns the number of results for which a sample, which is one measurement, waits.
func (w Workload) countResults(nodes []string) int {
	switch {
	case w.Pod == nil:
		return 0
	case w.Count > 0:
		return w.Count
	}
	return len(nodes)
}

func (s *Session) podsPath() string {
	return "/api/v1/namespaces/" + url.PathEscape(s.Options.Workload.Namespace) + "/pods"
}

// createWorkloads creates the pods of the sample: one on each of the nodes or, without nodes,
// Count of them anywhere.
func (s *Session) createWorkloads(ctx context.Context, nodes []string) error {
	w := s.Options.Workload
	if w.Pod == nil {
		return nil
	}
	targets := nodes
	if len(targets) == 0 {
		targets = make([]string, max(w.Count, 1))
	}
	for i, node := range targets {
		pod := w.Pod.DeepCopy()
		pod.ObjectMeta = metav1.ObjectMeta{
			Name: fmt.Sprintf("gpu-provision-%s-%d", s.sampleLabel(), i+1), Namespace: w.Namespace,
			Labels: pod.Labels, Annotations: pod.Annotations,
		}
		pod.Status = corev1.PodStatus{}
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels[step.WorkloadLabel] = s.sampleLabel()
		if node != "" {
			if pod.Spec.NodeSelector == nil {
				pod.Spec.NodeSelector = map[string]string{}
			}
			pod.Spec.NodeSelector[corev1.LabelHostname] = s.hostname(node)
		}
		if err := s.create(ctx, s.podsPath(), pod); err != nil {
			return fmt.Errorf("create the workload %s/%s: %w", w.Namespace, pod.Name, err)
		}
	}
	return nil
}

// hostname returns a node's hostname label, which may differ from its name.
func (s *Session) hostname(node string) string {
	for _, c := range s.Observer.Snapshot() {
		if c.Node != nil && c.Node.Name == node && c.Node.Labels[corev1.LabelHostname] != "" {
			return c.Node.Labels[corev1.LabelHostname]
		}
	}
	return node
}

// removeWorkloads deletes all pods of this run, and waits until they are gone.
func (s *Session) removeWorkloads(ctx context.Context) error {
	if s.Options.Workload.Pod == nil {
		return nil
	}
	var names []string
	_, err := s.Client.List(ctx, s.podsPath(), map[string]string{"labelSelector": step.WorkloadLabel}, func(raw json.RawMessage) error {
		name, label, err := nameAndLabel(raw)
		if err == nil && strings.HasPrefix(label, s.Run+"-") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the workloads in namespace %s: %w", s.Options.Workload.Namespace, err)
	}
	soon := int64(1)
	for _, name := range names {
		if err := s.Client.Delete(ctx, s.podsPath()+"/"+name, &soon, nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the workload %s/%s: %w", s.Options.Workload.Namespace, name, err)
		}
	}
	return s.waitFor(ctx, "wait until the workloads are deleted", func(all []step.Change) (bool, string) {
		for _, c := range all {
			if c.Pod != nil && strings.HasPrefix(c.Pod.Labels[step.WorkloadLabel], s.Run+"-") {
				return false, "pod " + c.Pod.Namespace + "/" + c.Pod.Name + " is there"
			}
		}
		return true, ""
	})
}

// readLogs prepares s.readLog, which the session calls for each change of a pod, from one goroutine.
// It starts to read the log of a workload of this sample once its container runs, until the result
// appears; s.results receives that. stop ends all reading.
func (s *Session) readLogs(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	begun := map[types.UID]bool{}
	s.results = make(chan step.Change)
	s.readLog = func(pod *corev1.Pod) {
		if s.Options.Workload.Result == nil || pod.Labels[step.WorkloadLabel] != s.sampleLabel() || begun[pod.UID] {
			return
		}
		main := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == pod.Spec.Containers[0].Name })
		if main < 0 || pod.Status.ContainerStatuses[main].State.Waiting != nil {
			return
		}
		begun[pod.UID] = true
		readers.Go(func() { s.findResult(ctx, pod) })
	}
	return func() {
		cancel()
		readers.Wait()
	}
}

// findResult reads a log until it has a result, and sends that. If the log ends without one, it sends
// nothing: the sample fails by its timeout.
func (s *Session) findResult(ctx context.Context, pod *corev1.Pod) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var found step.Change
	for {
		var err error
		if found, err = s.findLine(ctx, s.podsPath()+"/"+pod.Name+"/log", pod.Spec.Containers[0].Name, s.Options.Workload.Result); err == nil {
			break
		}
		if ctx.Err() == nil {
			s.Log.Warn("cannot find a result in the workload's log", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
		if errors.Is(err, errNoMatch) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	found.Result = pod.UID
	select {
	case s.results <- found:
	case <-ctx.Done():
	}
}

// errNoMatch is returned for a log that ended without the result.
var errNoMatch = errors.New("the log has no line that --result names")

// findLine follows a container's log until a line matches. It returns errNoMatch if the log
// ends before.
func (s *Session) findLine(ctx context.Context, path, container string, line *regexp.Regexp) (step.Change, error) {
	body, err := s.Client.Stream(ctx, path, map[string]string{"follow": "true", "container": container, "limitBytes": "16777216"})
	if err != nil {
		return step.Change{}, err
	}
	defer func() { _ = body.Close() }()
	scanner := bufio.NewScanner(body)
	for scanner.Scan() {
		if line.Match(scanner.Bytes()) {
			return step.Change{At: s.Clock.Now()}, nil
		}
	}
	if err := scanner.Err(); err != nil {
		return step.Change{}, err
	}
	return step.Change{}, errNoMatch
}
