package nvml

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

const patience = time.Minute

func TestFailuresOfTheDriverAreSentinels(t *testing.T) {
	for ret, want := range map[nvml.Return]error{
		nvml.ERROR_LIBRARY_NOT_FOUND:       gpu.ErrNoDriver,
		nvml.ERROR_DRIVER_NOT_LOADED:       gpu.ErrNoDriver,
		nvml.ERROR_NO_PERMISSION:           gpu.ErrNoPermission,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: gpu.ErrVersionMismatch,
	} {
		f, s := newFake(t, gputest.Node("t4", 2), Options{})
		f.driver = ret
		_, err := s.Snapshot(t.Context())
		require.ErrorIs(t, err, want)
		err = s.Watch(t.Context(), func() { t.Error("ready") }, func(gpu.Event) {})
		require.ErrorIs(t, err, want)
		opened := wrapOpen("/lib/libnvidia-ml.so.1", check("nvmlInit", ret))
		require.ErrorIs(t, opened, want)
		require.Contains(t, opened.Error(), "/lib/libnvidia-ml.so.1")
	}
	require.NoError(t, check("nvmlInit", nvml.SUCCESS))
	unknown := wrapOpen("/lib/x", check("nvmlInit", nvml.Return(4711)))
	require.Equal(t, "/lib/x: nvmlInit: failed (NVML error 4711); see the kernel log (dmesg) for NVRM lines", unknown.Error())
}

func TestOneForbiddenGPULeavesTheOthers(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 3), Options{})
	f.gpus[1].handle = nvml.ERROR_NO_PERMISSION
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonUnreadable, got.Devices[1].Fault.Reason)
	require.Zero(t, got.Devices[0].Fault)
	require.Zero(t, got.Devices[2].Fault)

	for _, g := range f.gpus {
		g.handle = nvml.ERROR_NO_PERMISSION
	}
	_, err = s.Snapshot(t.Context())
	require.ErrorIs(t, err, gpu.ErrNoPermission, "no GPU may be used at all")
}

func TestNoGPUIsAnEmptySnapshot(t *testing.T) {
	_, s := newFake(t, gpu.Snapshot{}, Options{})
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, got.Devices)
	require.Equal(t, "13.0", got.Driver.CUDAVersion)
}

func TestHangingGPULeavesNeighboursHealthy(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 3), Options{CallTimeout: 100 * time.Millisecond})
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	hang := make(chan struct{})
	f.locked(func() { f.gpus[1].hang = hang })
	goroutines := runtime.NumGoroutine()
	for range 5 {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Devices, 3)
		require.Zero(t, got.Devices[0].Fault)
		require.Zero(t, got.Devices[2].Fault)
		hung := got.Devices[1]
		require.Equal(t, gpu.ReasonUnreadable, hung.Fault.Reason)
		require.Contains(t, hung.Fault.Message, "GPU 1")
		require.Equal(t, gputest.GPU(1), hung.UUID, "it is still called by its name")
		require.Equal(t, before.Links, got.Links, "and still has its place")
	}
	// The goroutines of calls that have returned take a moment to end.
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines+1 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1, "one goroutine hangs, not one for each attempt")
	require.Error(t, s.Close(), "NVML cannot be shut down under a call that hangs, and that is said")
	close(hang)
}

func TestHangingGPUsDoNotBlockTheirNeighbours(t *testing.T) {
	const limit = time.Minute
	f, s := newFake(t, gputest.Node("h100-sxm", 8), Options{CallTimeout: limit})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	hang, last := make(chan struct{}), make(chan struct{})
	f.locked(func() {
		for i := range 7 {
			f.gpus[i].hang = hang
		}
		f.gpus[7].hang = last
	})
	done := make(chan error, 1)
	go func() {
		_, err := s.Snapshot(t.Context())
		done <- err
	}()
	select { // GPU 7 is read though all before it hang
	case last <- struct{}{}:
	case <-time.After(limit / 2):
		t.Error("GPU 7 is not asked")
	}
	close(hang)
	close(last)
	require.NoError(t, <-done)
	require.NoError(t, s.Close())
}

func TestHangingDriverAndItsRecoveryAreReportedOnce(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{CallTimeout: 50 * time.Millisecond})
	events := start(t, s)
	f.mu.Lock() // every call waits for it
	got := events.next(t)
	require.Equal(t, gpu.EventUnwatched, got.Kind)
	require.Equal(t, gpu.UUID(""), got.UUID, "all of them")
	require.Contains(t, got.Message, "has not answered")
	f.mu.Unlock()
	events.until(t, gpu.EventChanged, "")
}

func TestGPULostBeforeItsFirstReadHasTheKernelsUUID(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	root := driverRoot(t, map[string]string{
		"/proc/driver/nvidia/gpus/0000:11:00.0/information": "Model: \t\t Tesla T4\nGPU UUID: \t " + string(gputest.GPU(1)) + "\nDevice Minor: \t 1\n",
		"/proc/driver/nvidia/gpus/0000:10:00.0/information": "Model: \t\t Tesla T4\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n",
		"/sys/bus/pci/devices/0000:11:00.0/numa_node":       "1\n",
	})
	var err error
	s.places, err = openPlaces(Options{HostRoot: root}, true)
	require.NoError(t, err)
	defer s.Close()
	f.gpus[0].handle, f.gpus[1].handle = nvml.ERROR_UNKNOWN, nvml.ERROR_GPU_IS_LOST
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 2)
	require.Equal(t, gpu.Device{
		Index: 1, UUID: gputest.GPU(1), Product: "Tesla T4", PCI: "0000:11:00.0", Minor: 1, NUMANode: 1,
		Fault: gpu.Fault{Reason: gpu.ReasonLost, Message: "nvmlDeviceGetHandleByIndex: the GPU is lost: nothing reaches it any more (NVML error 15)"},
	}, got.Devices[1])
	require.Empty(t, got.Devices[0].UUID, "nobody knows")
	require.Equal(t, gpu.PCIAddress("0000:10:00.0"), got.Devices[0].PCI)
	require.Equal(t, gpu.ReasonUnreadable, got.Devices[0].Fault.Reason)
	require.Empty(t, got.Links, "a link names its ends")
}

func TestLostGPUIsNamedAlsoWhenAnotherIsGone(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 4), Options{})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	f.lose(gputest.GPU(1), "gone")
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 3)
	f.lose(gputest.GPU(2), "handle")
	got, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gputest.GPU(2), got.Devices[1].UUID)
	require.Equal(t, gpu.ReasonLost, got.Devices[1].Fault.Reason)
	require.Equal(t, 1, got.Devices[1].Index)
}

func TestOnlyFunctionsOfAnOldLibraryAreCalled(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-mig", 2), Options{})
	s.has = nil // a function that the fake lacks would end the process, as with a library
	for _, g := range f.gpus {
		g.support = nvml.EventTypeXidCriticalError
	}
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 2)
	require.False(t, got.Devices[0].MIGCapable)
	require.Equal(t, gpu.LinkUnknown, got.Links[0].Kind)
	require.Zero(t, f.topologyCallCount)
}

func TestPCIeTopologyIsReadOnce(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 4), Options{})
	for range 3 {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, gpu.LinkNode, got.Links[0].Kind)
		require.Equal(t, gpu.LinkSystem, got.Links[1].Kind)
	}
	require.Equal(t, 6, f.topologyCallCount)
}

func TestLanes(t *testing.T) {
	sw := fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_SWITCH}
	to := func(gpu int) fakeLink { return fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_GPU, remote: gpu} }
	down := sw
	down.down = true
	completed := func(clique uint32) nvml.GpuFabricInfo_v3 {
		return nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: clique}
	}
	for name, c := range map[string]struct {
		links  [2][]fakeLink
		fabric [2]nvml.GpuFabricInfo_v3
		want   int
	}{
		"none":                {want: 0},
		"direct":              {links: [2][]fakeLink{{to(1), to(1), to(1)}, {to(0), to(0), to(0)}}, want: 3},
		"asymmetric":          {links: [2][]fakeLink{{to(1), to(1)}, {to(0)}}, want: 1},
		"one side only":       {links: [2][]fakeLink{{to(1)}, {}}, want: 0},
		"through switches":    {links: [2][]fakeLink{{sw, sw, sw, sw}, {sw, sw, sw, sw}}, want: 4},
		"one lane is down":    {links: [2][]fakeLink{{sw, down, sw, sw}, {sw, sw, sw, sw}}, want: 3},
		"one fabric":          {links: [2][]fakeLink{{sw, sw}, {sw, sw}}, fabric: [2]nvml.GpuFabricInfo_v3{completed(1), completed(1)}, want: 2},
		"two fabrics":         {links: [2][]fakeLink{{sw, sw}, {sw, sw}}, fabric: [2]nvml.GpuFabricInfo_v3{completed(1), completed(2)}, want: 0},
		"to the CPU":          {links: [2][]fakeLink{{{kind: nvml.NVLINK_DEVICE_TYPE_IBMNPU}}, {{kind: nvml.NVLINK_DEVICE_TYPE_IBMNPU}}}, want: 0},
		"kind unknown":        {links: [2][]fakeLink{{{kind: nvml.NVLINK_DEVICE_TYPE_UNKNOWN, remote: 1}}, {to(0)}}, want: 1},
		"to itself (bridges)": {links: [2][]fakeLink{{to(0)}, {to(1)}}, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t, gputest.Node("t4", 2), Options{})
			for i := range f.gpus {
				f.gpus[i].links, f.gpus[i].fabric = c.links[i], c.fabric[i]
			}
			got, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.Len(t, got.Links, 1)
			require.Equal(t, c.want, got.Links[0].Lanes)
			require.Equal(t, c.want > 0, got.Links[0].Kind == gpu.LinkNVLink)
		})
	}
}

func TestFabricStates(t *testing.T) {
	for want, info := range map[gpu.FabricState]nvml.GpuFabricInfo_v3{
		gpu.JoiningNone:    {State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED},
		gpu.JoiningWaiting: {State: nvml.GPU_FABRIC_STATE_NOT_STARTED},
		gpu.JoiningBegun:   {State: nvml.GPU_FABRIC_STATE_IN_PROGRESS},
		gpu.JoiningDone:    {State: nvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: 7},
		gpu.JoiningFailed:  {State: nvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: 7, Status: uint32(nvml.ERROR_UNKNOWN)},
	} {
		f, s := newFake(t, gputest.Node("t4", 1), Options{})
		f.gpus[0].fabric = info
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got.Devices[0].FabricState)
		require.Equal(t, want == gpu.JoiningDone, got.Devices[0].Fabric.Clique == 7)
	}
}

func TestLevelsOfTopology(t *testing.T) {
	for level, want := range map[nvml.GpuTopologyLevel]gpu.LinkKind{
		nvml.TOPOLOGY_INTERNAL: gpu.LinkBoard, nvml.TOPOLOGY_SINGLE: gpu.LinkSingle, nvml.TOPOLOGY_MULTIPLE: gpu.LinkMultiple,
		nvml.TOPOLOGY_HOSTBRIDGE: gpu.LinkHost, nvml.TOPOLOGY_NODE: gpu.LinkNode, nvml.TOPOLOGY_SYSTEM: gpu.LinkSystem, 99: gpu.LinkUnknown,
	} {
		require.Equal(t, want, kindOf(level))
	}
}

func TestNUMANodeIsSysfsThenAffinity(t *testing.T) {
	root := driverRoot(t, map[string]string{
		"/sys/bus/pci/devices/0000:10:00.0/numa_node": "3\n",
		"/sys/bus/pci/devices/0000:11:00.0/numa_node": "-1\n",
		"/sys/bus/pci/devices/0000:12:00.0/numa_node": "nonsense\n",
	})
	_, s := newFake(t, gputest.Node("t4", 2), Options{})
	var err error
	s.places, err = openPlaces(Options{HostRoot: root}, false)
	require.NoError(t, err)
	defer s.Close()
	for address, want := range map[gpu.PCIAddress]int{"0000:10:00.0": 3, "0000:11:00.0": -1, "0000:12:00.0": -1, "0000:13:00.0": -1} {
		require.Equal(t, want, s.places.numa(address), address)
	}
	s.has["nvmlDeviceGetMemoryAffinity"] = true
	for want, words := range map[int][]uint{0: {1}, 5: {32}, 64: {0, 1}, -1: {3}} {
		require.Equal(t, want, s.numaFromAffinity(affinity{words: words}))
	}
	require.Equal(t, -1, s.numaFromAffinity(affinity{words: []uint{1, 1}}), "two near nodes are not one")
	require.Equal(t, -1, s.numaFromAffinity(affinity{ret: nvml.ERROR_NOT_SUPPORTED}))
}

type affinity struct {
	nvml.Device
	words []uint
	ret   nvml.Return
}

func (a affinity) GetMemoryAffinity(int, nvml.AffinityScope) ([]uint, nvml.Return) {
	return a.words, a.ret
}

func TestClosedSourceMakesNoCalls(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	require.NoError(t, s.Close())
	f.driver = nvml.ERROR_UNKNOWN // would be returned if it were called
	_, err := s.Snapshot(t.Context())
	require.Equal(t, errClosed, err)
	require.Equal(t, 1, f.shutdowns)
	require.NoError(t, s.Close())
	require.Equal(t, 1, f.shutdowns)
}

func TestErrorsNameTheCauseAndTheRemedy(t *testing.T) {
	err := fmt.Errorf("reading: %w", &hungError{"GPU 3", time.Second})
	require.EqualError(t, err, "reading: NVML has not answered about GPU 3 for 1s: the GPU or its driver hangs; look for NVRM lines in the kernel log")
	require.False(t, errors.Is(err, gpu.ErrNoDriver))
	require.EqualError(t, wrapOpen("/x/libnvidia-ml.so.580.95.05", check("nvmlInit", nvml.ERROR_DRIVER_NOT_LOADED)),
		"no NVIDIA driver: /x/libnvidia-ml.so.580.95.05: nvmlInit: the kernel module is not loaded (NVML error 9); load the nvidia kernel module")
}
