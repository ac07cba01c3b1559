package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/node"
)

// Folders of a pod of the device plugin.
const (
	kubeletDir = "/var/lib/kubelet/device-plugins"
	pluginDir  = "/run/nvidia/gpuready/deviceplugin"
	toolkitDir = "/run/nvidia/gpuready/toolkit"
	driverDir  = "/run/nvidia/driver"
)

// cluster is a node with production paths. The plugin runs on it as in its pod: as uid
// 0 without any capability, with a read-only root, no /tmp, only the pod's mounts, and
// only injected devices.
type cluster struct {
	*testing.T
	kubelet *kubelettest.Kubelet
	boot    string
}

// newCluster must be called in the process inside of a node.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	for _, dir := range []string{pluginDir, toolkitDir} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	k, err := kubelettest.Start(kubelettest.Config{Dir: kubeletDir, KeepReplaced: true})
	require.NoError(t, err)
	t.Cleanup(k.Stop)
	// A container here has its own /proc, with the machine's boot ID, not
	// the node's.
	proc := t.TempDir()
	require.NoError(t, unix.Mount("proc", filepath.Join(proc), "proc", 0, ""))
	defer func() { require.NoError(t, unix.Unmount(proc, unix.MNT_DETACH)) }()
	boot, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	require.NoError(t, err)
	return &cluster{t, k, strings.TrimSpace(string(boot))}
}

// inject writes the toolkit's specifications and its state.
func (c *cluster) inject(generation, driverRoot string) {
	c.Helper()
	p := built.Start(c, "gpu-toolkit", []string{"apply", "--driver-root", driverRoot})
	code, err := p.Wait(soon(c))
	require.NoError(c, err)
	require.Zero(c, code, p.Output())
	s, err := nodestate.Read(toolkitDir)
	require.NoError(c, err)
	c.writeToolkitState(s, generation)
}

// writeToolkitState writes the toolkit's state with its injection, for the boot that a
// container sees.
func (c *cluster) writeToolkitState(s nodestate.State, generation string) {
	c.Helper()
	s.Component, s.BootID = nodestate.Toolkit, c.boot
	if s.Toolkit == nil {
		s.Toolkit = &nodestate.ToolkitInfo{}
	}
	s.Toolkit.Injection = &nodestate.Injection{Working: true, Generation: generation}
	require.NoError(c, nodestate.Write(toolkitDir, s))
}

// container is a container of the plugin.
type container struct {
	cluster *cluster
	done    chan struct{}
	output  string
	code    int
	err     error
}

// start starts a container. given is the value of the variable, and the toolkit's
// plugin injects accordingly; "" is an init container.
func (c *cluster) start(given string, args ...string) *container {
	c.Helper()
	spec := node.Container{
		Args:  append([]string{"/usr/bin/gpu-device-plugin"}, args...),
		Env:   []string{"GORACE=atexit_sleep_ms=0"},
		Files: map[string]string{"/usr/bin/gpu-device-plugin": built.Path(c, "gpu-device-plugin")},
		Bare:  true,
		Mounts: []node.Mount{
			{Path: kubeletDir, Writable: true},
			// Not the driver's root itself: a later mount there on the
			// node is visible only below a mount of its parent folder.
			{Path: "/run/nvidia"}, {Path: pluginDir, Writable: true},
		},
	}
	if given != "" {
		spec.Env = append(spec.Env, injection.Variable+"="+given)
		if given != injection.Expected {
			spec.CDIDevices = []string{injection.Device}
		}
	}
	p := &container{cluster: c, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	go func() {
		defer close(p.done)
		p.output, p.code, p.err = node.RunContainer(ctx, spec)
	}()
	c.Cleanup(func() {
		cancel()
		<-p.done
		if c.Failed() {
			c.Logf("the container with %q printed:\n%s", given, p.output)
		}
	})
	return p
}

// ends waits until the container has ended and returns its last line.
func (p *container) ends(code int) string {
	p.cluster.Helper()
	<-p.done
	require.NoError(p.cluster, p.err, p.output)
	require.Equal(p.cluster, code, p.code, p.output)
	lines := strings.Split(strings.TrimSpace(p.output), "\n")
	return lines[len(lines)-1]
}

func (p *container) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (c *cluster) state(reason gpu.Reason) nodestate.State {
	c.Helper()
	return c.waitForState(string(reason), func(s nodestate.State) bool { return s.Reason == reason })
}

// waitForState waits until the plugin's state satisfies cond.
func (c *cluster) waitForState(what string, cond func(nodestate.State) bool) nodestate.State {
	c.Helper()
	ctx, cancel := context.WithCancel(soon(c))
	defer cancel()
	var last nodestate.State
	found := false
	_ = nodestate.WatchBoot(ctx, pluginDir, c.boot, func(s nodestate.State, err error) {
		if last = s; err == nil && cond(s) {
			found = true
			cancel()
		}
	})
	require.True(c, found, "%s: the state came to be %+v", what, last)
	return last
}

func (c *cluster) gpus(allocatable int) {
	c.Helper()
	_, err := c.kubelet.Wait(soon(c), resource, func(r kubelettest.Resource) bool {
		return r.Allocatable == allocatable && !r.Gone && r.Lists > 0
	})
	require.NoError(c, err)
}

func TestContainerIsCreatedAgainWhenTheInjectionChanges(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	c := newCluster(t)
	require.Contains(t, c.start("", "wait", "--timeout", "10ms").ends(program.Failed), "the toolkit has reported nothing since the node booted")
	wait := c.start("", "wait")
	c.writeToolkitState(nodestate.State{Phase: nodestate.Waiting, Reason: injection.ReasonNoGPU}, "")
	wait.ends(0)
	quiet := c.start(injection.Expected)
	require.Nil(t, c.state("NoGPU").Driver)
	// The driver appears: the plugin finds it but has no access until the toolkit
	// injects it.
	built.Gpusim(t, "up", "--profile", profile)
	require.Contains(t, c.state("InjectionMissing").Message, "the toolkit has not seen the driver yet")
	c.inject("a", driverDir)
	quiet.ends(0)
	require.NotContains(t, quiet.output, "NoPermission")
	require.Contains(t, quiet.output, "reason=InjectionOutdated")

	main := c.start("a")
	c.gpus(8)
	require.Equal(t, driverDir, c.state("").Driver.Root)
	_, err := c.kubelet.Admit(soon(t), pod("two", 2))
	require.NoError(t, err)
	built.Gpusim(t, "xid", "--gpu", "3", "--xid", "61")
	c.gpus(7)
	c.inject("b", driverDir)
	require.Contains(t, main.ends(0), "(a, now b)")
	c.state("InjectionOutdated")

	main = c.start("b")
	c.gpus(7)
	require.Len(t, c.state("UnhealthyDevices").DevicePlugin.Faults, 1, "what was known of their health is not lost")
	c.kubelet.Stop()
	require.Eventually(t, func() bool { return os.RemoveAll(kubeletDir) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, os.Mkdir(kubeletDir, 0o750))
	require.Contains(t, main.ends(program.Failed), "plugin folder was replaced: "+kubeletDir)
}

// Two changes in quick succession once removed all GPUs from the node, because of the
// kubelet's back-off before it creates a container again.
func TestContainerFollowsAMIGLayoutWithoutARestart(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	c := newCluster(t)
	built.Gpusim(t, "up", "--profile", "a100-80gb", "--gpus", "2")
	c.inject("a.1", driverDir)
	main := c.start("a.1", "--mig-strategy=mixed")
	c.gpus(2)
	layouts := []string{"1g.10gb,1g.10gb,3g.40gb", "2g.20gb,1g.10gb", "7g.80gb"}
	for i, layout := range layouts {
		built.Gpusim(t, "mig", "--gpu", "0", "--layout", layout)
		c.inject(fmt.Sprintf("a.%d", i+2), driverDir)
		c.gpus(1)
		for _, profile := range []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"} {
			want := strings.Count(layout, profile)
			_, err := c.kubelet.Wait(soon(t), "nvidia.com/mig-"+profile, func(r kubelettest.Resource) bool {
				return r.Allocatable == want && (want == 0 || !r.Gone)
			})
			require.NoError(t, err, "%s of %s", profile, layout)
		}
	}
	_, err := c.kubelet.Admit(soon(t), kubelettest.Pod{Namespace: "default", Name: "all", Container: "main", Requests: map[string]int{"nvidia.com/mig-7g.80gb": 1}})
	require.NoError(t, err)
	require.False(t, main.ended(), "the container is still the one that was given no instance")
	built.Gpusim(t, "mig", "--gpu", "0", "--off")
	c.inject("a.9", driverDir)
	c.gpus(2)
	c.inject("b.9", driverDir) // another GPU, or driver
	require.Contains(t, main.ends(0), "(a.1, now b.9)")
}

func TestContainerWithoutInjectionReportsIt(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	c := newCluster(t)
	built.Gpusim(t, "up", "--profile", "t4")
	c.inject("a", driverDir)
	for range 2 { // the toolkit's earlier state must not end it again
		again := c.start(injection.Expected)
		require.Contains(t, again.ends(program.Failed), "gpu-device-plugin: InjectionMissing: this container was created without the GPUs' device nodes: ")
		require.NotContains(t, again.output, "ermission")
		boot, err := nodestate.ReadBoot(pluginDir, c.boot)
		require.NoError(t, err)
		require.EqualValues(t, "InjectionMissing", boot.Reason)
	}
	main := c.start("a") // the annotation was added
	c.gpus(1)
	c.inject("b", driverDir)
	main.ends(0)
}

func TestContainerFindsTheInjectedHostDriver(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	c := newCluster(t)
	// Not at /run/nvidia/driver, which is an empty folder: to the container it
	// makes no difference whether this is / or not.
	built.Gpusim(t, "up", "--profile", "t4", "--root", "/opt/driver")
	c.inject("a", "/opt/driver")
	main := c.start("a")
	c.gpus(1)
	require.Equal(t, "/opt/driver", c.state("").Driver.Root, "as the host calls it")
	c.inject("b", "/opt/driver")
	main.ends(0)
}

func TestContainerServesTheOldDriverUntilTheNextContainer(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	c := newCluster(t)
	built.Gpusim(t, "up", "--profile", "t4")
	c.inject("a", driverDir)
	main := c.start("a")
	c.gpus(1)
	version := func(want string) {
		t.Helper()
		c.waitForState("driver "+want, func(s nodestate.State) bool {
			return s.Driver != nil && s.Driver.Version == want && s.DevicePlugin.Registered
		})
	}
	version("580.95.05")
	built.Gpusim(t, "up", "--profile", "t4", "--driver-version", "590.10.01")
	version("590.10.01")
	c.gpus(1)
	c.inject("b", driverDir)
	main.ends(0)
	require.Contains(t, main.output, "executing this program again with the same socket")
	main = c.start("b")
	c.gpus(1)
	version("590.10.01")
	c.inject("c", driverDir)
	main.ends(0)
}

// A driver container shows its root by a mount, which appears and disappears with it.
// The pod's mount of the folder below is older.
func TestContainerFollowsTheMountOfTheDriverRoot(t *testing.T) {
	t.Parallel()
	if !node.Enter(t) {
		return
	}
	require.NoError(t, unix.Unmount(driverDir, unix.MNT_DETACH)) // the node's own
	require.NoError(t, unix.Mount("", "/run", "", unix.MS_SHARED, ""))
	up := func() {
		t.Helper()
		require.NoError(t, unix.Mount("tmpfs", driverDir, "tmpfs", 0, "mode=755"))
		built.Gpusim(t, "up", "--profile", "t4")
	}
	c := newCluster(t)
	c.writeToolkitState(nodestate.State{Phase: nodestate.Waiting, Reason: injection.ReasonNoGPU}, "")
	quiet := c.start(injection.Expected)
	c.state("NoGPU")
	up()
	c.state("InjectionMissing")
	c.inject("a", driverDir)
	quiet.ends(0)

	main := c.start("a")
	c.gpus(1)
	require.NoError(t, unix.Unmount(driverDir, unix.MNT_DETACH))
	up()
	c.inject("b", driverDir) // the container's own mount of the root stays what it was
	main.ends(0)
	require.NotContains(t, main.output, "path=/usr", "the copies that were injected are not the driver")
}
