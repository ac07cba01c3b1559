package e2e

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpuready/gpuready/test/lab/cluster"
)

const (
	smallMIG  corev1.ResourceName = "nvidia.com/mig-1g.10gb"
	middleMIG corev1.ResourceName = "nvidia.com/mig-3g.40gb"
	wholeMIG  corev1.ResourceName = "nvidia.com/mig-7g.80gb"
)

// TestDevicePluginMIG divides a node's GPUs, and divides them differently while pods use them.
func TestDevicePluginMIG(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 1})
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	s.SetPlugin(t, "MIG_STRATEGY=mixed")
	s.World.WaitAllocatable(t, 8, "n1")
	s.play(t,
		scenario{"a divided GPU is resources of their own", aDividedGPUIsResourcesOfTheirOwn},
		scenario{"a changed layout is served without a restart", aChangedLayoutIsServedWithoutRestart},
		scenario{"with the strategy single its parts are GPUs", withTheStrategySingleItsPartsAreGPUs},
	)
}

// SetPlugin sets environment variables of the device plugin, "NAME=value", and waits for its
// pods.
func (s *Suite) SetPlugin(t *testing.T, variables ...string) {
	t.Helper()
	s.Kubectl(t, append([]string{"-n", Namespace, "set", "env", "daemonset/" + pluginDaemonSet}, variables...)...)
	s.World.WaitDaemonSets(t, Namespace, pluginDaemonSet)
}

func aDividedGPUIsResourcesOfTheirOwn(t *testing.T, s *Suite) {
	before := s.pluginContainer(t, "n1")
	s.Gpusim(t, "n1", "mig", "--gpu", "0", "--layout", "1g.10gb,1g.10gb,3g.40gb")
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 7, smallMIG: 2, middleMIG: 1})
	given := map[string]bool{}
	for _, name := range []string{"small-0", "small-1"} {
		s.Run(t, Job{Name: name, GPUs: 1, Resource: smallMIG, Command: busy})
		s.World.Until(t, name+" runs", func() error { return checkRunning(s.World.Pod("default", name)) })
		parts := s.parts(t, name)
		require.Len(t, parts, 1)
		require.Equal(t, "1g.10gb", parts[0].profile)
		require.Falsef(t, given[parts[0].uuid], "%s is given twice", parts[0].uuid)
		given[parts[0].uuid] = true
	}
	output, phase := s.Result(t, Job{Name: "middle", GPUs: 1, Resource: middleMIG})
	require.Equal(t, corev1.PodSucceeded, phase, output)
	require.Contains(t, output, "Test PASSED")
	s.RequireFree(t, "n1", 7) // the undivided ones
	require.Equal(t, before, s.pluginContainer(t, "n1"))
}

// aChangedLayoutIsServedWithoutRestart checks that no pod or container is created again, not
// even the plugin's, and that pods keep their other GPUs.
func aChangedLayoutIsServedWithoutRestart(t *testing.T, s *Suite) {
	start := time.Now()
	s.Run(t, Job{Name: "whole", GPUs: 1, Command: busy})
	s.World.Until(t, "whole runs", func() error { return checkRunning(s.World.Pod("default", "whole")) })
	before := s.pluginContainer(t, "n1")
	s.Gpusim(t, "n1", "mig", "--gpu", "0", "--layout", "7g.80gb")
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 7, smallMIG: 0, middleMIG: 0, wholeMIG: 1})
	output, phase := s.Result(t, Job{Name: "all-of-it", GPUs: 1, Resource: wholeMIG})
	require.Equal(t, corev1.PodSucceeded, phase, output)
	require.Contains(t, output, "Test PASSED")

	// In quick succession: the kubelet applies a back-off to containers that end like that.
	for _, layout := range []string{"3g.40gb,3g.40gb", "1g.10gb", "3g.40gb"} {
		s.Gpusim(t, "n1", "mig", "--gpu", "0", "--layout", layout)
	}
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 7, smallMIG: 0, middleMIG: 1, wholeMIG: 0})
	s.Gpusim(t, "n1", "mig", "--gpu", "0", "--off")
	s.World.WaitAllResources(t, "n1", map[corev1.ResourceName]int64{GPU: 8, middleMIG: 0, wholeMIG: 0})
	require.NoError(t, checkRunning(s.World.Pod("default", "whole")))
	require.Zero(t, s.World.Pod("default", "whole").Status.ContainerStatuses[0].RestartCount)
	require.Equal(t, before, s.pluginContainer(t, "n1"))
	for _, c := range s.World.Since(start) {
		if c.Node != nil {
			require.GreaterOrEqual(t, c.Node.Status.Allocatable.Name(GPU, resource.DecimalSI).Value(), int64(7), "the other GPUs are offered all along")
		}
	}
}

func withTheStrategySingleItsPartsAreGPUs(t *testing.T, s *Suite) {
	s.Gpusim(t, "n1", "mig", "--gpu", "all", "--layout", "3g.40gb,3g.40gb")
	s.SetPlugin(t, "MIG_STRATEGY=single")
	s.World.WaitAllocatable(t, 16, "n1")
	list, phase := s.Result(t, Job{Name: "part", GPUs: 1, Command: []string{"nvidia-smi", "-L"}})
	require.Equal(t, corev1.PodSucceeded, phase, list)
	require.Len(t, migParts(list), 1, list)
	require.Equal(t, "3g.40gb", migParts(list)[0].profile)
	s.RequireFree(t, "n1", 2)
}

// plugin returns the device plugin's pod on a node.
func (s *Suite) plugin(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pods := s.World.Pods(Namespace, "app="+pluginDaemonSet)
	i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node && p.DeletionTimestamp == nil })
	require.GreaterOrEqualf(t, i, 0, "node %s has no device plugin", node)
	return pods[i]
}

// pluginContainer returns the ID of the device plugin's container on a node; each start
// changes it.
func (s *Suite) pluginContainer(t *testing.T, node string) string {
	t.Helper()
	statuses := s.plugin(t, node).Status.ContainerStatuses
	require.Len(t, statuses, 1)
	require.NotNil(t, statuses[0].State.Running, "%+v", statuses[0])
	return statuses[0].ContainerID
}

// part is a MIG device as nvidia-smi -L lists it.
type part struct{ profile, uuid string }

var migLine = regexp.MustCompile(`MIG (\S+) +Device +\d+: \(UUID: (MIG-[0-9a-f-]+)\)`)

func migParts(list string) []part {
	var parts []part
	for _, m := range migLine.FindAllStringSubmatch(list, -1) {
		parts = append(parts, part{m[1], m[2]})
	}
	return parts
}

// parts lists the MIG devices visible in a pod.
func (s *Suite) parts(t *testing.T, pod string) []part {
	t.Helper()
	return migParts(s.Kubectl(t, "exec", pod, "--", "nvidia-smi", "-L"))
}
