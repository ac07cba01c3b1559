package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/deviceplugin/serve"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

const testBoot = "00000000-0000-4000-8000-000000000000"

func playedState(facts ...fact) state {
	s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{})}
	for i, f := range facts {
		s, _ = s.Next(f, time.Unix(int64(i), 0))
	}
	return s
}

func TestInventoryListsEveryGPUWithItsHealth(t *testing.T) {
	node := gputest.Node("a100-mig", 2)
	node.Devices[1].MIGEnabled, node.Devices[1].MIG = false, nil
	node.Devices[1].ComputeMode, node.Devices[1].Fabric = gpu.ComputeExclusive, gpu.Fabric{Cluster: [16]byte{15: 1}, Clique: 3}
	s := playedState(configInForce(Settings{Config: &config.Config{Devices: config.Devices{Exclude: []config.Selector{"0"}}}}),
		driverFound(node, "/", true), eventsSeen([]gpu.Event{gputest.XID(gputest.GPU(1), 79)}))
	all := s.stateFile(testBoot).DevicePlugin.Inventory
	require.Len(t, all, 2, "what the configuration leaves out is listed, too")
	require.Equal(t, nodestate.GPU{
		UUID: gputest.GPU(1), Index: 1, Minor: 1, Product: "NVIDIA A100-SXM4-80GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: "8.0",
		PCI: "0000:11:00.0", NUMANode: new(1), MemoryBytes: 80 << 30, ComputeMode: "EXCLUSIVE_PROCESS", NVLinkDomain: gputest.GPU(0), NVLinkNearest: gputest.GPU(0),
		FabricClique: "00000000-0000-0000-0000-000000000001.3", Condition: all[1].Condition,
	}, all[1])
	require.Equal(t, nodestate.Unhealthy, all[1].Health)
	require.Equal(t, gpu.ReasonXID, all[1].Reason)
	require.False(t, all[1].Since.IsZero())
	require.True(t, all[0].MIGEnabled)
	require.Len(t, all[0].MIG, 4)
	require.Equal(t, nodestate.MIGDevice{
		UUID: node.Devices[0].MIG[0].UUID, Profile: "3g.40gb", GPUInstance: 1, MemoryBytes: 40 << 30, Multiprocessors: 42, CopyEngines: 3,
		Condition: nodestate.Condition{Health: nodestate.Healthy},
	}, all[0].MIG[0])
}

// The first fault stays its reason. After the driver was loaded again, its number may be another's.
func TestTheInventoryTellsWhichGPUIsGone(t *testing.T) {
	node := gputest.Node("t4", 2)
	left := node.Clone()
	left.Devices = left.Devices[:1]
	facts := []fact{configInForce(Settings{Config: &config.Config{}}), driverFound(node, "/", true), eventsSeen([]gpu.Event{gputest.XID(gputest.GPU(1), 79)}),
		snapshotRead(left, "/", nil, nil, time.Time{})}
	all := playedState(facts...).inventory()
	require.Equal(t, gpu.ReasonXID, all[1].Reason)
	require.True(t, all[1].Missing)
	require.False(t, all[0].Missing)
	require.False(t, playedState(append(facts, snapshotRead(node, "/", nil, nil, time.Time{}))...).inventory()[1].Missing, "it is back")
}

func TestInventorySurvivesARestartOfThePlugin(t *testing.T) {
	node := gputest.Node("a100-mig", 2)
	node.Devices[0].ComputeMode, node.Devices[0].Fabric = gpu.ComputeProhibited, gpu.Fabric{Cluster: [16]byte{1}, Clique: 2}
	before := playedState(configInForce(Settings{Config: &config.Config{}}), driverFound(node, "/", true))
	after := playedState()
	after.health = health.Restore(before.stateFile(testBoot))
	require.Equal(t, before.inventory(), after.inventory(), "a GPU that is gone by now keeps its data")
}

func TestServedByDRANothingIsRegistered(t *testing.T) {
	s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{}), serve: serve.New(nodestate.ServeDRA, "", nil, false, "id").WithAccount(serve.Account{Began: time.Now()})}
	s, _ = s.Next(configInForce(Settings{Config: &config.Config{Flags: config.Flags{Plugin: config.PluginFlags{DeviceListStrategy: config.StringList{config.ListVariable}}}}}), time.Unix(1, 0))
	s, _ = s.Next(driverFound(gputest.Node("h100-sxm", 8), "/", true), time.Unix(2, 0))
	file := s.stateFile(testBoot)
	require.Equal(t, nodestate.ServeDRA, file.DevicePlugin.Serve)
	require.Empty(t, file.DevicePlugin.Resources)
	require.Len(t, file.DevicePlugin.Inventory, 8)
	require.Equal(t, nodestate.Ready, file.Phase, "it waits for no kubelet: %s", file.Message)
	require.Equal(t, nodestate.ServePlugin, playedState().stateFile(testBoot).DevicePlugin.Serve)
}

// Strategies, names and shares are those of resources, which gpu-dra-driver has not.
func TestServedByDRASettingsOfResourcesDoNotMatter(t *testing.T) {
	node := gputest.Node("a100-mig", 2)
	node.Devices[1].MIGEnabled, node.Devices[1].MIG = false, nil
	out := node.Devices[0].MIG[0].UUID
	for _, strategy := range []string{config.MIGNone, config.MIGSingle, config.MIGMixed} {
		s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{}), serve: serve.New(nodestate.ServeDRA, "", nil, false, "id").WithAccount(serve.Account{Began: time.Now()})}
		s, _ = s.Next(configInForce(Settings{Config: &config.Config{
			Flags:   config.Flags{MigStrategy: &strategy, Plugin: config.PluginFlags{DeviceListStrategy: config.StringList{config.ListVariable}}},
			Devices: config.Devices{Exclude: []config.Selector{config.Selector(out)}},
		}}), time.Unix(1, 0))
		s, _ = s.Next(driverFound(node, "/", true), time.Unix(2, 0))
		file := s.stateFile(testBoot)
		require.Equal(t, nodestate.Ready, file.Phase, "%s: %s: %s", strategy, file.Reason, file.Message)
		require.Len(t, file.DevicePlugin.LeftOut, 1, strategy)
		require.Equal(t, out, file.DevicePlugin.LeftOut[0].GPU, strategy)
	}
}

// The configuration that shares GPUs among pods with resources shares them among claims.
func TestServedByDRATheSharingIsThatOfClaims(t *testing.T) {
	node := gputest.Node("a100-mig", 3)
	node.Devices[1].MIGEnabled, node.Devices[1].MIG = false, nil
	node.Devices[2].MIGEnabled, node.Devices[2].MIG = false, nil
	mixed := config.MIGMixed
	replicas := func(name string, devices ...string) config.ReplicatedResource {
		r := config.ReplicatedResource{Name: name, Rename: name + ".shared", Replicas: 4, Devices: config.Replicable{All: true}}
		if devices != nil {
			r.Devices = config.Replicable{List: devices}
		}
		return r
	}
	play := func(c config.Sharing, by string, later ...fact) []nodestate.GPU {
		s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{}), serve: serve.New(by, "", nil, false, "id").WithAccount(serve.Account{Began: time.Now()})}
		s, _ = s.Next(configInForce(Settings{Config: &config.Config{Flags: config.Flags{MigStrategy: &mixed, Plugin: config.PluginFlags{DeviceListStrategy: config.StringList{config.ListVariable}}}, Sharing: c}}), time.Unix(1, 0))
		s, _ = s.Next(driverFound(node, "/", true), time.Unix(2, 0))
		for i, f := range later {
			s, _ = s.Next(f, time.Unix(int64(3+i), 0))
		}
		return s.stateFile(testBoot).DevicePlugin.Inventory
	}
	sliced := config.Sharing{TimeSlicing: &config.Replicated{Resources: []config.ReplicatedResource{replicas("nvidia.com/gpu", "1"), replicas("nvidia.com/mig-1g.10gb")}}}
	all := play(sliced, nodestate.ServeDRA)
	require.Equal(t, &nodestate.Sharing{Shares: 4}, all[1].Sharing)
	require.Nil(t, all[2].Sharing, "it is not in the list")
	require.Nil(t, all[0].MIG[0].Sharing, "its profile is not shared")
	require.Equal(t, &nodestate.Sharing{Shares: 4}, all[0].MIG[2].Sharing)
	require.Nil(t, play(sliced, nodestate.ServePlugin)[1].Sharing, "resources have their own replicas")
	switched := func(s *state, _ time.Time) bool { s.serve = s.serve.Follow(nodestate.ServePlugin, "next"); return true }
	released := func(s *state, _ time.Time) bool {
		s.serve = s.serve.WithReport(&nodestate.DRADriverInfo{Serve: nodestate.ServePlugin, SwitchID: "next"}, nil)
		return true
	}
	require.Equal(t, &nodestate.Sharing{Shares: 4}, play(sliced, nodestate.ServeDRA, switched)[1].Sharing, "claims for shares are on the way")
	require.Nil(t, play(sliced, nodestate.ServeDRA, switched, released)[1].Sharing)
	all = play(config.Sharing{MPS: &config.Replicated{Resources: []config.ReplicatedResource{replicas("nvidia.com/gpu")}}}, nodestate.ServeDRA)
	require.Equal(t, &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu.shared"}, all[2].Sharing)
	require.Equal(t, allocate.ReasonMPS, all[2].Reason, "no control daemon serves it")
	require.Contains(t, all[2].Message, "its MPS control daemon does not serve it")
	require.False(t, all[2].Since.IsZero())
	require.Equal(t, nodestate.Healthy, all[0].MIG[0].Health, "MPS shares no MIG device")
}

// A tenant's program makes its own GPU instance fault. Nothing else of the GPU is unhealthy, and the node goes on
// offering partitions.
func TestAFaultOfOneInstanceIsThatOfItsPlace(t *testing.T) {
	node := gputest.Node("a100-mig", 1)
	d := &node.Devices[0]
	d.Profiles = []gpu.PartitionProfile{{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Instances: 7, Starts: []int{0, 1, 2}}}
	d.MIG = d.MIG[:1]
	d.Instances = []gpu.Instance{{ID: d.MIG[0].GPUInstance, Profile: 19, Start: 2, Size: 1}}
	s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{}), partitions: true, serve: serve.New(nodestate.ServeDRA, "", nil, false, "id").WithAccount(serve.Account{Began: time.Now()})}
	play := func(f fact, at int64) nodestate.State {
		s, _ = s.Next(f, time.Unix(at, 0))
		return s.stateFile(testBoot)
	}
	play(configInForce(Settings{Config: &config.Config{Flags: config.Flags{Plugin: config.PluginFlags{DeviceListStrategy: config.StringList{config.ListVariable}}}}}), 1)
	file := play(driverFound(node, "/", true), 2)
	require.Nil(t, file.DevicePlugin.Inventory[0].Whole)
	require.Equal(t, nodestate.Ready, file.Phase)

	xid := gputest.XID(d.UUID, 69)
	xid.GPUInstance = d.MIG[0].GPUInstance
	file = play(eventsSeen([]gpu.Event{xid}), 3)
	g := file.DevicePlugin.Inventory[0]
	require.Equal(t, nodestate.Unhealthy, g.Health, "with all its parts")
	require.Equal(t, nodestate.Healthy, g.WholeCondition().Health)
	require.Equal(t, gpu.ReasonXID, g.ConditionAt(19, 2, 1).Reason)
	require.Equal(t, nodestate.Healthy, g.ConditionAt(19, 1, 1).Health)
	require.Equal(t, nodestate.Degraded, file.Phase, "%s: %s", file.Reason, file.Message)
	require.Equal(t, g.MIG[0].GPUInstance, *file.DevicePlugin.Faults[0].GPUInstance)

	made := gpu.Partition{Placement: gpu.Placement{GPU: d.UUID, Profile: 19, Start: 2, Size: 1}, GPUInstance: d.MIG[0].GPUInstance}
	require.False(t, instanceCreated(gpu.Partition{Placement: made.Placement, GPUInstance: 99})(&s, time.Unix(4, 0)), "no other's fault ends")
	anew := s
	require.True(t, instanceCreated(made)(&anew, time.Unix(4, 0)))
	require.Empty(t, anew.stateFile(testBoot).DevicePlugin.Faults)
	file = play(instanceDestroyed(made.Placement), 4)
	require.Empty(t, file.DevicePlugin.Faults)
	require.Nil(t, file.DevicePlugin.Inventory[0].Whole)
	require.Nil(t, file.DevicePlugin.Inventory[0].Instances[0].Condition)

	file = play(eventsSeen([]gpu.Event{gputest.XID(d.UUID, 79)}), 5)
	require.Equal(t, gpu.ReasonXID, file.DevicePlugin.Inventory[0].ConditionAt(19, 1, 1).Reason, "a fault of the whole GPU")
	require.Equal(t, nodestate.Failed, file.Phase)
}

// gpu-dra-driver tells by it whether a state has an instance that it has destroyed since.
func TestTheStateTellsWhenTheReadingOfItsLayoutBegan(t *testing.T) {
	node := gputest.Node("a100-mig", 1)
	with := func(instances ...gpu.Instance) gpu.Snapshot {
		s := node.Clone()
		s.Devices[0].Instances = instances
		return s
	}
	one, two := gpu.Instance{ID: 1, Profile: 19, Start: 0, Size: 1}, gpu.Instance{ID: 2, Profile: 19, Start: 1, Size: 1}
	s := playedState(configInForce(Settings{Config: &config.Config{}}), driverFound(with(), "/", true))
	s.partitions = true
	read := func(snap gpu.Snapshot, began int64) time.Time {
		s, _ = s.Next(snapshotRead(snap, "/", nil, nil, time.Unix(began, 0)), time.Unix(began+100, 0))
		return s.stateFile(testBoot).DevicePlugin.LayoutRead
	}
	require.Zero(t, read(with(), 10))
	require.EqualValues(t, 20, read(with(one), 20).Unix(), "when it began, not when it ended")
	require.EqualValues(t, 20, read(with(one), 30).Unix())
	require.EqualValues(t, 40, read(with(one, two), 40).Unix())
	require.EqualValues(t, 50, read(with(), 50).Unix())
	s.partitions = false
	require.Zero(t, s.stateFile(testBoot).DevicePlugin.LayoutRead)
}

func TestProfilesAndInstancesSurviveARestartOfThePlugin(t *testing.T) {
	node := gputest.Node("a100-mig", 1)
	node.Devices[0].Profiles = []gpu.PartitionProfile{{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Instances: 7, Starts: []int{0, 1, 2}, MemoryBytes: 1 << 30, Attributes: gpu.Attributes{Multiprocessors: 14, CopyEngines: 1}}}
	node.Devices[0].Instances, node.Devices[0].AddressingMode = []gpu.Instance{{ID: 1, Profile: 19, Start: 2, Size: 1}}, "HMM"
	before := playedState(configInForce(Settings{Config: &config.Config{}}), driverFound(node, "/", true))
	after := playedState()
	after.health = health.Restore(before.stateFile(testBoot))
	require.Equal(t, before.inventory(), after.inventory())
}

// gpu-dra-driver tells it; until it has in this boot, nobody knows.
func TestTheTelemetryLearnsWhichClaimsHoldNothing(t *testing.T) {
	p := &Plugin{cfg: Config{HostRoot: t.TempDir(), StateDir: "/state"}, boot: "00000000-0000-4000-8000-000000000000"}
	require.Empty(t, p.readAdminAccess())
	watched := []nodestate.ClaimedDevice{{Claim: "team/watch", GPU: "GPU-0"}}
	require.NoError(t, nodestate.Write(p.stateDir(nodestate.DRADriver), nodestate.State{
		Component: nodestate.DRADriver, BootID: p.boot, Phase: nodestate.Ready, DRADriver: &nodestate.DRADriverInfo{AdminAccess: watched}}))
	require.Equal(t, watched, p.readAdminAccess())
}
