package plugin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.uber.org/goleak"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpuready/gpuready/dra/claim"
	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) {
	leak.Main(m,
		// One inotify instance serves the whole process, and klog flushes its buffers.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// clientWithoutSlices returns a client of an API server that has no ResourceSlice.
func clientWithoutSlices(t *testing.T) kubernetes.Interface {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/apis/resource.k8s.io/v1/resourceslices" {
			http.Error(w, "it only lists ResourceSlices", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "items": []}`)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return client
}

// bench is a Plugin without a kubelet on a folder, and the device plugin that writes there.
type bench struct {
	*Plugin
	t     *testing.T
	dir   string // of the device plugin's state
	state nodestate.State
}

func newBench(t *testing.T, silence time.Duration) *bench {
	hostRoot := t.TempDir()
	root, err := host.Open(hostRoot)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	boot, err := nodestate.BootID()
	require.NoError(t, err)
	b := &bench{t: t, dir: filepath.Join(hostRoot, "state/deviceplugin")}
	kubelet := t.TempDir()
	require.NoError(t, os.MkdirAll(Config{KubeletDir: kubelet}.DataDir(), 0o755))
	b.Plugin = newPlugin(Config{NodeName: "node-1", KubeletDir: kubelet, Client: clientWithoutSlices(t), HostRoot: hostRoot, StateDir: "/state", Silence: silence, Log: slog.New(slog.DiscardHandler)}, boot, root)
	b.state = nodestate.State{Component: nodestate.DevicePlugin, Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{
		Serve: nodestate.ServeDRA, Inventory: []nodestate.GPU{{UUID: "GPU-0", Condition: nodestate.Condition{Health: nodestate.Healthy}}}}}
	return b
}

// alive writes the state as a living device plugin does, and returns its end.
func (b *bench) alive() (end func()) {
	b.t.Helper()
	require.NoError(b.t, nodestate.Write(b.dir, b.state))
	held, err := nodestate.Hold(b.dir)
	require.NoError(b.t, err)
	require.NoError(b.t, nodestate.Write(b.dir, b.state))
	return func() { _ = held.Close() }
}

// watch runs watchState until the test ends.
func (b *bench) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.watchState(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		require.ErrorIs(b.t, <-ended, context.Canceled)
	})
}

// reason returns the reason of the first device's taint; "": it has none, "-": there is no device.
func reason(i inventory.Inventory) gpu.Reason {
	if len(i.Devices) == 0 {
		return "-"
	}
	return i.Devices[0].Fault.Reason
}

// waitReason waits until the first device has a taint of that reason.
func (b *bench) waitReason(want gpu.Reason) {
	b.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		b.mu.Lock()
		inv, known, changed := b.current, b.known, b.changed
		b.mu.Unlock()
		if known && reason(inv) == want {
			return
		}
		select {
		case <-changed:
		case <-limit:
			b.t.Fatalf("waited for %q, and it is %q: %v", want, reason(inv), inv.Why)
		}
	}
}

func TestNothingIsOfferedBeforeTheDevicePluginLives(t *testing.T) {
	b := newBench(t, time.Hour)
	b.watch()
	b.waitReason("-")
	require.Equal(t, inventory.ReasonUnknown, b.inventory().Why.Reason)
	require.NoError(t, nodestate.Write(b.dir, b.state))
	b.waitReason("-") // written by a process that has ended, or has not marked itself yet
	defer b.alive()()
	b.waitReason("")
}

// A driver that starts while the device plugin is away must not withdraw the devices that pods hold.
func TestADriverThatStartsWithoutTheDevicePluginTaints(t *testing.T) {
	b := newBench(t, 200*time.Millisecond)
	b.alive()()
	b.watch()
	b.waitReason(inventory.ReasonSilent)
	defer b.alive()()
	b.waitReason("")
}

func TestAShortAbsenceOfTheDevicePluginIsNoFault(t *testing.T) {
	b := newBench(t, 400*time.Millisecond)
	end := b.alive()
	b.watch()
	b.waitReason("")
	b.mu.Lock()
	changed := b.changed
	b.mu.Unlock()
	end()
	again := b.alive()
	select {
	case <-changed:
		require.Empty(t, reason(b.inventory()), "it was away for a moment only")
	case <-time.After(time.Second):
	}
	again()
	b.waitReason(inventory.ReasonSilent)
	require.NoError(t, os.Remove(filepath.Join(b.dir, nodestate.FileName)))
	b.waitReason(inventory.ReasonUnknown)
	defer b.alive()()
	b.waitReason("")
}

// A new process of the device plugin writes what an earlier one recorded before it has a configuration
// and a driver: nobody watches the GPUs, and what is excluded is not known.
func TestGPUsThatNobodyHasReadGetATaint(t *testing.T) {
	b := newBench(t, 200*time.Millisecond)
	end := b.alive()
	b.watch()
	b.waitReason("")
	end()
	excluded := b.state.DevicePlugin.Inventory[0]
	excluded.UUID, excluded.Minor = "GPU-1", 1
	read := *b.state.DevicePlugin
	b.state.DevicePlugin.Inventory = append([]nodestate.GPU{excluded}, read.Inventory...)
	for _, reason := range []gpu.Reason{"ConfigNotChosen", "Starting"} {
		b.state.Phase, b.state.Reason, b.state.Message = nodestate.Waiting, reason, "waiting"
		defer b.alive()()
		b.waitReason(inventory.ReasonSilent)
		require.Contains(t, b.inventory().Why.Message, "has not read the GPUs yet: "+string(reason))
		require.Len(t, b.inventory().Devices, 1)
		b.state.Phase, b.state.Reason, b.state.DevicePlugin = nodestate.Ready, "", &read
		defer b.alive()()
		b.waitReason("")
	}
}

// What could not be recorded is tried again, also during a short absence of the device plugin.
func TestARetryDoesNotShortenTheAbsenceThatIsNoFault(t *testing.T) {
	b := newBench(t, time.Hour)
	lock := filepath.Join(b.cfg.DataDir(), "checkpoint.json.lock")
	require.NoError(t, os.Mkdir(lock, 0o755)) // so that nothing can be recorded
	end := b.alive()
	b.watch()
	require.Eventually(t, func() bool { return testutil.ToFloat64(b.metrics.publishErrors) > 0 }, 30*time.Second, time.Millisecond)
	end()
	require.NoError(t, nodestate.Write(b.dir, b.state)) // an event beside that of the end
	time.Sleep(followRetry / 4)
	require.NoError(t, os.Remove(lock))
	b.waitReason("")
}

func TestARetryOffersNothingOfAStateThatNobodyHolds(t *testing.T) {
	b := newBench(t, time.Hour)
	lock := filepath.Join(b.cfg.DataDir(), "checkpoint.json.lock")
	require.NoError(t, os.Mkdir(lock, 0o755)) // so that nothing can be recorded
	b.watch()
	require.Eventually(t, func() bool { return testutil.ToFloat64(b.metrics.publishErrors) > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, nodestate.Write(b.dir, b.state)) // by a device plugin that does not hold it yet
	time.Sleep(followRetry / 4)
	require.NoError(t, os.Remove(lock))
	b.waitReason("-")
	require.Equal(t, inventory.ReasonUnknown, b.inventory().Why.Reason)
	defer b.alive()()
	b.waitReason("")
}

func TestADevicePluginThatOffersTheGPUsItselfIsBelievedAtOnce(t *testing.T) {
	b := newBench(t, time.Hour)
	end := b.alive()
	b.watch()
	b.waitReason("")
	end()
	b.state.DevicePlugin.Serve = nodestate.ServePlugin
	require.NoError(t, nodestate.Write(b.dir, b.state)) // not yet marked as alive, or never
	b.waitReason("-")
	require.Equal(t, inventory.ReasonServedByPlugin, b.inventory().Why.Reason)
}

func TestTheKubeletIsToldOfTheHealth(t *testing.T) {
	b := newBench(t, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	reports, ended := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 1)
	problem := inventory.Problem{}
	b.setInventory(inventory.New(b.state, problem, nil))
	go func() { ended <- b.WatchHealthStatus(ctx, reports) }()
	first := <-reports
	require.Equal(t, "gpu-0", first.Devices[0].DeviceName)
	require.Equal(t, "node-1", first.Devices[0].PoolName)
	require.Equal(t, kubeletplugin.HealthStatusHealthy, first.Devices[0].Health)
	problem = inventory.Problem{Reason: inventory.ReasonSilent, Message: "its writer has ended"}
	b.setInventory(inventory.New(b.state, problem, nil))
	second := <-reports
	require.Equal(t, kubeletplugin.HealthStatusUnhealthy, second.Devices[0].Health)
	require.Equal(t, "DevicePluginSilent: its writer has ended", second.Devices[0].Message)
	cancel()
	require.NoError(t, <-ended)
}

func TestReadyNamesWhatIsMissing(t *testing.T) {
	b := newBench(t, time.Hour)
	require.ErrorContains(t, b.Ready(), "waiting for the state of gpu-device-plugin")
	close(b.started)
	require.ErrorContains(t, b.Ready(), "waiting for the API server to list this node's ResourceSlices; next: ")
	b.listed.Store(true)
	b.setInventory(inventory.New(nodestate.State{}, inventory.Problem{}, nil))
	require.ErrorContains(t, b.Ready(), "InventoryUnknown: gpu-device-plugin has not published its inventory; next: ")
	b.setInventory(inventory.New(b.state, inventory.Problem{}, nil))
	require.ErrorContains(t, b.Ready(), "waiting for the kubelet to register this driver")
	register := func(status *registerapi.RegistrationStatus) {
		_, err := b.intercept(t.Context(), status, nil, func(context.Context, any) (any, error) { return nil, nil })
		require.NoError(t, err)
	}
	register(&registerapi.RegistrationStatus{Error: "no such version"})
	require.ErrorContains(t, b.Ready(), "no such version")
	register(&registerapi.RegistrationStatus{PluginRegistered: true})
	require.NoError(t, b.Ready())
}

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	return ln
}

func TestSocketsOfKilledInstancesAreRemoved(t *testing.T) {
	dir, err := os.MkdirTemp("", "dra")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	b := newBench(t, time.Hour)
	b.cfg.KubeletDir = dir
	registry := filepath.Join(dir, "plugins_registry")
	require.NoError(t, os.MkdirAll(registry, 0o755))
	require.NoError(t, os.MkdirAll(b.cfg.DataDir(), 0o755))
	live := listen(t, filepath.Join(registry, "gpu.nvidia.com-b-reg.sock"))
	live.SetUnlinkOnClose(false)
	for _, path := range []string{filepath.Join(registry, "gpu.nvidia.com-a-reg.sock"), filepath.Join(b.cfg.DataDir(), "dra-a.sock"), filepath.Join(registry, "other-reg.sock")} {
		killed := listen(t, path)
		killed.SetUnlinkOnClose(false)
		require.NoError(t, killed.Close())
	}
	b.removeStaleSockets(t.Context())
	left, err := filepath.Glob(filepath.Join(registry, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(registry, "gpu.nvidia.com-b-reg.sock"), filepath.Join(registry, "other-reg.sock")}, left)
	sockets, err := filepath.Glob(filepath.Join(b.cfg.DataDir(), "*"))
	require.NoError(t, err)
	require.Empty(t, sockets)
	require.NoError(t, live.Close())
}

// Only sockets whose name begins with the driver's are looked for.
func TestTheNameOfASocketBeginsWithTheDriver(t *testing.T) {
	uid := types.UID("00000000-0000-4000-8000-000000000000")
	for n := 1; n < 108; n++ {
		registry := strings.Repeat("x", n)
		file := kubeletplugin.RollingUpdateRegistrarSocketFile(registry, inventory.Driver, uid)
		if len(registry)+1+len(file) <= 108 { // what the kernel accepts
			require.True(t, strings.HasPrefix(file, inventory.Driver+"-"), "%d: %s", n, file)
		}
	}
}

// published records what is published.
type published struct{ resourceslice.DriverResources }

func (p *published) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	p.DriverResources = r
	return nil
}

// An API server that drops the counters would have the scheduler choose partitions that overlap.
func TestNoPartitionIsPublishedWithoutCounters(t *testing.T) {
	b, last := newBench(t, time.Hour), &published{}
	b.helper = last
	b.state.DevicePlugin.MIG = nodestate.MIGDynamic
	g := &b.state.DevicePlugin.Inventory[0]
	g.MIGEnabled, g.Profiles = true, []nodestate.MIGProfile{{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Count: 7, Starts: []int{0, 1}}}
	b.setInventory(inventory.New(b.state, inventory.Problem{}, nil))
	changed, err := b.publish(t.Context())
	require.NoError(t, err)
	desired := last.Pools["node-1"].Slices
	require.Len(t, desired, 2)
	require.Len(t, desired[0].SharedCounters, 1)
	require.Len(t, desired[1].Devices, 2)

	sent := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: desired[0].SharedCounters}}
	b.HandleError(t.Context(), &resourceslice.DroppedFieldsError{PoolName: "node-1", DesiredSlice: sent, ActualSlice: &resourceapi.ResourceSlice{}}, "publish")
	<-changed
	_, err = b.publish(t.Context())
	require.NoError(t, err)
	require.Equal(t, []resourceslice.Slice{{}}, last.Pools["node-1"].Slices)
}

// A call that prepares a claim may hold the record for half a minute, and a record may be on a broken disk.
func TestATaintDoesNotWaitForTheRecord(t *testing.T) {
	path := func(b *bench) string { return filepath.Join(b.cfg.DataDir(), "checkpoint.json") }
	for name, obstruct := range map[string]func(t *testing.T, b *bench){
		"it is locked": func(t *testing.T, b *bench) {
			held, err := fileutil.LockFile(path(b)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, held.Close()) })
		},
		"it cannot be read": func(t *testing.T, b *bench) {
			require.NoError(t, os.Rename(b.cfg.DataDir(), b.cfg.DataDir()+"~"))
			require.NoError(t, os.WriteFile(b.cfg.DataDir(), nil, 0o600)) // it is no folder
		},
	} {
		for _, switchID := range []string{"", "next"} { // "next" has to be recorded
			t.Run(name+switchID, func(t *testing.T) {
				b := newBench(t, time.Hour)
				defer b.alive()()
				b.watch()
				b.waitReason("")
				obstruct(t, b)
				b.state.DevicePlugin.SwitchID = switchID
				for _, reason := range []gpu.Reason{gpu.ReasonXID, gpu.ReasonLost} { // also while an inventory is being recorded
					b.state.DevicePlugin.Inventory[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: reason, Message: "it is broken"}
					require.NoError(t, nodestate.Write(b.dir, b.state))
					b.waitReason(reason)
				}
				require.Len(t, b.inventory().Devices[0].API.Taints, 1)
			})
		}
	}
}

// A GPU that falls off the bus may take the device plugin with it.
func TestTheLastWordOfADevicePluginIsATaint(t *testing.T) {
	b := newBench(t, time.Hour)
	end := b.alive()
	b.watch()
	b.waitReason("")
	held, err := fileutil.LockFile(filepath.Join(b.cfg.DataDir(), "checkpoint.json.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	b.state.DevicePlugin.SwitchID = "next" // has to be recorded
	for _, reason := range []gpu.Reason{gpu.ReasonXID, gpu.ReasonLost} {
		b.state.DevicePlugin.Inventory[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: reason, Message: "it is broken"}
		require.NoError(t, nodestate.Write(b.dir, b.state))
		b.waitReason(reason)
		end()
	}
	require.NoError(t, held.Close())
	require.Eventually(t, func() bool { return b.inventory().SwitchID == "next" }, 30*time.Second, time.Millisecond)
	require.Equal(t, gpu.ReasonLost, reason(b.inventory()), "also of what is published once it is recorded")
	require.Empty(t, b.inventory().Why, "it may be back in a moment")

	b.state.DevicePlugin.Inventory[0].Condition = nodestate.Condition{Health: nodestate.Healthy}
	defer b.alive()()
	b.waitReason("")
}

// What was not recorded yet is published once it is.
func TestAnInventoryIsPublishedWhenItIsRecorded(t *testing.T) {
	b := newBench(t, time.Hour)
	defer b.alive()()
	b.watch()
	b.waitReason("")
	held, err := fileutil.LockFile(filepath.Join(b.cfg.DataDir(), "checkpoint.json.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	healthy := b.state.DevicePlugin.Inventory[0]
	for i, condition := range []nodestate.Condition{{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID}, {Health: nodestate.Healthy}} {
		b.state.DevicePlugin.SwitchID = fmt.Sprint(i)
		b.state.DevicePlugin.Inventory[0].Condition = condition
		require.NoError(t, nodestate.Write(b.dir, b.state))
		b.waitReason(gpu.ReasonXID) // the end of a fault can wait
	}
	require.NoError(t, held.Close())
	b.waitReason(healthy.Reason)
	require.Equal(t, "1", b.inventory().SwitchID)
}

func TestTheStateTellsWhichClaimsHoldNothing(t *testing.T) {
	b := newBench(t, time.Hour)
	require.NoError(t, b.preparer.Store.Save(&claim.Checkpoint{BootID: b.boot, Claims: []claim.Prepared{{UID: "uid", Namespace: "team", Name: "watch",
		Devices: []claim.PreparedDevice{{Name: "gpu-0", UUID: "GPU-0", Admin: true, CDI: "k8s.gpuready.io/gpu=GPU-0"}}}}}))
	_, err := b.UnprepareResourceClaims(t.Context(), nil)
	require.NoError(t, err)
	<-b.stateDue
	require.NoError(t, b.writeState(t.Context(), withdrawal{}))
	s, err := nodestate.ReadBoot(b.stateDir(nodestate.DRADriver), b.boot)
	require.NoError(t, err)
	require.Equal(t, []nodestate.ClaimedDevice{{Claim: "team/watch", GPU: "GPU-0"}}, s.DRADriver.AdminAccess)
}
