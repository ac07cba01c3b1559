package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/partition"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/golden"
)

// newMIGNode is a node with a simulated driver, whose first GPU is in MIG mode, and with the real toolkit and
// device plugin. layout lists MIG devices that a person has created.
func newMIGNode(t *testing.T, profile, layout string) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("device nodes need root")
	}
	dir, err := os.MkdirTemp("", "mig") // the paths of sockets must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, api: newAPIServer(t)}
	for _, folder := range []string{"plugins", "plugins_registry", "host/dp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	n.kubelet = newKubelet(t, dir)
	require.NoError(t, os.Link(filepath.Join(dir, "kubelet.sock"), filepath.Join(dir, "host/dp/resources.sock"))) // as the device plugin sees it
	built.Gpusim(t, "up", "--root", n.driver(), "--profile", profile, "--gpus", "2")
	t.Cleanup(func() { built.Gpusim(t, "down", "--root", n.driver()) })
	if layout == "" {
		n.sim("mig", "--gpu", "0", "--on")
	} else {
		n.sim("mig", "--gpu", "0", "--layout", layout)
	}
	built.Start(t, "gpu-toolkit", n.hostArgs("run", "--hook-program="+built.Path(t, "gpu-cdi-hook")))
	return n
}

func (n *node) hostArgs(args ...string) []string {
	return append(args, "--host-root="+filepath.Join(n.dir, "host"), "--driver-root=/driver", "--state-dir=/state", "--listen=")
}

func (n *node) startDevicePlugin() *built.Process {
	return built.Start(n.t, "gpu-device-plugin", n.hostArgs("--kubelet-socket=/dp/kubelet.sock", "--pod-resources-socket=/dp/resources.sock", "--serve=dra", "--mig=dynamic"))
}

func (n *node) driver() string { return filepath.Join(n.dir, "host/driver") }

func (n *node) sim(command string, args ...string) string {
	n.t.Helper()
	return built.Gpusim(n.t, append([]string{command, "--root", n.driver()}, args...)...)
}

// waitInventory waits until the device plugin's state satisfies cond.
func (n *node) waitInventory(why string, cond func(nodestate.GPU) bool) nodestate.GPU {
	n.t.Helper()
	boot, err := nodestate.BootIDAt(filepath.Join(n.dir, "host"))
	require.NoError(n.t, err)
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	var last nodestate.GPU
	found := false
	_ = nodestate.WatchBoot(ctx, filepath.Join(n.dir, "host/state/deviceplugin"), boot, func(s nodestate.State, err error) {
		if err == nil && !found && s.Phase == nodestate.Ready && len(s.DevicePlugin.Inventory) > 0 {
			last = s.DevicePlugin.Inventory[0]
			if found = cond(last); found {
				cancel()
			}
		}
	})
	require.True(n.t, found, "%s: the GPU came to be %+v", why, last)
	return last
}

// starts returns where the GPU instances of the first GPU begin.
func starts(g nodestate.GPU) (all []int) {
	for _, i := range g.Instances {
		all = append(all, i.Start)
	}
	slices.Sort(all)
	return all
}

func (n *node) waitStarts(why string, want ...int) {
	n.t.Helper()
	n.waitInventory(why, func(g nodestate.GPU) bool { return slices.Equal(starts(g), want) })
}

const (
	small = "gpu-0-mig-1g10gb-19-%d"
	large = "gpu-0-mig-3g40gb-9-4"
)

func (n *node) waitPartitions() map[string]resourceapi.Device {
	n.t.Helper()
	n.waitDevices("partitions are published", func(devices map[string]resourceapi.Device) bool {
		return len(devices[large].ConsumesCounters) == 1 && untaintedAll(devices)
	})
	devices, _ := n.api.devices()
	return devices
}

func untaintedAll(devices map[string]resourceapi.Device) bool {
	for _, d := range devices {
		if len(d.Taints) > 0 {
			return false
		}
	}
	return true
}

// What the driver reports of its GPUs is what package inventory is tested with.
func TestProfilesMatchTheGoldenFile(t *testing.T) {
	t.Parallel()
	var all []nodestate.GPU
	for _, profile := range []string{"a100-80gb", "h100-sxm", "b200", "rtx-pro-6000"} {
		n := newMIGNode(t, profile, "")
		n.startDevicePlugin()
		all = append(all, n.waitInventory("the GPU is read", func(g nodestate.GPU) bool { return len(g.Profiles) > 0 }))
	}
	data, err := json.MarshalIndent(all, "", " ")
	require.NoError(t, err)
	// Each profile is one line.
	text := regexp.MustCompile(`\{[^{}]*"starts"[^{}]*\}`).ReplaceAllStringFunc(string(data), func(profile string) string { return strings.Join(strings.Fields(profile), " ") })
	golden.Require(t, "inventory/testdata/partitionable.json", text+"\n")
}

func TestPartitionsAreCreatedForClaimsAndDestroyed(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t, "h100-sxm", "2g.20gb@2")
	n.startDevicePlugin()
	n.start("pod-1")
	client := n.register(t, "pod-1")
	devices := n.waitPartitions()
	require.Contains(t, devices, "gpu-1", "the other GPU is whole")
	var existing []string
	for name, d := range devices {
		if d.Attributes["uuid"].StringValue != nil && strings.Contains(name, "-mig-") {
			existing = append(existing, name)
		}
	}
	require.Len(t, existing, 1, "the MIG device that a person has created")

	first, second := n.claim("first", fmt.Sprintf(small, 0)), n.claim("second", large)
	var took, gone []time.Duration // the simulated NVML takes no time: it is the own share
	for range 9 {
		began := time.Now()
		_, refusal, err := prepare(t.Context(), client, first)
		require.NoError(t, err)
		require.Empty(t, refusal)
		took = append(took, time.Since(began))
		began = time.Now()
		refusal, err = unprepare(t.Context(), client, first)
		require.NoError(t, err)
		require.Empty(t, refusal)
		gone = append(gone, time.Since(began))
	}
	slices.Sort(took)
	slices.Sort(gone)
	t.Logf("prepared in %v to %v, p50 %v; unprepared in %v to %v, p50 %v", took[0], took[8], took[4], gone[0], gone[8], gone[4])
	names, refusal, err := prepare(t.Context(), client, first)
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.Len(t, names, 1)
	require.True(t, strings.HasPrefix(names[0], "k8s.gpuready.io/gpu=MIG-"), names[0])
	more, refusal, err := prepare(t.Context(), client, second)
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.NotEqual(t, names, more)
	again, _, err := prepare(t.Context(), client, first)
	require.NoError(t, err)
	require.Equal(t, names, again)
	n.waitStarts("both exist", 0, 2, 4)
	var out strings.Builder
	require.Zero(t, runProgram(t.Context(), []string{"devices", "--node-name=node-1", "--kubelet-dir=" + n.dir, "--host-root=" + filepath.Join(n.dir, "host"), "--state-dir=/state"}, &out, &out))
	require.Equal(t, len(devices)+1, strings.Count(out.String(), "\n"), "the same are listed, below a heading:\n%s", out.String())

	_, refusal, err = prepare(t.Context(), client, n.claim("thief", fmt.Sprintf(small, 5)))
	require.NoError(t, err)
	require.Contains(t, refusal, "is in use by claim team/second")
	_, refusal, err = prepare(t.Context(), client, n.claim("blind", fmt.Sprintf(small, 3)))
	require.NoError(t, err)
	require.Contains(t, refusal, "the GPU has no room for the partition there: GPU instance 4 is at memory slice 2; next: remove what was created there by hand")

	for _, c := range []*resourceapi.ResourceClaim{first, second} {
		refusal, err = unprepare(t.Context(), client, c)
		require.NoError(t, err)
		require.Empty(t, refusal)
	}
	n.waitStarts("both are gone, and the person's stays", 2)
	after, _ := n.api.devices()
	require.Len(t, after, len(devices), "what is published does not change with the claims")
	require.Contains(t, after, existing[0])
}

func TestAPartitionThatFailsHalfWayIsRemoved(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t, "a100-80gb", "")
	n.startDevicePlugin()
	n.start("pod-1")
	client := n.register(t, "pod-1")
	n.waitPartitions()
	n.sim("fail", "--mig", "unknown")
	c := n.claim("c", fmt.Sprintf(small, 0), large)
	_, refusal, err := prepare(t.Context(), client, c)
	require.NoError(t, err)
	require.Contains(t, refusal, "device gpu-0-mig-1g10gb-19-0: its partition cannot be created: nvmlGpuInstanceCreateComputeInstance: unknown error of the driver (NVML error 999); next: see the log of gpu-device-plugin")
	n.waitStarts("nothing is left")
	record, err := n.store().Load(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Empty(t, record.Partitions)
	n.sim("fail", "--mig", "none")
	names, refusal, err := prepare(t.Context(), client, c)
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.Len(t, names, 2)
	n.waitStarts("both exist", 0, 4)
}

// unprepareWhenServed ends a claim as the kubelet does: it tries again while the device plugin does not serve
// its socket yet.
func (n *node) unprepareWhenServed(client drapb.DRAPluginClient, c *resourceapi.ResourceClaim) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for {
		refusal, err := unprepare(ctx, client, c)
		require.NoError(n.t, err)
		if !strings.Contains(refusal, partition.ErrUnavailable.Error()) {
			require.Empty(n.t, refusal)
			return
		}
		select {
		case <-ctx.Done():
			require.Empty(n.t, refusal)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// The driver and the device plugin are killed at any moment while claims come and go.
func TestNoPartitionIsLeftHoweverTheProgramsDie(t *testing.T) {
	t.Parallel()
	rounds := 8
	if !testing.Short() {
		rounds = 25
	}
	n := newMIGNode(t, "h100-sxm", "2g.20gb@2")
	var claims []*resourceapi.ResourceClaim
	for i, devices := range [][]string{{fmt.Sprintf(small, 0)}, {fmt.Sprintf(small, 1), large}, {fmt.Sprintf(small, 0), fmt.Sprintf(small, 1)}, {large}, {fmt.Sprintf(small, 2)}} {
		claims = append(claims, n.claim(fmt.Sprintf("c%d", i), devices...))
	}
	prepared := 0
	maker := n.startDevicePlugin()
	limit := time.Now().Add(2 * time.Minute)
	for round := 0; round < rounds || prepared == 0; round++ { // a busy machine may need more of them
		require.True(t, time.Now().Before(limit), "no claim was ever prepared")
		p := n.start("pod-1")
		client := n.register(t, "pod-1")
		ctx, cancel := context.WithCancel(t.Context())
		killed := false // the device plugin
		var killer sync.WaitGroup
		killer.Go(func() {
			defer cancel()
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
			if rand.IntN(3) == 0 {
				killed = true
				_ = maker.Signal(syscall.SIGKILL)
				time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
			}
			_ = p.Signal(syscall.SIGKILL)
		})
		for ctx.Err() == nil {
			c := claims[rand.IntN(len(claims))]
			if rand.IntN(2) == 0 {
				if _, refusal, err := prepare(ctx, client, c); err == nil && refusal == "" {
					prepared++
				}
				continue
			}
			_, _ = unprepare(ctx, client, c)
		}
		killer.Wait()
		_, err := p.Wait(t.Context())
		require.NoError(t, err)
		if killed {
			_, err := maker.Wait(t.Context())
			require.NoError(t, err)
			maker = n.startDevicePlugin()
		}
	}
	n.start("pod-1")
	client := n.register(t, "pod-1")
	for _, c := range claims {
		n.unprepareWhenServed(client, c)
	}
	n.waitStarts("only the person's partition is left", 2)
	require.Contains(t, n.sim("status"), "2g.20gb")
	record, err := n.store().Load(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Empty(t, record.Partitions)
	require.Empty(t, record.Claims)
}
