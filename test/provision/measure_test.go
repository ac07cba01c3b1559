package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// TestProvision measures a cluster, and checks failing measurements.
func TestProvision(t *testing.T) {
	s := up(t, cluster.Config{})
	for _, c := range []struct {
		name string
		play func(*suite, *testing.T)
	}{
		{"Reset", (*suite).reset},
		{"Reboot", (*suite).reboot},
		{"TheAPIServerIsAway", (*suite).away},
		{"TheWorkloadIsEvicted", (*suite).evicted},
		{"NoNodeComes", (*suite).noNode},
		{"Interrupted", (*suite).interrupted},
		{"Killed", (*suite).killed},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.play(s, t) }) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
}

// reset deletes the policy and applies it again, three times.
func (s *suite) reset(t *testing.T) {
	r := s.start(t, s.Kubeconfig, "--test", "reset", "--samples", "2")
	require.Equal(t, 0, r.end(t))
	s.nothingLeft(t)
	rep := r.report(t)
	require.Len(t, rep.Samples, 3)
	require.True(t, rep.Samples[0].WarmUp)
	require.Len(t, rep.Counted(), 2)
	require.Contains(t, rep.Notice, "SIMULATED")
	require.Contains(t, rep.Stack, "gpuready/device-plugin")
	for _, sample := range rep.Samples {
		require.Len(t, sample.Timelines, 1)
		line := sample.Timelines[0]
		for _, id := range []step.ID{
			step.DriverScheduled, step.DriverPulled, step.DriverStarted, step.DriverReady, step.ToolkitReady, step.PluginReady, step.Capacity, step.Allocatable,
			step.Validated, step.WorkloadScheduled, step.WorkloadPulled, step.WorkloadStarted, step.FirstResult,
		} {
			reached, has := line.Find(id)
			require.True(t, has, "%s was not seen: %+v", id, line)
			require.False(t, reached.Before, id)
			require.Positive(t, reached.At, id)
		}
		for _, id := range []step.ID{step.Registered, step.Ready, step.Labelled} {
			reached, has := line.Find(id)
			require.True(t, has && reached.Before, id)
		}
	}
	for _, name := range []string{"report.csv", "report.svg", "report.html"} {
		text, err := os.ReadFile(filepath.Join(r.out, name))
		require.NoError(t, err)
		require.Contains(t, string(text), "SIMULATED", name)
	}
	require.Less(t, rep.RequestsPerSecond, 2.0, "watching takes few requests")
	s.logError(t, rep)
}

// logError prints how much later than the kubelet's own log the last sample's events were observed.
func (s *suite) logError(t *testing.T, rep *report.Report) {
	t.Helper()
	last := rep.Samples[len(rep.Samples)-1]
	log, err := s.Nodes[0].Logs("kubelet")
	require.NoError(t, err)
	found := 0
	for _, moment := range []struct {
		id   step.ID
		line string
	}{
		{step.DriverReady, `probe="readiness" status="ready" pod="gpuready-system/nvidia-driver-daemonset-`},
		{step.ToolkitReady, `probe="readiness" status="ready" pod="gpuready-system/nvidia-container-toolkit-daemonset-`},
		{step.PluginReady, `probe="readiness" status="ready" pod="gpuready-system/nvidia-device-plugin-daemonset-`},
	} {
		lines := regexp.MustCompile(`I(\d{4} \d\d:\d\d:\d\d\.\d{6}).*`+regexp.QuoteMeta(moment.line)).FindAllStringSubmatch(string(log), -1)
		if len(lines) == 0 {
			continue
		}
		at, err := time.ParseInLocation("20060102 15:04:05.000000", last.Began.Local().Format("2006")+lines[len(lines)-1][1], time.Local)
		require.NoError(t, err)
		reached, _ := last.Timelines[0].Find(moment.id)
		seen := last.Began.Add(time.Duration(reached.At * float64(time.Second)))
		fmt.Printf("%s: seen %.0f ms after the kubelet's log had it\n", moment.id, 1000*seen.Sub(at).Seconds())
		found++
	}
	require.Positive(t, found)
}

// reboot restarts the node with a command.
func (s *suite) reboot(t *testing.T) {
	s.ready(t)
	fifo := filepath.Join(t.TempDir(), "reboot")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	rebooted := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(fifo)
		if err == nil {
			err = s.Nodes[0].Reboot(t.Context())
		}
		rebooted <- err
	}()
	r := s.start(t, s.Kubeconfig, "--test", "node-reboot", "--node", s.Nodes[0].Name, "--reboot", "echo >"+fifo, "--samples", "1", "--drop", "0")
	require.Equal(t, 0, r.end(t))
	require.NoError(t, <-rebooted)
	line := r.report(t).Samples[0].Timelines[0]
	for _, id := range []step.ID{step.Registered, step.Ready, step.DriverReady, step.Allocatable, step.Validated, step.FirstResult} {
		reached, has := line.Find(id)
		require.True(t, has && !reached.Before, "%s: %+v", id, line)
	}
	s.nothingLeft(t)
}

// away disconnects the measuring program from the API server for 30 s in the middle of a sample.
func (s *suite) away(t *testing.T) {
	s.ready(t)
	p := s.proxy(t)
	r := s.start(t, p.Kubeconfig, "--test", "reset", "--samples", "1", "--drop", "0")
	r.waitRequested(t, s, 1)
	p.setCut(true)
	cut := time.Now()
	s.World.UntilWithin(t, patience, "the workload has succeeded", func() error {
		for _, pod := range s.World.Pods("default", step.WorkloadLabel) {
			if pod.Status.Phase == corev1.PodSucceeded {
				return nil
			}
		}
		return errors.New("it has not")
	})
	time.Sleep(time.Until(cut.Add(30 * time.Second))) // the fault is that long; nothing is waited for
	p.setCut(false)
	require.Equal(t, 0, r.end(t))
	rep := r.report(t)
	require.NotEmpty(t, rep.Samples[0].Gaps)
	reached, has := rep.Samples[0].Timelines[0].Find(step.FirstResult)
	require.True(t, has)
	require.Positive(t, reached.Late, "it was seen late, and that is said")
	require.Contains(t, r.stdout.String(), "the API server was away")
	s.nothingLeft(t)
}

// evicted deletes the workload during the measurement.
func (s *suite) evicted(t *testing.T) {
	s.ready(t)
	r := s.start(t, s.Kubeconfig, "--test", "reset", "--samples", "1", "--drop", "0")
	r.waitRequested(t, s, 1)
	s.Kubectl(t, "delete", "pods", "-A", "-l", step.WorkloadLabel, "--wait=false")
	require.Equal(t, 3, r.end(t))
	rep := r.report(t)
	require.Equal(t, report.Failed, rep.Samples[0].Outcome)
	require.Contains(t, rep.Samples[0].Reason, "deleted by someone else")
	require.Contains(t, r.stdout.String(), "No sample counts")
	s.nothingLeft(t)
}

// noNode requests a node that nobody adds.
func (s *suite) noNode(t *testing.T) {
	s.ready(t)
	r := s.start(t, s.Kubeconfig, "--test", "scale-from-zero", "--samples", "1", "--timeout", "5s")
	require.Equal(t, 1, r.end(t))
	require.Contains(t, r.stderr.String(), "scale-from-zero begins with none")

	r = s.start(t, s.Kubeconfig, "--test", "autoscale", "--samples", "1", "--drop", "0", "--timeout", "5s", "--workload", s.greedy(t))
	require.Equal(t, 3, r.end(t))
	sample := r.report(t).Samples[0]
	require.Equal(t, report.TimedOut, sample.Outcome)
	require.Contains(t, sample.Reason, "no node came within 5s")
	require.Contains(t, sample.Reason, "Insufficient nvidia.com/gpu")
	s.nothingLeft(t)
}

// greedy runs a workload for which no node has room.
func (s *suite) greedy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Pod
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: `+s.Image("cuda-samples")+`
      resources: { limits: { nvidia.com/gpu: 64 } }
`), 0o600))
	return path
}

// interrupted sends SIGINT in the middle of a sample.
func (s *suite) interrupted(t *testing.T) {
	s.ready(t)
	r := s.start(t, s.Kubeconfig, "--test", "reset", "--samples", "5")
	r.waitRequested(t, s, 1)
	r.interrupt(t)
	require.Equal(t, 3, r.end(t))
	rep := r.report(t)
	require.Equal(t, "interrupted in sample 1", rep.Ended)
	require.Equal(t, report.Interrupted, rep.Samples[0].Outcome)
	require.Contains(t, r.stdout.String(), "PARTIAL")
	s.nothingLeft(t)
}

// killed sends SIGKILL after the policy has been deleted: cleanup restores it.
func (s *suite) killed(t *testing.T) {
	s.ready(t)
	r := s.start(t, s.Kubeconfig, "--test", "reset", "--samples", "5")
	s.World.UntilWithin(t, patience, "the policy is deleted", func() error {
		if out := s.Kubectl(t, "get", "clusterpolicies", "-o", "name"); out != "" {
			return fmt.Errorf("there is %s", out)
		}
		return nil
	})
	require.NoError(t, r.cmd.Process.Kill())
	_ = r.cmd.Wait()
	out := s.Shell(t, r.out, filepath.Join(os.Getenv("GPUREADY_E2E"), "gpu-provision")+" cleanup --policy-file gpu-provision-clusterpolicy.json")
	t.Log(out)
	s.nothingLeft(t)
	s.ready(t)
}
