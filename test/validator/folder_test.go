package validator

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

// foldersHeal removes folders and sockets of the host that agents use. Each time the node must heal by
// itself, and the agents must report why they began again.
func foldersHeal(t *testing.T, n *node) (laps []lap) {
	kubelet := []string{"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
	for _, c := range []struct {
		name   string
		breaks func(t *testing.T)
		agents []string // that begin again, because a folder that they had mounted is another one
	}{
		{
			"the folders of the agents are removed",
			func(t *testing.T) { n.removeFolders(t, "/run/cdi", "/run/nvidia/gpuready", "/run/nvidia/validations") },
			[]string{toolkit, plugin, validator},
		},
		{
			"the kubelet's folders are removed, and it is restarted",
			func(t *testing.T) {
				n.removeFolders(t, kubelet...)
				n.KillKubelet(t, n.name)
			},
			[]string{plugin, validator},
		},
		{
			"the socket of NRI is removed, and containerd is restarted",
			func(t *testing.T) {
				n.remove(t, "/run/nri/nri.sock")
				n.RestartContainerd(t, n.name)
			},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, agent := range c.agents { // a new pod is restarted without delay
				n.restart(t, agent)
			}
			n.until(t, "all is well", func() error { return errors.Join(n.running(c.agents...), n.ready()) })
			c.breaks(t)
			began := time.Now()
			n.until(t, "the agents begin again", func() error { return n.beganAgain(c.agents...) })
			n.until(t, "an agent says why", func() error { return n.saidReplaced(t, c.agents...) })
			n.until(t, "all is well again", func() error { return errors.Join(n.running(toolkit, plugin, validator), n.ready()) })
			out, phase := n.Result(t, e2e.Job{Name: "after", Node: n.name, GPUs: 1, Command: []string{"vectoradd"}})
			require.Equal(t, corev1.PodSucceeded, phase, out)
			laps = append(laps, lap{name: c.name, reason: "(heals)", ready: time.Since(began)})
		})
	}
	return laps
}

func (n *node) removeFolders(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		// An agent may write into it meanwhile: then it is not empty, and is removed again.
		require.EventuallyWithT(t, func(t *assert.CollectT) { require.NoError(t, os.RemoveAll(n.path(path))) }, 10*time.Second, time.Millisecond)
	}
}

// running returns an error unless the pods of the DaemonSets run on the node.
func (n *node) running(daemonsets ...string) error {
	for _, d := range daemonsets {
		p := n.pod(d)
		if p == nil || len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("%s is not ready", d)
		}
	}
	return nil
}

// beganAgain returns an error unless the agents' containers were started a second time.
func (n *node) beganAgain(daemonsets ...string) error {
	for _, d := range daemonsets {
		if p := n.pod(d); p == nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0 {
			return fmt.Errorf("%s runs on", d)
		}
	}
	return nil
}

// saidReplaced returns an error unless an agent that began again has logged that a folder was replaced. The
// others may have ended before, because the toolkit had.
func (n *node) saidReplaced(t *testing.T, daemonsets ...string) error {
	t.Helper()
	for _, d := range daemonsets {
		p := n.pod(d)
		if p == nil {
			continue
		}
		log, err := n.World.Client.CoreV1().Pods(e2e.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: p.Spec.Containers[0].Name, Previous: true}).DoRaw(t.Context())
		if err == nil && strings.Contains(string(log), "replaced") {
			return nil
		}
	}
	if len(daemonsets) == 0 {
		return nil
	}
	return errors.New("none does")
}
