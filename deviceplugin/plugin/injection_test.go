package plugin_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	private "github.com/gpuready/gpuready/test/lab/node"
)

// toolkit writes the toolkit's state with its injection.
func (n *node) toolkit(i nodestate.Injection, change ...func(*nodestate.State)) {
	n.t.Helper()
	s := nodestate.State{
		Component: nodestate.Toolkit, Phase: nodestate.Ready,
		Toolkit: &nodestate.ToolkitInfo{Injection: &i, Specs: []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json"}}},
	}
	for _, f := range change {
		f(&s)
	}
	require.NoError(n.t, nodestate.Write(filepath.Join(n.host, "state/toolkit"), s))
}

func noGPU(s *nodestate.State) { s.Phase, s.Reason = nodestate.Waiting, injection.ReasonNoGPU }

func driverOf(root, version string) func(*nodestate.State) {
	return func(s *nodestate.State) { s.Driver = &nodestate.DriverInfo{Root: root, Version: version} }
}

// refuse is a driver that is present but may not be used.
func refuse(driver.Place) (plugin.Opened, error) {
	return plugin.Opened{}, fmt.Errorf("%w: open /dev/nvidiactl: EPERM", gpu.ErrNoPermission)
}

// library creates a file that looks like a driver's library of that version below a
// driver root.
func (n *node) library(root, version string) {
	n.t.Helper()
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	dir := filepath.Join(n.host, root, "usr/lib", triplet)
	require.NoError(n.t, os.MkdirAll(dir, 0o755))
	head := make([]byte, 64)
	copy(head, elf.ELFMAG)
	head[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	head[18] = byte(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH])
	name := "libnvidia-ml.so." + version
	require.NoError(n.t, os.WriteFile(filepath.Join(dir, name), head, 0o755))
	link := filepath.Join(dir, "libnvidia-ml.so.1")
	require.NoError(n.t, os.Symlink(name, link+"~"))
	require.NoError(n.t, os.Rename(link+"~", link))
}

func because(reason gpu.Reason) func(nodestate.State) bool {
	return func(s nodestate.State) bool { return s.Reason == reason }
}

func (n *node) refusal() nodestate.State {
	return n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
}

func TestOutdatedInjectionEndsThePluginAndKeepsItsState(t *testing.T) {
	n := newNode(t, gputest.Node("h100-sxm", 8)).withKubelet()
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
	n.cfg.Injected = "a"
	n.start()
	n.wait(8)
	// The toolkit is restarted, the runtime is away, the state is damaged,
	// removed, or of another boot: a new container would get nothing else.
	path := filepath.Join(n.host, "state/toolkit/state.json")
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
	n.toolkit(nodestate.Injection{Message: "the runtime is away"})
	n.toolkit(nodestate.Injection{Message: "the runtime is away", Generation: "b"})
	for _, content := range []string{"", `{"version":1,"comp`, "null", "[]", strings.Repeat("{", 1000)} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	n.toolkit(nodestate.Injection{Working: true, Generation: "b"}, func(s *nodestate.State) { s.BootID = "11111111-2222-3333-4444-555555555555" })
	require.NoError(t, os.Remove(path))
	n.source.Emit(gputest.XID(gputest.GPU(3), 79))
	n.wait(7)

	n.toolkit(nodestate.Injection{Working: true, Generation: "b"})
	require.NoError(t, n.end())
	require.Equal(t, 1, strings.Count(n.log.String(), "ending, so that the container is created again"), n.log)
	require.Contains(t, n.log.String(), "(a, now b)")
	s := n.state(because("InjectionOutdated"))
	require.Equal(t, nodestate.Waiting, s.Phase)
	require.Len(t, s.DevicePlugin.Faults, 1)

	n.cfg.Injected = "b"
	n.start()
	require.Equal(t, []string{string(gputest.GPU(3))}, n.unhealthy(n.wait(7)))
	n.source.Update(func(s *gpu.Snapshot) { s.Devices[3].Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded} })
	n.source.Emit(gpu.Event{Kind: gpu.EventChanged, UUID: gputest.GPU(3)})
	n.state(wasOutOfService)
	n.source.Update(func(s *gpu.Snapshot) { s.Devices[3].Fault = gpu.Fault{} })
	n.source.Emit(gpu.Event{Kind: gpu.EventChanged, UUID: gputest.GPU(3)})
	s = n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Empty(t, s.DevicePlugin.Faults, "the state says that it has recovered")
	require.Equal(t, nodestate.Healthy, s.DevicePlugin.Resources[0].Devices[3].Health)
}

func TestMIGLayoutDoesNotEndThePlugin(t *testing.T) {
	n := newNode(t, gputest.Node("a100-80gb", 2)).withKubelet()
	n.toolkit(nodestate.Injection{Working: true, Generation: "a.1"})
	n.cfg.Injected = "a.1"
	n.start()
	n.wait(2)
	for _, generation := range []string{"a.2", "a.3", "a.1", "a.2"} {
		n.toolkit(nodestate.Injection{Working: true, Generation: generation})
	}
	n.source.Emit(gputest.XID(gputest.GPU(1), 79))
	n.wait(1)
	n.toolkit(nodestate.Injection{Working: true, Generation: "b.2"})
	require.NoError(t, n.end())
	require.Contains(t, n.log.String(), "(a.1, now b.2)")
}

// Not every driver reports all changes, but the toolkit notices device nodes.
func TestNewNamesFromTheToolkitTriggerASnapshot(t *testing.T) {
	n := newNode(t, gputest.Node("a100-80gb", 1)).withKubelet()
	hasLabel := func(gpus int) {
		n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, func(s *nodestate.State) {
			for i := range gpus {
				s.Toolkit.Specs[0].Devices = append(s.Toolkit.Specs[0].Devices, string(gputest.GPU(i)))
			}
		})
	}
	hasLabel(1)
	n.start()
	n.wait(1)
	n.source.Update(func(s *gpu.Snapshot) { *s = gputest.Node("a100-80gb", 2) })
	hasLabel(2)
	n.wait(2)
}

func TestPrivilegedContainerIgnoresInjection(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 1)).withKubelet()
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
	n.start()
	n.wait(1)
	n.toolkit(nodestate.Injection{Working: true, Generation: "b"})
	n.source.Emit(gputest.XID(gputest.GPU(0), 79))
	n.wait(0)
	n.stop()
}

func TestMissingInjectionIsTheOnlyReportedReason(t *testing.T) {
	for name, c := range map[string]struct {
		open func(driver.Place) (plugin.Opened, error)
		say  func(n *node)
		want string
	}{
		"no toolkit": {refuse, func(*node) {}, "see that nvidia-container-toolkit-daemonset runs"},
		"a toolkit that cannot be understood": {refuse, func(n *node) {
			require.NoError(t, os.MkdirAll(filepath.Join(n.host, "state/toolkit"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(n.host, "state/toolkit/state.json"), []byte("{"), 0o644))
		}, "not a valid state"},
		"a driver that fails in another way": {
			func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, errors.New("NVML error 999") },
			func(*node) {}, "nvidia-container-toolkit-daemonset",
		},
		"no module, as it seems from here": {
			func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, gpu.ErrNoDriver },
			func(n *node) { n.library("driver", "1.0") }, "nvidia-container-toolkit-daemonset",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gpu.Snapshot{}).withKubelet()
			n.cfg.Injected, n.cfg.Open = injection.Expected, c.open
			c.say(n)
			n.start()
			s := n.state(because("InjectionMissing"))
			require.Equal(t, nodestate.Waiting, s.Phase, "the toolkit's first word is awaited")
			require.Contains(t, s.Message, "this container was created without the GPUs' device nodes: ")
			require.Contains(t, s.Message, c.want)
			n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
			require.NoError(t, n.end())
			n.state(because("InjectionOutdated"))
			require.NotContains(t, n.log.String(), "NoPermission")
		})
	}
}

func TestExcludedContainerWaitsForTheToolkitsNextState(t *testing.T) {
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.cfg.Injected, n.cfg.Open = injection.Expected, refuse
	n.toolkit(nodestate.Injection{Message: "the runtime is away"})
	n.start()
	s := n.state(because("InjectionMissing"))
	require.Equal(t, nodestate.Waiting, s.Phase, "the toolkit is there: its next word is awaited")
	require.Contains(t, s.Message, "the runtime is away")
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
	require.NoError(t, n.end())
	n.state(because("InjectionOutdated"))

	// It was created again, and again without GPUs: the pod lacks the annotation.
	for range 2 {
		n.cfg.Started = time.Now()
		n.start()
		err := n.end()
		require.ErrorContains(t, err, "InjectionMissing: this container was created without the GPUs' device nodes: ")
		require.ErrorContains(t, err, `lacks the annotation gpuready.io/management: "true"`)
		require.NotErrorIs(t, err, gpu.ErrNoPermission)
		require.EqualValues(t, "InjectionMissing", n.refusal().Reason)
	}

	n.settings("flags: {failOnInitError: false}")
	n.start()
	n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason == "InjectionMissing" })
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"}) // restarted
	require.NoError(t, n.end())
	n.state(because("InjectionOutdated"))
}

func TestLateDriverIsInjectedIntoTheNextContainer(t *testing.T) {
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.toolkit(nodestate.Injection{Working: true}, noGPU)
	n.cfg.Injected = injection.Expected
	n.cfg.Open = func(place driver.Place) (plugin.Opened, error) {
		if _, _, err := place.Find(); err != nil {
			return plugin.Opened{}, err
		}
		return refuse(place)
	}
	n.start()
	s := n.state(because("NoGPU"))
	require.Equal(t, nodestate.Waiting, s.Phase)
	n.library("driver", "1.0")
	s = n.state(because("InjectionMissing"))
	require.Equal(t, nodestate.Waiting, s.Phase)
	require.Contains(t, s.Message, "the toolkit has not seen the driver yet")
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"})
	require.NoError(t, n.end())
	require.NotContains(t, n.log.String(), "NoPermission")
}

// Without injection a container has no file of the driver.
func TestDriverKnownOnlyToTheToolkitIsReported(t *testing.T) {
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.toolkit(nodestate.Injection{Message: "NRI is off in containerd"}, driverOf(driver.Containerised, "1.0"))
	n.cfg.Injected = injection.Expected
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) { return plugin.Opened{}, gpu.ErrNoDriver }
	n.start()
	require.Contains(t, n.state(because("InjectionMissing")).Message, "NRI is off in containerd")
}

// An upgraded driver has device nodes that this container may not open. The plugin
// must not end before the toolkit knows, or it would be created as before.
func TestUpgradedDriverWaitsForTheToolkit(t *testing.T) {
	ahead := func(t *testing.T) *node {
		n := newNode(t, gpu.Snapshot{}).withKubelet()
		n.library("driver", "2.0")
		n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, driverOf("/driver", "1.0"))
		n.cfg.Injected, n.cfg.Open = "a", refuse
		n.start()
		s := n.state(because("NoPermission"))
		require.Equal(t, nodestate.Waiting, s.Phase)
		return n
	}
	t.Run("another generation", func(t *testing.T) {
		n := ahead(t)
		n.toolkit(nodestate.Injection{Working: true, Generation: "b"}, driverOf("/driver", "2.0"))
		require.NoError(t, n.end())
		n.state(because("InjectionOutdated"))
	})
	t.Run("the same generation", func(t *testing.T) {
		n := ahead(t)
		n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, driverOf("/driver", "2.0"))
		require.ErrorIs(t, n.end(), gpu.ErrNoPermission)
		require.EqualValues(t, "NoPermission", n.refusal().Reason)
	})
}

func TestInjectedCopiesOfARemovedDriverAreNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		say  func(*nodestate.State)
		want string
	}{
		"containerised":  {driverOf(driver.Containerised, "1.0"), driver.Containerised},
		"gone":           {func(s *nodestate.State) { s.Phase = nodestate.Waiting }, driver.Containerised},
		"the host's":     {driverOf("/", "1.0"), ""},
		"somewhere else": {driverOf("/opt/driver", "1.0"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gputest.Node("t4", 1)).withKubelet()
			n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, c.say)
			places := make(chan driver.Place, 1)
			n.cfg.Injected, n.cfg.Driver.Root = "a", ""
			n.cfg.Open = func(place driver.Place) (plugin.Opened, error) {
				places <- place
				return plugin.Opened{Source: reopenable{n.source}, Root: "/"}, nil
			}
			n.start()
			n.wait(1)
			require.Equal(t, c.want, (<-places).Root)
			n.stop()
		})
	}
}

func TestDriverRootIsTheHostsWithInjectedFiles(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 1)).withKubelet()
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, driverOf("/opt/driver", "1.0"))
	n.cfg.Injected = "a"
	n.cfg.Open = func(driver.Place) (plugin.Opened, error) {
		return plugin.Opened{Source: reopenable{n.source}, Root: "/"}, nil
	}
	n.start()
	require.Equal(t, "/opt/driver", n.state(func(s nodestate.State) bool { return s.Driver != nil }).Driver.Root)
}

// In a container the kubelet's folder is a mount, which outlives the folder.
func TestRemovedButMountedFolderEndsThePlugin(t *testing.T) {
	if !private.Enter(t) {
		return
	}
	n := newNode(t, gputest.Node("t4", 1))
	dir, mounted := filepath.Join(n.host, "kubelet"), filepath.Join(n.host, "dp")
	for _, d := range []string{dir, mounted} {
		require.NoError(t, os.Mkdir(d, 0o750))
	}
	require.NoError(t, unix.Mount(dir, mounted, "", unix.MS_BIND, ""))
	defer func() { require.NoError(t, unix.Unmount(mounted, unix.MNT_DETACH)) }()
	k, err := kubelettest.Start(kubelettest.Config{Dir: dir})
	require.NoError(t, err)
	n.kubelet = k
	t.Cleanup(k.Stop)
	n.start()
	n.wait(1)
	k.Stop()
	// Our own socket may be created again while the folder is being removed.
	require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 30*time.Second, time.Millisecond)
	err = n.end()
	require.ErrorIs(t, err, kubelet.ErrDirectory)
	require.EqualValues(t, "KubeletFolderReplaced", n.refusal().Reason)
}

func TestReadinessNamesTheReason(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := newNode(t, gpu.Snapshot{}).withKubelet()
	n.cfg.Listen = ln.Addr().String()
	require.NoError(t, ln.Close())
	n.cfg.Injected, n.cfg.Open = injection.Expected, refuse
	n.start()
	n.state(because("InjectionMissing"))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool { // no event signals that the port is open
		response, err := client.Get("http://" + n.cfg.Listen + "/readyz")
		if err != nil {
			return false
		}
		body, err := io.ReadAll(response.Body)
		return errors.Join(err, response.Body.Close()) == nil && response.StatusCode == http.StatusServiceUnavailable &&
			strings.HasPrefix(string(body), "not ready: InjectionMissing: this container was created without the GPUs' device nodes: ")
	}, 30*time.Second, 10*time.Millisecond)
}
