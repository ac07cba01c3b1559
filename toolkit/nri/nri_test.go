package nri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/test/lab/leak"
	"github.com/gpuready/gpuready/toolkit/node"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	if runtimetest.EnteredNRI() {
		return
	}
	leak.Main(m)
}

const spec = `cdiVersion: 0.5.0
kind: management.gpuready.io/gpu
containerEdits:
  env: [A=b, EMPTY=]
  deviceNodes: [{path: /dev/nvidiactl, permissions: rw}]
  mounts: [{hostPath: /usr/lib64/libcuda.so.1, containerPath: /lib/libcuda.so.1, options: [ro, rbind]}]
  hooks: [{hookName: createContainer, path: /hook, args: [hook, x], env: [PATH=/bin]}]
devices:
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0}]
`

// newHost returns a host in a directory with a short path, and with the usual link at
// /var/run.
func newHost(t *testing.T) *host.Root {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, d := range []string{"/run", "/var", "/dev", "/run/driver/dev"} {
		require.NoError(t, os.MkdirAll(dir+d, 0o755))
	}
	require.NoError(t, os.Symlink("/run", dir+"/var/run"))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

func mknod(t *testing.T, root *host.Root, path string, minor int) {
	t.Helper()
	if err := syscall.Mknod(root.Path(path), syscall.S_IFCHR|0o666, 195<<8|minor); err != nil {
		t.Skipf("mknod is not permitted: %v", err)
	}
}

func newOffer(t *testing.T, root *host.Root) *Offer {
	t.Helper()
	mknod(t, root, "/dev/nvidiactl", 255)
	mknod(t, root, "/run/driver/dev/nvidia0", 0)
	offer, err := NewOffer(root, []byte(spec), nil)
	require.NoError(t, err)
	return offer
}

func agent() (*api.PodSandbox, *api.Container) {
	return &api.PodSandbox{Id: "p", Name: "plugin-x", Namespace: "gpuready", Annotations: map[string]string{injection.Annotation: "true"}},
		&api.Container{Id: "c", Name: "plugin", Env: []string{"PATH=/bin", injection.Variable + "=" + injection.Expected}}
}

func TestOnlyOurExpectingAgentsReceiveTheGPUs(t *testing.T) {
	offer := &Offer{Generation: "g"}
	for name, change := range map[string]func(*api.PodSandbox, *api.Container){
		"another namespace":       func(p *api.PodSandbox, _ *api.Container) { p.Namespace = "default" },
		"no namespace":            func(p *api.PodSandbox, _ *api.Container) { p.Namespace = "" },
		"no annotation":           func(p *api.PodSandbox, _ *api.Container) { p.Annotations = nil },
		"the annotation is false": func(p *api.PodSandbox, _ *api.Container) { p.Annotations[injection.Annotation] = "false" },
		"an init container":       func(_ *api.PodSandbox, c *api.Container) { c.Env = c.Env[:1] },
		"given already":           func(_ *api.PodSandbox, c *api.Container) { c.Env[1] = injection.Variable + "=other" },
		"only much like it":       func(_ *api.PodSandbox, c *api.Container) { c.Env[1] += "x" },
	} {
		pod, container := agent()
		change(pod, container)
		require.Nil(t, decide("gpuready", offer, true, pod, container), name)
	}
	pod, container := agent()
	require.Nil(t, decide("gpuready", nil, true, pod, container), "there is nothing to give")
	require.Nil(t, decide("", offer, true, &api.PodSandbox{Annotations: pod.Annotations}, container), "we have no namespace")
	require.Nil(t, decide("gpuready", offer, true, nil, nil))
	require.True(t, proto.Equal(&api.ContainerAdjustment{
		Env:        []*api.KeyValue{{Key: injection.Variable, Value: "g"}},
		CDIDevices: []*api.CDIDevice{{Name: injection.Device}},
	}, decide("gpuready", offer, true, pod, container)))
}

// CRI-O and containerd before 2.1 ignore CDI names that plugins add.
func TestRuntimesThatDoNotResolveNamesReceiveTheEdits(t *testing.T) {
	root := newHost(t)
	offer := newOffer(t, root)
	pod, container := agent()
	want := &api.ContainerAdjustment{
		Env:    []*api.KeyValue{{Key: "A", Value: "b"}, {Key: "EMPTY"}, {Key: injection.Variable, Value: offer.Generation}},
		Mounts: []*api.Mount{{Source: "/usr/lib64/libcuda.so.1", Destination: "/lib/libcuda.so.1", Type: "bind", Options: []string{"ro", "rbind"}}},
		Hooks:  &api.Hooks{CreateContainer: []*api.Hook{{Path: "/hook", Args: []string{"hook", "x"}, Env: []string{"PATH=/bin"}}}},
		Linux: &api.LinuxContainerAdjustment{Devices: []*api.LinuxDevice{
			{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255}, {Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0},
		}},
	}
	for range 2 { // a response does not affect the next one
		require.True(t, proto.Equal(want, decide("gpuready", offer, false, pod, container)))
	}
	for version, byName := range map[string]bool{"v2.1.0": true, "2.4.2": true, "v3.0.0": true, "v2.0.7": false, "v1.7.29": false, "": false, "unknown": false} {
		require.Equal(t, byName, resolvesNames("containerd", version), version)
	}
	require.False(t, resolvesNames("cri-o", "1.34.0"))
}

func TestMissingPartsAreAnErrorOfNewOffer(t *testing.T) {
	root := newHost(t)
	mknod(t, root, "/dev/nvidiactl", 255)
	_, err := NewOffer(root, []byte(spec), nil)
	require.ErrorContains(t, err, "/run/driver/dev/nvidia0")
	require.NoError(t, os.WriteFile(root.Path("/run/driver/dev/nvidia0"), nil, 0o644))
	_, err = NewOffer(root, []byte(spec), nil)
	require.ErrorContains(t, err, "no")
	_, err = NewOffer(root, []byte("nonsense"), nil)
	require.Error(t, err)
	_, err = NewOffer(root, []byte(strings.ReplaceAll(spec, "name: all", "name: other")), nil)
	require.ErrorContains(t, err, injection.Device)
	_, err = NewOffer(root, []byte(strings.ReplaceAll(spec, "createContainer", "prestart")), nil)
	require.Error(t, err)
}

func TestGenerationChangesWithTheSpecification(t *testing.T) {
	root := newHost(t)
	first := newOffer(t, root)
	require.Len(t, first.Generation, 16)
	second, err := NewOffer(root, []byte(spec+"\n"), nil)
	require.NoError(t, err)
	require.NotEqual(t, first.Generation, second.Generation)
}

// A container keeps the files and devices that it received. Others at the same paths
// are another generation; a write to the same ones is not.
func TestGenerationChangesWithFilesAndDevices(t *testing.T) {
	root := newHost(t)
	library := root.Path("/usr/lib64/libcuda.so.1")
	require.NoError(t, os.MkdirAll(filepath.Dir(library), 0o755))
	require.NoError(t, os.WriteFile(library, []byte("driver"), 0o755))
	generation := newOffer(t, root).Generation
	now := func() string {
		offer, err := NewOffer(root, []byte(spec), nil)
		require.NoError(t, err)
		return offer.Generation
	}
	require.NoError(t, os.WriteFile(library, []byte("DRIVER"), 0o755))
	require.Equal(t, generation, now())
	require.NoError(t, os.WriteFile(library+".new", []byte("driver"), 0o755))
	require.NoError(t, os.Rename(library+".new", library))
	require.NotEqual(t, generation, now())

	generation = now()
	require.NoError(t, os.Remove(root.Path("/dev/nvidiactl")))
	mknod(t, root, "/dev/nvidiactl", 254)
	require.NotEqual(t, generation, now())
}

// withCaps returns a specification with nodes of capabilities, which it creates.
func withCaps(t *testing.T, root *host.Root, minors ...int) []byte {
	t.Helper()
	newOffer(t, root)
	require.NoError(t, os.MkdirAll(root.Path("/dev/nvidia-caps"), 0o755))
	text := spec
	for _, minor := range minors {
		p := node.CapPath(uint32(minor))
		_ = os.Remove(root.Path(p))
		mknod(t, root, p, minor)
		text += "    - {path: " + p + "}\n"
	}
	return []byte(strings.Replace(text, "    deviceNodes: [{path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0}]", "    deviceNodes:\n    - {path: /dev/nvidia0, hostPath: /run/driver/dev/nvidia0}", 1))
}

// An agent that may see all MIG instances does not need the nodes of a single one.
func TestMIGInstancesChangeOnePartOfTheGeneration(t *testing.T) {
	root := newHost(t)
	caps := node.Caps{"config": 1, "monitor": 2, "gpu0/gi1/access": 12, "gpu0/gi1/ci0/access": 13}
	generation := func(caps node.Caps, minors ...int) string {
		for _, p := range []string{"/dev/nvidiactl", "/run/driver/dev/nvidia0"} {
			_ = os.Remove(root.Path(p))
		}
		offer, err := NewOffer(root, withCaps(t, root, minors...), caps)
		require.NoError(t, err)
		return offer.Generation
	}
	first := generation(caps, 1, 2)
	require.Len(t, first, 33)
	require.True(t, strings.HasSuffix(first, "."+generation(nil, 1, 2)), "the second part is what it was before there were two")
	divided := generation(caps, 1, 2, 12, 13)
	require.False(t, injection.Current(first, divided, injection.Whole))
	require.True(t, injection.Current(first, divided, injection.Base))
	require.Equal(t, first, generation(caps, 1, 2), "undivided again")

	require.False(t, injection.Current(first, generation(caps, 2), injection.Base), "another capability is gone")
	require.Len(t, generation(caps, 1, 12, 13), 16, "without the capability to see all of them, their own are needed")
	require.Len(t, generation(nil, 1, 2, 12, 13), 16, "the driver does not say which stands for what")
	caps["monitor"] = 14
	require.False(t, injection.Current(first, generation(caps, 1, 2, 14), injection.Base))
	require.NoError(t, os.Remove(root.Path("/dev/nvidia-caps/nvidia-cap14")))
}

// plugin runs a plugin until the end of the test and returns its reports.
func plugin(t *testing.T, root *host.Root, offer *atomic.Pointer[Offer]) (<-chan Status, <-chan Injected) {
	t.Helper()
	reported, injected := make(chan Status, 100), make(chan Injected, 100)
	p := &Plugin{
		Root: root, Socket: DefaultSocket, Namespace: "gpuready", Offer: offer.Load,
		Report:   func(s Status) { reported <- s },
		Injected: func(i Injected) { injected <- i },
		Missed:   func([]Missed) {},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	return reported, injected
}

func start(t *testing.T, root *host.Root, version string) *runtimetest.NRI {
	t.Helper()
	runtime, err := runtimetest.StartNRI("containerd", version, root.Path("/run/nri/nri.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runtime.Kill()) })
	return runtime
}

// until waits for a report that satisfies done.
func until(reported <-chan Status, done func(Status) bool) Status {
	for s := range reported {
		if done(s) {
			return s
		}
	}
	return Status{}
}

func connected(s Status) bool { return s.Connected }

func TestContainersAreAdjustedAcrossRestartsOfTheRuntime(t *testing.T) {
	root := newHost(t)
	offer := &atomic.Pointer[Offer]{}
	reported, injected := plugin(t, root, offer)
	s := <-reported
	require.True(t, s.Absent)
	require.Contains(t, s.Message, DefaultSocket)

	runtime := start(t, root, "v2.2.1")
	require.Equal(t, "containerd v2.2.1", until(reported, connected).Runtime)
	adjust, err := runtime.Create(agent())
	require.NoError(t, err)
	require.Empty(t, adjust.GetEnv(), "there is nothing to give yet")

	offer.Store(newOffer(t, root))
	adjust, err = runtime.Create(agent())
	require.NoError(t, err)
	require.Equal(t, injection.Device, adjust.GetCDIDevices()[0].GetName())
	require.Equal(t, injection.Variable+"="+offer.Load().Generation, adjust.GetEnv()[0].ToOCI())
	require.Equal(t, Injected{"plugin-x", "plugin", offer.Load().Generation}, <-injected)
	pod, container := agent()
	pod.Namespace = "default"
	adjust, err = runtime.Create(pod, container)
	require.NoError(t, err)
	require.Empty(t, adjust.GetEnv())
	require.Empty(t, adjust.GetCDIDevices())

	for range 3 { // a killed runtime leaves its socket; the next one replaces it
		require.NoError(t, runtime.Kill())
		lost := until(reported, func(s Status) bool { return !s.Connected })
		require.Contains(t, lost.Message, DefaultSocket)
		runtime = start(t, root, "v2.2.1")
		until(reported, connected)
		adjust, err = runtime.Create(agent())
		require.NoError(t, err)
		require.Len(t, adjust.GetCDIDevices(), 1)
	}
	require.NoError(t, runtime.Kill())
	require.NoError(t, os.RemoveAll(root.Path("/run/nri")))
	until(reported, func(s Status) bool { return s.Absent })
}

// While one toolkit replaces another there are two.
func TestTwoToolkitsDoNotConflict(t *testing.T) {
	root := newHost(t)
	runtime := start(t, root, "v2.2.1")
	offer := &atomic.Pointer[Offer]{}
	offer.Store(newOffer(t, root))
	for range 2 {
		reported, _ := plugin(t, root, offer)
		until(reported, connected)
	}
	adjust, err := runtime.Create(agent())
	require.NoError(t, err)
	require.Len(t, adjust.GetCDIDevices(), 1)
	require.Len(t, adjust.GetEnv(), 1)
}

func TestOlderRuntimeReceivesDevicesInsteadOfNames(t *testing.T) {
	root := newHost(t)
	runtime := start(t, root, "v2.0.7")
	offer := &atomic.Pointer[Offer]{}
	offer.Store(newOffer(t, root))
	reported, _ := plugin(t, root, offer)
	until(reported, connected)
	adjust, err := runtime.Create(agent())
	require.NoError(t, err)
	require.Empty(t, adjust.GetCDIDevices())
	require.Len(t, adjust.GetLinux().GetDevices(), 2)
	require.True(t, slices.ContainsFunc(adjust.GetEnv(), func(e *api.KeyValue) bool { return e.GetValue() == offer.Load().Generation }))
}

// The plugin abandons a silent runtime at the end of the test, which goleak verifies.
func TestSilentRuntimeDoesNotBlockThePlugin(t *testing.T) {
	root := newHost(t)
	require.NoError(t, os.MkdirAll(root.Path("/run/nri"), 0o755))
	silent, err := listen(root.Path("/run/nri/nri.sock"))
	require.NoError(t, err)
	defer silent.Close()
	reported, _ := plugin(t, root, &atomic.Pointer[Offer]{})
	conn, err := silent.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	s := <-reported
	require.False(t, s.Connected)
	require.Contains(t, s.Message, "register")
	conn, err = silent.Accept()
	require.NoError(t, err, "it tries again")
	defer conn.Close()
}

func TestSocketBelowALongRootIsAClearError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	require.NoError(t, os.MkdirAll(dir+"/var/run/nri", 0o755))
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	at, err := os.MkdirTemp("", "s")
	require.NoError(t, err)
	defer os.RemoveAll(at)
	ln, err := listen(at + "/s")
	require.NoError(t, err)
	defer ln.Close()
	require.NoError(t, os.Rename(at+"/s", dir+"/var/run/nri/nri.sock"))
	reported, _ := plugin(t, root, &atomic.Pointer[Offer]{})
	require.Contains(t, (<-reported).Message, "by a shorter path")
}

func TestErrorsOfTheWatchEndThePlugin(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("because")
	cancel(why)
	p := &Plugin{Root: newHost(t), Socket: DefaultSocket, Offer: (&atomic.Pointer[Offer]{}).Load, Report: func(Status) {}}
	require.ErrorIs(t, p.Run(ctx), why)
}

func listen(path string) (*net.UnixListener, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		ln.SetUnlinkOnClose(false)
	}
	return ln, err
}
