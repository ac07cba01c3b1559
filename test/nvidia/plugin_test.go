package nvidia

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/built"
)

const (
	// reference names the environment variable with the path of NVIDIA's device plugin; make plugin-compare sets it.
	reference = "GPUREADY_REFERENCE"

	gpus = "nvidia.com/gpu"
)

// pluginNode is a node in a folder: a simulated driver, a kubelet, and one of the two device plugins.
type pluginNode struct {
	t       *testing.T
	theirs  string // NVIDIA's program; empty: the plugin is ours
	dir     string
	kubelet *kubelettest.Kubelet

	cmd   *exec.Cmd
	ended chan struct{} // closed when the plugin's process has ended
	mu    sync.Mutex
	log   bytes.Buffer // of the process that was started last
}

// plugins returns NVIDIA's program and, as the empty string, ours. It skips the test where no program is named.
func plugins(t *testing.T) []string {
	t.Helper()
	theirs := os.Getenv(reference)
	if theirs == "" {
		t.Skipf("%s is not set: make plugin-compare runs this", reference)
	}
	if os.Getuid() != 0 {
		t.Skip("NVIDIA's plugin gets its own mount namespace, which takes root")
	}
	return []string{theirs, ""}
}

// startNode makes a node with a driver and a kubelet.
func startNode(t *testing.T, theirs, profile string) *pluginNode {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "n") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	n := &pluginNode{t: t, theirs: theirs, dir: dir}
	built.Gpusim(t, "up", "--root", n.path("driver"), "--profile", profile)
	t.Cleanup(func() { built.Gpusim(t, "down", "--root", n.path("driver")) })
	n.kubelet, err = kubelettest.Start(kubelettest.Config{Dir: n.path("dp")})
	require.NoError(t, err)
	t.Cleanup(n.kubelet.Stop)
	return n
}

func (n *pluginNode) path(name string) string { return filepath.Join(n.dir, name) }

// sim breaks or repairs something.
func (n *pluginNode) sim(command string, args ...string) {
	n.t.Helper()
	built.Gpusim(n.t, append([]string{command, "--root", n.path("driver")}, args...)...)
}

// Write collects the plugin's output.
func (n *pluginNode) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(b)
}

// output returns the output of the plugin that was started last.
func (n *pluginNode) output() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.String()
}

// start starts the plugin, and returns when.
func (n *pluginNode) start(args ...string) time.Time {
	n.t.Helper()
	n.mu.Lock()
	n.log.Reset()
	n.mu.Unlock()
	if n.theirs == "" {
		n.cmd = exec.CommandContext(n.t.Context(), built.Path(n.t, "gpu-device-plugin"), append([]string{
			"--host-root", n.dir, "--driver-root", "/driver", "--kubelet-socket", "/dp/kubelet.sock", "--state-dir", "/state",
			"--listen=", "--device-list-strategy", "envvar",
		}, args...)...)
	} else { // it serves in one folder only, which here is the node's
		const script = `mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
			mount --bind "$0" /var/lib/kubelet/device-plugins && exec "$@"`
		n.cmd = exec.CommandContext(n.t.Context(), "unshare", append([]string{"--mount", "sh", "-c", script, n.path("dp"),
			n.theirs, "--driver-root-ctr-path", n.path("driver"), "--device-list-strategy", "envvar"}, args...)...)
	}
	n.cmd.Stdout, n.cmd.Stderr = n, n
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	require.NoError(n.t, n.cmd.Start())
	cmd, ended := n.cmd, make(chan struct{})
	n.ended = ended
	go func() {
		_ = cmd.Wait() // its ProcessState has the exit code
		close(ended)
	}()
	n.t.Cleanup(func() {
		<-ended // the test's context has ended it
		if n.t.Failed() {
			n.t.Logf("the plugin printed:\n%s", n.output())
		}
	})
	return began
}

// stop ends the plugin as the kubelet ends a pod.
func (n *pluginNode) stop() {
	n.t.Helper()
	select {
	case <-n.ended:
	default:
		require.NoError(n.t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.ended
	}
	_, err := n.kubelet.Wait(n.t.Context(), gpus, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(n.t, err)
}

// exit returns the exit code of a plugin that has ended by itself.
func (n *pluginNode) exit() (code int, ended bool) {
	select {
	case <-n.ended:
		return n.cmd.ProcessState.ExitCode(), true
	default:
		return 0, false
	}
}

// wait waits until the condition holds for the resource, the plugin has ended, or the time is over. It returns the
// resource in any case.
func (n *pluginNode) wait(limit time.Duration, condition func(kubelettest.Resource) bool) (kubelettest.Resource, bool) {
	ctx, cancel := context.WithTimeout(n.t.Context(), limit)
	defer cancel()
	go func() {
		select {
		case <-n.ended:
			time.Sleep(time.Second) // until the kubelet has noticed
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := n.kubelet.Wait(ctx, gpus, condition)
	return r, err == nil
}

// serves returns the condition that the plugin serves that many healthy devices.
func serves(healthy int) func(kubelettest.Resource) bool {
	return func(r kubelettest.Resource) bool { return !r.Gone && r.Lists > 0 && r.Allocatable == healthy }
}

// mustServe waits until the plugin serves that many devices.
func (n *pluginNode) mustServe(healthy int) kubelettest.Resource {
	n.t.Helper()
	r, ok := n.wait(time.Minute, serves(healthy))
	require.Truef(n.t, ok, "it serves %d of %d devices\n%s", r.Allocatable, r.Capacity, n.output())
	return r
}

// served describes what the kubelet has of the plugin.
func (n *pluginNode) served(r kubelettest.Resource) string {
	if code, ended := n.exit(); ended {
		return fmt.Sprintf("0, exit code %d", code)
	}
	if r.Gone || r.Lists == 0 {
		return "0, not registered"
	}
	return fmt.Sprintf("%d of %d", r.Allocatable, len(r.Devices))
}

// problem matches a line of either plugin's log that names a problem, and captures its text.
var problem = regexp.MustCompile(`(?m)^(?:[EFW]\d{4} .*?\] |time=\S+ level=(?:ERROR|WARN) |gpu-device-plugin: )(.*)$`)

// complaint returns the last problem that the plugin has printed after the first bytes of its output.
func (n *pluginNode) complaint(skip int) string {
	found := problem.FindAllStringSubmatch(n.output()[skip:], -1)
	if found == nil {
		return "nothing"
	}
	return strings.NewReplacer("|", "\\|", n.dir, "…").Replace(found[len(found)-1][1])
}

// prefer asks the plugin for its choice among devices.
func (n *pluginNode) prefer(endpoint string, available []string, size int) (chosen []string, took time.Duration, err error) {
	n.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.path("dp"), endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(n.t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	response, err := v1beta1.NewDevicePluginClient(conn).GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: int32(size)}},
	})
	if err != nil {
		return nil, 0, err
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), time.Since(began), nil
}

// uuids returns the UUIDs of the driver's GPUs, in the order of their numbers.
func (n *pluginNode) uuids() []string {
	n.t.Helper()
	var status struct {
		GPUs []struct{ UUID string }
	}
	require.NoError(n.t, json.Unmarshal([]byte(built.Gpusim(n.t, "status", "--root", n.path("driver"), "-o", "json")), &status))
	var all []string
	for _, g := range status.GPUs {
		all = append(all, g.UUID)
	}
	return all
}

// table formats rows of cells for each plugin as Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

// median formats the median of times, and the slowest where there are several.
func median(times []time.Duration) string {
	if len(times) == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(times))
	text := formatTime(sorted[len(sorted)/2])
	if len(sorted) > 1 {
		text += fmt.Sprintf(" (%s)", formatTime(sorted[len(sorted)-1]))
	}
	return text
}

func formatTime(d time.Duration) string {
	if d > 0 && d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
