package step

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// lister serves the kubelet's list of pods.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	mu     sync.Mutex
	pods   []*podresources.PodResources
	silent error // its answer; nil: the pods
}

func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent != nil {
		return nil, l.silent
	}
	return &podresources.ListPodResourcesResponse{PodResources: l.pods}, nil
}

// setError sets the error that the kubelet answers with; nil: it lists the pods.
func (l *lister) setError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = err
}

// hold gives devices to a pod.
func (l *lister) hold(name string, ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = append(l.pods, &podresources.PodResources{Namespace: "default", Name: name, Containers: []*podresources.ContainerResources{
		{Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: ids}}},
	}})
}

// release ends all pods.
func (l *lister) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = nil
}

// claim gives CDI devices to a pod through a claim.
func (l *lister) claim(name string, cdi ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var devices []*podresources.CDIDevice
	for _, d := range cdi {
		devices = append(devices, &podresources.CDIDevice{Name: d})
	}
	l.pods = append(l.pods, &podresources.PodResources{Namespace: "default", Name: name, Containers: []*podresources.ContainerResources{
		{DynamicResources: []*podresources.DynamicResource{{ClaimName: "c", ClaimResources: []*podresources.ClaimResource{{CdiDevices: devices}}}}},
	}})
}

// serveKubelet serves the kubelet's PodResources socket of a node.
func serveKubelet(t *testing.T, n *check.Node) *lister {
	t.Helper()
	dir, err := os.MkdirTemp("", "gv") // short: the path of a socket is limited
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	n.PodResources = filepath.Join(dir, "kubelet.sock")
	ln, err := net.Listen("unix", n.PodResources)
	require.NoError(t, err)
	l, s := &lister{}, grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, l)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return l
}

// passingSample is a sample that passes and counts its runs in a folder.
func passingSample(dir string) string {
	return `echo >> "` + dir + `/$CUDA_VISIBLE_DEVICES"
echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`
}

// failsOn is a sample that fails on one unit with a result of CUDA, and passes on the others.
func failsOn(id gpu.UUID, code int) string {
	return fmt.Sprintf(`if [ "$CUDA_VISIBLE_DEVICES" = %s ]; then echo '{"passed": false, "code": %d, "error": "cuDevicePrimaryCtxRetain: error %d"}'; exit 1; fi
echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`, id, code, code)
}

func TestASampleThatFindsNoRoomOnAGPUInUseHasNotFailed(t *testing.T) {
	busy := gputest.GPU(1)
	process := gpu.Usage{Processes: []gpu.Process{{PID: 4711, Memory: 79 << 30, Graphics: true}}} // shown, and does not keep the sample away
	for name, c := range map[string]struct {
		code    int
		usage   gpu.Usage
		pod     bool       // a pod gets the GPU while the sample runs
		reason  gpu.Reason // "": it failed
		message string
	}{
		"no memory, a process has it":           {2, process, false, ReasonInUse, "used by process 4711"},
		"busy, a process has it":                {46, process, false, ReasonInUse, "used by process 4711"},
		"no memory, a pod has it":               {2, gpu.Usage{}, true, ReasonInUse, "held by pod default/job"},
		"busy, a pod has it":                    {46, gpu.Usage{}, true, ReasonInUse, "held by pod default/job"},
		"busy, exclusive, nobody is visible":    {46, gpu.Usage{Mode: gpu.ComputeExclusive}, false, ReasonInUse, "EXCLUSIVE_PROCESS"},
		"no memory, nobody has it":              {2, gpu.Usage{}, false, "", ""},
		"no memory, exclusive, nobody has it":   {2, gpu.Usage{Mode: gpu.ComputeExclusive}, false, "", ""},
		"busy, nobody has it":                   {46, gpu.Usage{}, false, "", ""},
		"an illegal address beside a process":   {700, process, false, "", ""},
		"MPS without a daemon, nobody has it":   {807, gpu.Usage{}, false, "", ""},
		"an unknown error, a pod has it":        {999, gpu.Usage{}, true, "", ""},
		"no code at all (an old sample), a pod": {0, process, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := cudaTestNode(t, failsOn(busy, c.code))
			kubelet := serveKubelet(t, &n)
			asked := 0
			n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
				if asked++; asked == 1 && c.pod {
					kubelet.hold("job", string(busy)+"::0") // a replica
					return nil, nil
				}
				return map[gpu.UUID]gpu.Usage{busy: c.usage}, nil
			}
			o := checkCUDA(t.Context(), n, cudaTestDriver(3))
			if c.reason == "" {
				require.Equal(t, check.Failed, o.Kind)
				require.Equal(t, reasonSampleFailed, o.NotReady.Reason)
				require.NotEmpty(t, o.NotReady.Action)
				return
			}
			require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
			require.True(t, o.Retry)
			require.Equal(t, 2, o.Proof.GPUs)
			require.Equal(t, map[gpu.UUID]gpu.Reason{busy: c.reason}, o.Proof.Unproven)
			require.Len(t, o.Unproven, 1)
			require.Equal(t, c.code, o.Unproven[0].Code)
			require.Contains(t, o.Unproven[0].Message, c.message)
			require.Len(t, o.Notes, 1)
			require.True(t, strings.HasPrefix(o.Notes[0], "GPUInUse: not proven now: GPU 1 ("), o.Notes[0])
			require.Contains(t, o.Proof.Summary, "vectorAdd on 2 of 3 GPUs")
			require.Contains(t, o.Proof.Summary, "1 in use, not proven now")
		})
	}
}

func TestNothingIsComputedOnGPUsOfOthers(t *testing.T) {
	seen := t.TempDir()
	n := cudaTestNode(t, passingSample(seen))
	kubelet := serveKubelet(t, &n)
	d := cudaTestDriver(9)
	d.GPUs[1] = gputest.WithMIG(d.GPUs[1], "1g.10gb", "2g.20gb")
	d.GPUs[6].ComputeMode = gpu.ComputeProhibited
	kubelet.hold("whole", string(d.GPUs[0].UUID))
	kubelet.hold("part", string(d.GPUs[1].MIG[0].UUID))
	kubelet.hold("replica", string(d.GPUs[2].UUID)+"::3")
	kubelet.claim("claim", "k8s.gpuready.io/gpu="+string(d.GPUs[3].UUID))
	kubelet.hold("other", "mlx5_0", string(d.GPUs[7].UUID)+"0")
	kubelet.hold("share", string(d.GPUs[8].UUID)+"-9") // of another device plugin
	n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
		return map[gpu.UUID]gpu.Usage{
			d.GPUs[4].UUID: {Processes: []gpu.Process{{PID: 7}}},
			d.GPUs[5].UUID: {Mode: gpu.ComputeExclusive, Processes: []gpu.Process{{PID: 8}}},
			d.GPUs[7].UUID: {Processes: []gpu.Process{{PID: 9, Graphics: true}}},
		}, nil
	}
	o := checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	ran, err := os.ReadDir(seen)
	require.NoError(t, err)
	var names []string
	for _, e := range ran {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, []string{string(d.GPUs[1].MIG[1].UUID), string(d.GPUs[7].UUID)}, names)
	require.Equal(t, map[gpu.UUID]gpu.Reason{
		d.GPUs[0].UUID: ReasonInUse, d.GPUs[1].MIG[0].UUID: ReasonInUse, d.GPUs[2].UUID: ReasonInUse, d.GPUs[3].UUID: ReasonInUse,
		d.GPUs[4].UUID: ReasonInUse, d.GPUs[5].UUID: ReasonInUse, d.GPUs[6].UUID: ReasonProhibited, d.GPUs[8].UUID: ReasonInUse,
	}, o.Proof.Unproven)
	holders := map[gpu.UUID][]string{}
	for _, u := range o.Unproven {
		require.Zero(t, u.Code, "it was not run")
		holders[u.Unit.UUID] = u.Pods
	}
	require.Equal(t, []string{"default/whole"}, holders[d.GPUs[0].UUID])
	require.Equal(t, []string{"default/replica"}, holders[d.GPUs[2].UUID])
	require.Equal(t, []string{"default/claim"}, holders[d.GPUs[3].UUID])
	require.Contains(t, strings.Join(o.Notes, "\n"), "ComputeProhibited: not proven now: GPU 6 (")

	kubelet.hold("rest", string(d.GPUs[1].UUID), string(d.GPUs[7].UUID))
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "a node on which jobs hold every GPU is no broken one")
	require.Zero(t, o.Proof.GPUs)
	require.Contains(t, o.Proof.Summary, "vectorAdd on 0 of 9 GPUs")
	require.Contains(t, DescribeUse(t.Context(), n, d), "held by pod default/whole")

	n.OwnPod = "default/whole" // our own, which proves layer plugin
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, 1, o.Proof.GPUs)
	require.NotContains(t, o.Proof.Unproven, d.GPUs[0].UUID)
}

// A device plugin may give devices other names than their UUIDs: its state has both.
func TestHoldersAreFoundByTheDevicePluginsNames(t *testing.T) {
	d := cudaTestDriver(2)
	plugin := &nodestate.DevicePluginInfo{Resources: []nodestate.Resource{{Name: "nvidia.com/gpu", Devices: []nodestate.Device{{ID: "slot-1", GPU: d.GPUs[1].UUID, Replicas: 2}}}}}
	l := &lister{}
	l.hold("a", "slot-1::1")
	l.hold("b", "slot-9")
	require.Equal(t, map[gpu.UUID][]string{d.GPUs[1].UUID: {"default/a"}}, collectHolders(&podresources.ListPodResourcesResponse{PodResources: l.pods}, d, plugin, nil))
}

func TestAnExclusiveGPUIsLeftToAPodThatGetsIt(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	n := cudaTestNode(t, "touch "+started+"; sleep 1000")
	kubelet := serveKubelet(t, &n)
	d := cudaTestDriver(1)
	d.GPUs[0].ComputeMode = gpu.ComputeExclusive
	done := make(chan check.Outcome)
	go func() { done <- checkCUDA(t.Context(), n, d) }()
	require.Eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, 30*time.Second, time.Millisecond)
	kubelet.hold("job", string(d.GPUs[0].UUID))
	o := <-done
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, map[gpu.UUID]gpu.Reason{d.GPUs[0].UUID: ReasonInUse}, o.Proof.Unproven)
	require.Contains(t, o.Notes[0], "a pod got it while vectorAdd ran")
}

func TestAGPUOfOurMPSDaemonIsProvenAsAClient(t *testing.T) {
	root := newMachine(t)
	seen := t.TempDir()
	n := cudaTestNode(t, `echo "$CUDA_MPS_PIPE_DIRECTORY" > "`+seen+`/$CUDA_VISIBLE_DEVICES"
echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`)
	n.Root, n.StateDir, n.BootID = root.Root, "/states", "00000000-0000-4000-8000-000000000000"
	d := cudaTestDriver(3)
	for i := range d.GPUs {
		d.GPUs[i].ComputeMode = gpu.ComputeExclusive
	}
	shared, starting := d.GPUs[0].UUID, d.GPUs[1].UUID
	write := func(m nodestate.MPSInfo) {
		require.NoError(t, nodestate.Write(n.StatePath(nodestate.MPS), nodestate.State{Component: nodestate.MPS, BootID: n.BootID, Phase: nodestate.Ready, MPS: &m}))
	}
	write(nodestate.MPSInfo{Claimed: []gpu.UUID{shared, starting}, Resources: []nodestate.MPSResource{
		{Name: "nvidia.com/gpu", Root: "/run/nvidia/mps", GPUs: []gpu.UUID{shared}, Ready: true},
		{Name: "nvidia.com/other", GPUs: []gpu.UUID{starting}, Reason: "MPSStarting", Message: "it is being started"},
	}})
	n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
		return map[gpu.UUID]gpu.Usage{shared: {Mode: gpu.ComputeExclusive, Processes: []gpu.Process{{PID: 99}}}}, nil // its server
	}
	o := checkCUDA(t.Context(), n, d)
	require.Equal(t, map[gpu.UUID]gpu.Reason{shared: ReasonInUse, starting: ReasonInUse}, o.Proof.Unproven, "the folder is not mounted here")

	root.File("/run/nvidia/mps/nvidia.com/gpu/pipe/control", "")
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, map[gpu.UUID]gpu.Reason{starting: ReasonInUse}, o.Proof.Unproven)
	pipe, err := os.ReadFile(filepath.Join(seen, string(shared)))
	require.NoError(t, err)
	require.Equal(t, n.Root.Path("/run/nvidia/mps/nvidia.com/gpu/pipe")+"\n", string(pipe))
	pipe, err = os.ReadFile(filepath.Join(seen, string(d.GPUs[2].UUID)))
	require.NoError(t, err)
	require.Equal(t, "\n", string(pipe), "an administrator's exclusive GPU has no daemon")

	n.VectorAdd = cudaTestNode(t, failsOn(shared, 808)).VectorAdd
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, ReasonInUse, o.Proof.Unproven[shared], "the daemon has no room for another client")

	n.VectorAdd = cudaTestNode(t, `if [ "$CUDA_VISIBLE_DEVICES" = `+string(shared)+` ]; then sleep 1000 & wait; fi
echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`).VectorAdd
	n.CUDATimeout = 3 * time.Second
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Failed, o.Kind, "nobody else is a client")
	require.Equal(t, reasonSampleTimeout, o.NotReady.Reason)
	kubelet := serveKubelet(t, &n)
	served := n.PodResources
	n.PodResources = "/kubelet.sock"
	require.NoError(t, os.Symlink(served, root.Root.Path(n.PodResources)))
	asked := false
	n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
		if !asked {
			asked = true
			kubelet.hold("job", string(shared)+"::0") // after the kubelet was asked
		}
		return nil, nil
	}
	o = checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, ReasonInUse, o.Proof.Unproven[shared], "another client may be before it")
}

func TestASampleThatHangsOnAGPUThatAPodGotHasNotFailed(t *testing.T) {
	for name, pod := range map[string]bool{"a pod got it": true, "nobody has it": false} {
		t.Run(name, func(t *testing.T) {
			n := cudaTestNode(t, "sleep 1000 & wait")
			n.CUDATimeout = 100 * time.Millisecond
			kubelet := serveKubelet(t, &n)
			n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
				if pod {
					kubelet.hold("job", string(gputest.GPU(0))) // after the kubelet was asked
				}
				return map[gpu.UUID]gpu.Usage{gputest.GPU(0): {Processes: []gpu.Process{{PID: 7, Graphics: true}}}}, nil
			}
			o := checkCUDA(t.Context(), n, cudaTestDriver(1))
			if !pod {
				require.Equal(t, check.Failed, o.Kind)
				require.Equal(t, reasonSampleTimeout, o.NotReady.Reason)
				return
			}
			require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
			require.Equal(t, map[gpu.UUID]gpu.Reason{gputest.GPU(0): ReasonInUse}, o.Proof.Unproven)
			require.Contains(t, o.Unproven[0].Message, "held by pod default/job")
		})
	}
}

// A kubelet that does not answer has not said that nobody holds a GPU.
func TestNothingIsComputedWhileTheKubeletDoesNotAnswer(t *testing.T) {
	busy := status.Error(codes.ResourceExhausted, "rejected by rate limit")
	k := newKeeper(t, 2)
	kubelet := serveKubelet(t, &k.node)
	served := k.node.PodResources
	refused := filepath.Join(filepath.Dir(served), "refused.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: refused, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	for name, socket := range map[string]string{"busy": served, "refused": refused, "no socket": filepath.Dir(served)} {
		kubelet.setError(busy)
		k.node.PodResources = socket
		o, ran := k.restart()
		require.Empty(t, ran, name)
		require.True(t, o.Retry, name)
		require.Len(t, o.Proof.Unproven, 2, name)
		require.Contains(t, o.Unproven[0].Message, "the kubelet does not tell whether a pod holds it: ", name)
		require.Contains(t, DescribeUse(t.Context(), k.node, k.d), "the kubelet does not tell", name)
	}
	k.node.PodResources = served
	kubelet.setError(nil)
	_, ran := k.restart()
	require.Len(t, ran, 2)
	require.Empty(t, DescribeUse(t.Context(), k.node, k.d))
	kubelet.setError(busy)
	o, _ := k.restart()
	require.Equal(t, 2, o.Proof.GPUs, "what is proven stays proven")

	k.node.PodResources = filepath.Join(filepath.Dir(served), "none.sock")
	require.Empty(t, DescribeUse(t.Context(), k.node, k.d), "there is no kubelet")
}

func TestASampleThatFindsNoRoomWhileTheKubeletDoesNotAnswerHasNotFailed(t *testing.T) {
	for _, code := range []int{2, 46, 807, 700} {
		n := cudaTestNode(t, failsOn(gputest.GPU(0), code))
		kubelet := serveKubelet(t, &n)
		n.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
			kubelet.setError(status.Error(codes.Unavailable, "it is being restarted")) // after its first answer
			return nil, nil
		}
		o := checkCUDA(t.Context(), n, cudaTestDriver(1))
		if code == 700 {
			require.Equal(t, check.Failed, o.Kind)
			continue
		}
		require.Equal(t, check.Passed, o.Kind, "%d %+v", code, o.NotReady)
		require.Len(t, o.Unproven, 1)
		require.Equal(t, code, o.Unproven[0].Code)
		require.Contains(t, o.Unproven[0].Message, "it is being restarted")
	}
}

// A monitor has every GPU by a claim with administrative access; the kubelet lists it like a tenant.
func TestClaimsWithAdministrativeAccessHoldNothing(t *testing.T) {
	k := newKeeper(t, 3)
	kubelet := serveKubelet(t, &k.node)
	k.node.StateDir = t.TempDir()
	ids := []gpu.UUID{k.d.GPUs[0].UUID, k.d.GPUs[1].UUID, k.d.GPUs[2].UUID}
	have := func(pod, claim string, ids ...gpu.UUID) {
		r := &podresources.ClaimResource{DriverName: claimDriver}
		for _, id := range ids {
			r.CdiDevices = append(r.CdiDevices, &podresources.CDIDevice{Name: "k8s.gpuready.io/gpu=" + string(id)})
		}
		kubelet.pods = append(kubelet.pods, &podresources.PodResources{Namespace: "team", Name: pod, Containers: []*podresources.ContainerResources{
			{DynamicResources: []*podresources.DynamicResource{{ClaimNamespace: "team", ClaimName: claim, ClaimResources: []*podresources.ClaimResource{r}}}}}})
	}
	have("monitor", "watch", ids...)
	have("mixed", "both", ids[0], ids[1])
	have("job", "train", ids[2])
	require.NoError(t, nodestate.Write(k.node.StatePath(nodestate.DRADriver), nodestate.State{Component: nodestate.DRADriver, BootID: k.node.BootID, Phase: nodestate.Ready,
		DRADriver: &nodestate.DRADriverInfo{Serve: nodestate.ServeDRA, AdminAccess: []nodestate.ClaimedDevice{
			{Claim: "team/watch", GPU: ids[0]}, {Claim: "team/watch", GPU: ids[1]}, {Claim: "team/watch", GPU: ids[2]}, {Claim: "team/both", GPU: ids[0]},
		}}}))
	o, ran := k.restart()
	require.Equal(t, ids[:1], ran)
	require.Equal(t, map[gpu.UUID]gpu.Reason{ids[1]: ReasonInUse, ids[2]: ReasonInUse}, o.Proof.Unproven)
	for _, u := range o.Unproven {
		require.NotContains(t, u.Pods, "team/monitor")
	}
	ask := func(context.Context, string) (Account, error) {
		return collectAccount(&podresources.AllocatableResourcesResponse{}, &podresources.ListPodResourcesResponse{PodResources: kubelet.pods}), nil
	}
	a, err := leaveOutAdmin(k.node, ask)(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, map[gpu.UUID][]string{ids[1]: {"team/mixed"}, ids[2]: {"team/job"}}, a.Claimed)
	require.NoError(t, os.RemoveAll(k.node.StatePath(nodestate.DRADriver)))
	a, err = leaveOutAdmin(k.node, ask)(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []string{"team/monitor", "team/mixed"}, a.Claimed[ids[0]], "it is not known")
}
