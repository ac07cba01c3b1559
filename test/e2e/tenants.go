package e2e

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// busy is the vectorAdd job, repeated for as long as the pod lives.
var busy = []string{"vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"}

// Tenants are pods that keep their GPUs busy during an event on their node.
type Tenants struct {
	s    *Suite
	node string
	jobs []Job
	held map[string][]string // GPUs by pod
}

// Occupy fills a node with pods of 2 GPUs.
func (s *Suite) Occupy(t *testing.T, node string, pods int) *Tenants {
	t.Helper()
	o := &Tenants{s: s, node: node, held: map[string][]string{}}
	for i := range pods {
		j := Job{Name: fmt.Sprintf("tenant-%d", i), Node: node, GPUs: 2, Command: busy}
		s.Run(t, j)
		o.jobs = append(o.jobs, j)
	}
	o.waitRunning(t)
	for _, j := range o.jobs {
		o.held[j.Name] = o.visibleGPUs(t, j.Name)
	}
	o.requireDistinct(t)
	return o
}

func (o *Tenants) waitRunning(t *testing.T) {
	t.Helper()
	for _, j := range o.jobs {
		o.s.World.Until(t, "pod "+j.Name+" runs", func() error { return checkRunning(o.s.World.Pod("default", j.Name)) })
	}
}

func checkRunning(pod *corev1.Pod) error {
	switch {
	case pod == nil:
		return fmt.Errorf("there is no such pod")
	case pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready:
		return fmt.Errorf("it is %s: %s", pod.Status.Phase, pod.Status.Message)
	}
	return nil
}

func (o *Tenants) visibleGPUs(t *testing.T, pod string) []string {
	t.Helper()
	var list string
	o.s.World.Until(t, "nvidia-smi answers in pod "+pod, func() (err error) {
		// A restarted kubelet does not know its pods for a moment.
		if list, err = o.s.kubectl(t, "exec", pod, "--", "nvidia-smi", "-L"); err != nil {
			return fmt.Errorf("%w: %s", err, list)
		}
		return nil
	})
	return uuids(list)
}

// requireDistinct checks that no GPU is assigned twice.
func (o *Tenants) requireDistinct(t *testing.T) {
	t.Helper()
	owner := map[string]string{}
	for _, j := range o.jobs {
		ids := o.visibleGPUs(t, j.Name)
		require.Lenf(t, ids, 2, "pod %s", j.Name)
		for _, id := range ids {
			require.Emptyf(t, owner[id], "%s is given to %s and to %s", id, owner[id], j.Name)
			owner[id] = j.Name
		}
	}
}

// RequireUndisturbed checks that the same pods still run, were not restarted, and hold the same GPUs.
func (o *Tenants) RequireUndisturbed(t *testing.T) {
	t.Helper()
	o.waitRunning(t)
	for _, j := range o.jobs {
		require.Zerof(t, o.s.World.Pod("default", j.Name).Status.ContainerStatuses[0].RestartCount, "pod %s was restarted", j.Name)
		require.Equalf(t, o.held[j.Name], o.visibleGPUs(t, j.Name), "pod %s", j.Name)
	}
	o.requireDistinct(t)
}

// RequireFree checks that as many GPUs are free on a node and compute.
func (s *Suite) RequireFree(t *testing.T, node string, gpus int64) {
	t.Helper()
	j := Job{Name: fmt.Sprintf("takes-%d-%d", gpus, time.Now().UnixNano()%1e6), Node: node, GPUs: gpus}
	out, phase := s.Result(t, j)
	require.Equal(t, corev1.PodSucceeded, phase, out)
	require.Contains(t, out, "Test PASSED")
}

var uuid = regexp.MustCompile(`UUID: (GPU-[0-9a-f-]+)`)

// uuids returns the UUIDs of the GPUs that nvidia-smi -L lists.
func uuids(list string) []string {
	var ids []string
	for _, m := range uuid.FindAllStringSubmatch(list, -1) {
		ids = append(ids, m[1])
	}
	return ids
}
