package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// newcomerEvery is the number of restarts per new pod, which is created just before the kubelet
// is killed.
const newcomerEvery = 4

// TestKubeletRestarts kills a kubelet again and again under pods that hold 4 of its 8 GPUs. No
// GPU may move to another pod, and no pod may be refused or restarted. After each kill the
// validator proves the node with a pod, and new pods arrive. A restarted kubelet still counts
// the GPUs of pods that ended while it was down (UpdateAllocatedDevices of its device manager
// waits until it knows all its pods). So there are more GPUs than those pods need.
func TestKubeletRestarts(t *testing.T) {
	restarts, _ := strconv.Atoi(os.Getenv("GPUREADY_E2E_RESTARTS"))
	if restarts == 0 {
		t.Skip("GPUREADY_E2E_RESTARTS is not set: make e2e-restarts does this")
	}
	const node = "n1"
	s := Up(t, cluster.Config{Nodes: 1})
	s.Apply(t, "gpuready.yaml", "simulated-driver.yaml")
	s.World.WaitDaemonSets(t, Namespace, daemonsets...)
	s.World.WaitAllocatable(t, 8, node)
	o := s.Occupy(t, node, 2)
	log := s.follow(t, node)
	start := time.Now()
	var lives []life
	for i := range restarts {
		if !t.Run(fmt.Sprint(i+1), func(t *testing.T) { lives = append(lives, s.killUnder(t, o, log, i%newcomerEvery == 0)) }) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
	o.RequireUndisturbed(t)
	for _, c := range s.World.Since(start) {
		if c.Pod != nil {
			require.NotContainsf(t, []string{"UnexpectedAdmissionError", "OutOf" + string(GPU)}, c.Pod.Status.Reason, "pod %s: %s", c.Pod.Name, c.Pod.Status.Message)
		}
	}
	fmt.Print(restartTable(lives))
}

// killUnder kills the kubelet, waits until it has its GPUs again, and checks to which pods it
// assigns them.
func (s *Suite) killUnder(t *testing.T, o *Tenants, log *kubeletLog, newcomer bool) life {
	t.Helper()
	j := Job{Name: "newcomer", Node: o.node, GPUs: 1}
	if newcomer {
		s.Run(t, j)
	}
	log.skip(t)
	s.KillKubelet(t, o.node)
	var l life
	require.Eventually(t, func() bool { // nothing signals that a log grows
		l.read(log.readLines(t))
		return l.healthy == 8
	}, patience, 10*time.Millisecond, "the kubelet has no list of 8 GPUs: %+v", &l)
	require.Equal(t, 1, l.registrations, "of one plugin with one kubelet")

	held := s.podResources(t, o.node)
	for began := time.Now(); len(held) < len(o.jobs) && time.Since(began) < patience; held = s.podResources(t, o.node) {
		time.Sleep(20 * time.Millisecond) // it does not know its pods for a moment, and signals nothing
	}
	for _, job := range o.jobs {
		require.Equalf(t, slices.Sorted(slices.Values(o.held[job.Name])), held["default/"+job.Name], "pod %s, as the kubelet has it", job.Name)
	}
	s.requireCheckpoint(t, o.node)
	if newcomer {
		pod := s.World.WaitEnded(t, "default", j.Name)
		require.Equalf(t, corev1.PodSucceeded, pod.Status.Phase, "%s: %s", pod.Status.Reason, pod.Status.Message)
	}
	for _, job := range o.jobs {
		s.World.Until(t, job.Name+" runs as before", func() error { return checkRunning(s.World.Pod("default", job.Name)) })
		require.Zerof(t, s.World.Pod("default", job.Name).Status.ContainerStatuses[0].RestartCount, "pod %s was restarted", job.Name)
	}
	return l
}

// podResources returns the GPUs of each pod, "namespace/name", as reported by the kubelet's API.
// It fails if a GPU is listed twice.
func (s *Suite) podResources(t *testing.T, node string) map[string][]string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+s.Node(node).PathOnNode("/var/lib/kubelet/pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	response, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	held, owner := map[string][]string{}, map[string]string{}
	for _, p := range response.GetPodResources() {
		name := p.GetNamespace() + "/" + p.GetName()
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					require.Emptyf(t, owner[id], "%s is given to %s and to %s", id, owner[id], name)
					owner[id] = name
					held[name] = append(held[name], id)
				}
			}
		}
		slices.Sort(held[name])
	}
	maps.DeleteFunc(held, func(_ string, ids []string) bool { return len(ids) == 0 })
	return held
}

// requireCheckpoint checks that the kubelet's checkpoint is complete and assigns nothing twice.
func (s *Suite) requireCheckpoint(t *testing.T, node string) {
	t.Helper()
	data, err := os.ReadFile(s.Node(node).PathOnNode("/var/lib/kubelet/device-plugins/" + kubelettest.CheckpointName))
	require.NoError(t, err)
	c, err := kubelettest.ParseCheckpoint(data)
	require.NoError(t, err)
	owner := map[string]string{}
	for _, e := range c.Entries {
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				require.Emptyf(t, owner[id], "%s is written down for %s and for %s", id, owner[id], e.PodUID)
				owner[id] = e.PodUID
			}
		}
	}
}

// kubeletLog reads a kubelet's log from where the last read ended.
type kubeletLog struct{ file *os.File }

func (s *Suite) follow(t *testing.T, node string) *kubeletLog {
	t.Helper()
	path, err := s.Node(node).LogFile("kubelet")
	require.NoError(t, err)
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return &kubeletLog{file}
}

func (l *kubeletLog) skip(t *testing.T) {
	t.Helper()
	_, err := l.file.Seek(0, io.SeekEnd)
	require.NoError(t, err)
}

// readLines returns the lines that are complete by now.
func (l *kubeletLog) readLines(t *testing.T) []byte {
	data, err := io.ReadAll(l.file)
	if err != nil {
		t.Error(err) // not Fatal: this is not the test's goroutine
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	if _, err := l.file.Seek(int64(end-len(data)), io.SeekCurrent); err != nil {
		t.Error(err)
	}
	return data[:end]
}

// life holds a kubelet's log entries about its device plugins, from its start.
type life struct {
	listening, registered, listed time.Time
	registrations                 int
	healthy                       int // GPUs, in the last list
}

// Messages of the kubelet at -v=2 (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager: manager.go,
// plugin/v1beta1/server.go), each after a time in microseconds.
var (
	listeningLine  = regexp.MustCompile(`^I\d{4} (\S+) .*"Starting device plugin registration server"`)
	registeredLine = regexp.MustCompile(`^I\d{4} (\S+) .*"Got registration request from device plugin with resource" resourceName="nvidia\.com/gpu"`)
	listedLine     = regexp.MustCompile(`^I\d{4} (\S+) .*"Processed device updates for resource" resourceName="nvidia\.com/gpu" totalCount=\d+ healthyCount=(\d+)`)
)

func (l *life) read(lines []byte) {
	at := func(text string) time.Time {
		when, _ := time.Parse("15:04:05.000000", text)
		return when
	}
	for line := range strings.Lines(string(lines)) {
		if m := listeningLine.FindStringSubmatch(line); m != nil {
			*l = life{listening: at(m[1])}
		} else if m := registeredLine.FindStringSubmatch(line); m != nil {
			l.registrations++
			l.registered = at(m[1])
		} else if m := listedLine.FindStringSubmatch(line); m != nil && !l.listening.IsZero() {
			l.healthy, _ = strconv.Atoi(m[2])
			if l.listed.IsZero() {
				l.listed = at(m[1])
			}
		}
	}
}

func restartTable(lives []life) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d restarts of a kubelet, from when it begins to take registrations:\n  %-28s %9s %9s %9s\n", len(lives), "until", "p50", "p99", "max")
	for _, row := range []struct {
		name string
		when func(life) time.Time
	}{
		{"the plugin registers", func(l life) time.Time { return l.registered }},
		{"the kubelet has its list", func(l life) time.Time { return l.listed }},
	} {
		var took []time.Duration
		for _, l := range lives {
			d := row.when(l).Sub(l.listening)
			if d < 0 {
				d += 24 * time.Hour // midnight
			}
			took = append(took, d)
		}
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		fmt.Fprintf(&b, "  %-28s %6.1f ms %6.1f ms %6.1f ms\n", row.name, ms(percentile(took, 50)), ms(percentile(took, 99)), ms(took[len(took)-1]))
	}
	return b.String()
}
