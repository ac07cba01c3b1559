package nodestate

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func plugin() State {
	node := 1
	return State{
		Component: DevicePlugin, Phase: Degraded, Reason: "GPUUnhealthy", Message: "1 of 2 GPUs is unhealthy",
		Driver: &DriverInfo{Root: "/run/nvidia/driver", Version: "580.95.05", CUDAVersion: "13.0", Simulated: true},
		DevicePlugin: &DevicePluginInfo{
			KubeletSocket: "/var/lib/kubelet/device-plugins/kubelet.sock", Registered: true,
			Resources: []Resource{{Name: "nvidia.com/gpu", Devices: []Device{
				{ID: "GPU-0", GPU: "GPU-0", Health: Healthy, NUMANode: &node},
				{ID: "GPU-1", GPU: "GPU-1", Health: Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Since: time.Unix(1, 0).UTC()},
			}}, {Name: "nvidia.com/gpu.shared", Devices: []Device{{ID: "GPU-2", GPU: "GPU-2", Health: Healthy, Replicas: 4}}}},
			LeftOut: []LeftOutDevice{{GPU: "GPU-3", Reason: "Excluded", Message: "devices.exclude has \"3\""}},
			Faults: []Fault{
				{GPU: "GPU-1", Reason: gpu.ReasonXID, XID: 79, Since: time.Unix(1, 0).UTC(), Needs: "reset", Evidence: "reload"},
				{GPU: "GPU-1", GPUInstance: new(1), ComputeInstance: new(0), Reason: gpu.ReasonXID, XID: 94, Since: time.Unix(1, 0).UTC(), Needs: "quiet"},
			},
			Inventory: []GPU{
				{UUID: "GPU-0", Product: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: "9.0", PCI: "0000:10:00.0",
					NUMANode: &node, MemoryBytes: 80 << 30, Condition: Condition{Health: Healthy}},
				{UUID: "GPU-1", Index: 1, Minor: 1, MIGEnabled: true, Condition: Condition{Health: Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Since: time.Unix(1, 0).UTC()},
					MIG: []MIGDevice{{UUID: "MIG-1", Profile: "1g.10gb", GPUInstance: 7, Multiprocessors: 14, Condition: Condition{Health: Healthy}}}},
			},
			Labels: map[string]string{"nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-1g.10gb.me.count": "1"},
		},
	}
}

func TestReadReturnsTheWrittenState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpuready", "deviceplugin")
	before := plugin()
	require.NoError(t, Write(dir, before))
	got, err := Read(dir)
	require.NoError(t, err)
	boot, err := BootID()
	require.NoError(t, err)
	require.Equal(t, boot, got.BootID)
	require.WithinDuration(t, time.Now(), got.Time, time.Minute)
	want := before
	want.Version, want.BootID, want.Time = Version, boot, got.Time
	require.Equal(t, want, got)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file stays")
}

func TestReplicasAreListedOnceAndNumbered(t *testing.T) {
	require.Equal(t, []string{"GPU-0"}, Device{ID: "GPU-0"}.IDs())
	require.Equal(t, []string{"GPU-0::0", "GPU-0::1", "GPU-0::2"}, Device{ID: "GPU-0", Replicas: 3}.IDs())
}

func TestDevicesAreThoseThatAreOffered(t *testing.T) {
	p := *plugin().DevicePlugin
	ids := func() (all []string) {
		for _, d := range p.Devices() {
			all = append(all, d.ID+" "+string(d.Health))
		}
		return all
	}
	require.Equal(t, []string{"GPU-0 Healthy", "GPU-1 Unhealthy", "GPU-2 Healthy"}, ids())
	p.Serve = ServeDRA
	require.Equal(t, []string{"GPU-0 Healthy", "MIG-1 Healthy"}, ids(), "a GPU in MIG mode offers its MIG devices")
	p.LeftOut = []LeftOutDevice{{GPU: "GPU-0", Reason: "Excluded"}, {GPU: "MIG-1", Reason: "NoResource"}}
	require.Equal(t, []string{"MIG-1 Healthy"}, ids())
	p.LeftOut = []LeftOutDevice{{GPU: p.Inventory[1].UUID, Reason: "NotIncluded"}}
	require.Equal(t, []string{"GPU-0 Healthy"}, ids(), "with the GPU its MIG devices are left out")
}

func TestAStateOfAnotherBootIsStale(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toolkit")
	s := State{Component: Toolkit, Phase: Ready, BootID: "00000000-0000-4000-8000-000000000000"}
	require.NoError(t, Write(dir, s))
	got, err := Read(dir)
	require.ErrorIs(t, err, ErrStale)
	require.True(t, IsAbsent(err))
	require.Equal(t, Ready, got.Phase, "what was said before is there for whoever wants to show it")
	_, err = ReadBoot(dir, s.BootID)
	require.NoError(t, err)
}

func TestTheBootIDIsTheHosts(t *testing.T) {
	root := t.TempDir()
	own, err := BootID()
	require.NoError(t, err)
	id, err := BootIDAt(root)
	require.NoError(t, err)
	require.Equal(t, own, id, "a root without /proc")

	path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("00000000-0000-4000-8000-000000000000\n"), 0o444))
	id, err = BootIDAt(root)
	require.NoError(t, err)
	require.Equal(t, "00000000-0000-4000-8000-000000000000", id)

	require.NoError(t, os.WriteFile(path, nil, 0o444))
	_, err = BootIDAt(root)
	require.ErrorContains(t, err, "does not hold a boot ID")
}

// edit returns a valid state of the device plugin as JSON with one value changed.
func edit(t *testing.T, change func(map[string]any)) []byte {
	t.Helper()
	s := plugin()
	s.Version, s.Time, s.BootID = Version, time.Unix(2, 0), "00000000-0000-4000-8000-000000000000"
	data, err := json.Marshal(s)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	change(m)
	data, err = json.Marshal(m)
	require.NoError(t, err)
	return data
}

func TestInvalidStateErrorNamesTheField(t *testing.T) {
	in := func(m map[string]any, key string) map[string]any { return m[key].(map[string]any) }
	device := func(m map[string]any) map[string]any {
		return in(m, "devicePlugin")["resources"].([]any)[0].(map[string]any)["devices"].([]any)[0].(map[string]any)
	}
	entry := func(m map[string]any, i int) map[string]any {
		return in(m, "devicePlugin")["inventory"].([]any)[i].(map[string]any)
	}
	fault := func(m map[string]any, i int) map[string]any {
		return in(m, "devicePlugin")["faults"].([]any)[i].(map[string]any)
	}
	cases := []struct {
		want string
		data []byte
	}{
		{"empty", nil},
		{"unexpected end", edit(t, func(map[string]any) {})[:100]},
		{"after top-level value", append(edit(t, func(map[string]any) {}), "{}"...)},
		{"version: 2 is not known here", edit(t, func(m map[string]any) { m["version"] = 2 })},
		{"version: 0", []byte("null")},
		{`component: "kubelet" is not a component`, edit(t, func(m map[string]any) { m["component"] = "kubelet" })},
		{"bootID", edit(t, func(m map[string]any) { m["bootID"] = "../../etc" })},
		{"time", edit(t, func(m map[string]any) { m["time"] = "yesterday" })},
		{"time: missing", edit(t, func(m map[string]any) { delete(m, "time") })},
		{"phase", edit(t, func(m map[string]any) { m["phase"] = "Fine" })},
		{"reason: not one CamelCase word", edit(t, func(m map[string]any) { m["reason"] = "it is\nbroken" })},
		{"message: has a control character", edit(t, func(m map[string]any) { m["message"] = "\x1b[2J" })},
		{"message: longer", edit(t, func(m map[string]any) { m["message"] = strings.Repeat("x", 5000) })},
		{"driver.root: not an absolute path", edit(t, func(m map[string]any) { in(m, "driver")["root"] = "etc" })},
		{"devicePlugin.resources[0].devices[0].id: missing", edit(t, func(m map[string]any) { device(m)["id"] = "" })},
		{"devicePlugin.resources[0].devices[0].health", edit(t, func(m map[string]any) { device(m)["health"] = "well" })},
		{"devicePlugin.resources[0].devices[0].message: has a control", edit(t, func(m map[string]any) { device(m)["message"] = "a\x00" })},
		{"devicePlugin.inventory[0].uuid: missing", edit(t, func(m map[string]any) { entry(m, 0)["uuid"] = "" })},
		{"devicePlugin.inventory[0].product: has a control", edit(t, func(m map[string]any) { entry(m, 0)["product"] = "\x1b" })},
		{"devicePlugin.inventory[0].health", edit(t, func(m map[string]any) { entry(m, 0)["health"] = "well" })},
		{"devicePlugin.inventory[1].reason: missing, though it is unhealthy", edit(t, func(m map[string]any) { delete(entry(m, 1), "reason") })},
		{"devicePlugin.inventory[1].mig[0].gpuInstance: negative", edit(t, func(m map[string]any) {
			entry(m, 1)["mig"].([]any)[0].(map[string]any)["gpuInstance"] = -1
		})},
		{"devicePlugin.inventory: 257 GPUs", edit(t, func(m map[string]any) {
			in(m, "devicePlugin")["inventory"] = slices.Repeat([]any{entry(m, 0)}, MaxGPUs+1)
		})},
		{"devicePlugin.faults[0].gpu: missing", edit(t, func(m map[string]any) { fault(m, 0)["gpu"] = "" })},
		{"devicePlugin.faults[0].needs: has a control", edit(t, func(m map[string]any) { fault(m, 0)["needs"] = "\n" })},
		{"devicePlugin.faults[0].evidence: longer", edit(t, func(m map[string]any) { fault(m, 0)["evidence"] = strings.Repeat("x", 65) })},
		{"devicePlugin.faults[1].gpuInstance: negative", edit(t, func(m map[string]any) { fault(m, 1)["gpuInstance"] = -1 })},
		{"devicePlugin.faults[1].computeInstance: negative", edit(t, func(m map[string]any) { fault(m, 1)["computeInstance"] = -1 })},
		{"devicePlugin.faults[1].computeInstance: without", edit(t, func(m map[string]any) { delete(fault(m, 1), "gpuInstance") })},
		{"cannot unmarshal array", edit(t, func(m map[string]any) { m["devicePlugin"] = []any{} })},
		{"larger than", []byte(`"` + strings.Repeat("x", MaxBytes) + `"`)},
	}
	for _, c := range cases {
		t.Run(c.want, func(t *testing.T) {
			_, err := Parse(c.data)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Parse(edit(t, func(m map[string]any) { m["addedLater"] = true }))
	require.NoError(t, err, "components of one node are upgraded one after the other")
}

func TestStateInAnotherComponentsDirectoryIsInvalid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "driver")
	require.NoError(t, Write(dir, plugin()))
	_, err := Read(dir)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `component "deviceplugin"`)
}

func TestWriteCleansMessages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deviceplugin")
	s := plugin()
	s.Message = "line 1\nline 2\x1b[31m" + strings.Repeat("é", 4000)
	s.DevicePlugin.Resources[0].Devices[1].Message = "bell\a"
	require.NoError(t, Write(dir, s))
	require.Equal(t, "bell\a", s.DevicePlugin.Resources[0].Devices[1].Message, "the caller's state is not touched")
	got, err := Read(dir)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(got.Message, "line 1 line 2 [31m"))
	require.Equal(t, "bell", got.DevicePlugin.Resources[0].Devices[1].Message)
}

func TestWriteRejectsInvalidState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toolkit")
	require.ErrorContains(t, Write(dir, State{Component: Toolkit, Phase: "Fine"}), "phase")
	_, err := Read(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	big := State{Component: Toolkit, Phase: Ready, Toolkit: &ToolkitInfo{Specs: []Spec{{Kind: "a/b", Path: "/c"}}}}
	for range 5000 {
		big.Toolkit.Specs[0].Devices = append(big.Toolkit.Specs[0].Devices, strings.Repeat("x", 250))
	}
	require.ErrorContains(t, Write(dir, big), "no more than")

	// What was written before would go on saying that all is well.
	require.NoError(t, Write(dir, State{Component: Toolkit, Phase: Ready}))
	require.Error(t, Write(dir, State{Component: Toolkit, Phase: "Fine"}))
	_, err = Read(dir)
	require.ErrorIs(t, err, ErrUnwritten)
	require.NoError(t, Write(dir, State{Component: Toolkit, Phase: Ready}))
	require.Error(t, Write(dir, big))
	_, err = Read(dir)
	require.ErrorIs(t, err, ErrUnwritten)
}

// A driver that reports one profile, instance or name that nobody can describe must not keep the whole node's
// state from being written.
func TestWhatADriverReportsAmissIsLeftOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deviceplugin")
	s := plugin()
	g := &s.DevicePlugin.Inventory[0]
	good := MIGProfile{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Count: 7, Starts: []int{0, 1}}
	nameless, none, wide, outside := good, good, good, good
	nameless.Name, none.Count, wide.Slices, outside.Starts = "", 0, MaxSlices+1, []int{MaxSlices}
	g.Profiles = []MIGProfile{nameless, good, none, wide, outside}
	g.Instances = []GPUInstance{{ID: -1, Start: 0, Size: 1}, {ID: 1, Profile: 19, Start: 1, Size: 1}, {ID: 2, Start: 0, Size: 0}}
	g.Brand, g.Architecture, g.ComputeMode = strings.Repeat("x", 200), "a\x00b", "DEFAULT\n"
	require.NoError(t, Write(dir, s))
	require.Len(t, g.Profiles, 5, "the caller's state is not touched")
	got, err := Read(dir)
	require.NoError(t, err)
	read := got.DevicePlugin.Inventory[0]
	require.Equal(t, []MIGProfile{good}, read.Profiles)
	require.Equal(t, []GPUInstance{{ID: 1, Profile: 19, Start: 1, Size: 1}}, read.Instances)
	require.Len(t, read.Brand, 64)
	require.Equal(t, "a b", read.Architecture)
}

func TestWatchDeliversEveryState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "toolkit")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type said struct {
		s   State
		err error
	}
	states := make(chan said)
	ended := make(chan error)
	go func() {
		ended <- Watch(ctx, dir, func(s State, err error) {
			select {
			case states <- said{s, err}:
			case <-ctx.Done():
			}
		})
	}()
	require.ErrorIs(t, (<-states).err, fs.ErrNotExist)
	for _, phase := range []Phase{Waiting, Ready} {
		require.NoError(t, Write(dir, State{Component: Toolkit, Phase: phase}))
		got := <-states
		require.NoError(t, got.err)
		require.Equal(t, phase, got.s.Phase)
	}
	// The directory is removed with its content and appears again.
	require.NoError(t, os.RemoveAll(filepath.Dir(dir)))
	require.ErrorIs(t, (<-states).err, fs.ErrNotExist)
	require.NoError(t, Write(dir, State{Component: Toolkit, Phase: Failed, Reason: "Broken"}))
	require.Equal(t, Failed, (<-states).s.Phase)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestAnyStateSurvivesTheRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deviceplugin")
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-zA-Z0-9/._ é-]{1,40}`)
		s := State{
			Component: DevicePlugin,
			Phase:     rapid.SampledFrom([]Phase{Waiting, Ready, Degraded, Failed}).Draw(t, "phase"),
			Reason:    gpu.Reason(rapid.StringMatching(`([A-Z][A-Za-z0-9]{0,20})?`).Draw(t, "reason")),
			Driver:    &DriverInfo{Root: "/" + word.Draw(t, "root"), Version: word.Draw(t, "version"), Simulated: rapid.Bool().Draw(t, "simulated")},
			DevicePlugin: &DevicePluginInfo{
				Registered: rapid.Bool().Draw(t, "registered"),
				Resources: rapid.SliceOf(rapid.Custom(func(t *rapid.T) Resource {
					return Resource{Name: word.Draw(t, "name"), Devices: rapid.SliceOf(rapid.Custom(func(t *rapid.T) Device {
						numa := rapid.IntRange(0, 8).Draw(t, "numa")
						return Device{ID: word.Draw(t, "id"), GPU: gpu.UUID(word.Draw(t, "gpu")), NUMANode: &numa,
							Health: rapid.SampledFrom([]Health{Healthy, Unhealthy}).Draw(t, "health"),
							Since:  time.Unix(rapid.Int64Range(0, 1<<32).Draw(t, "since"), 0).UTC()}
					})).Draw(t, "devices")}
				})).Draw(t, "resources"),
			},
		}
		require.NoError(t, Write(dir, s))
		got, err := Read(dir)
		require.NoError(t, err)
		again := filepath.Join(dir, FileName)
		first, err := os.ReadFile(again)
		require.NoError(t, err)
		want := s
		want.Version, want.BootID, want.Time = got.Version, got.BootID, got.Time
		second, err := json.MarshalIndent(want, "", "  ")
		require.NoError(t, err)
		require.Equal(t, string(first), string(second)+"\n")
	})
}

func FuzzParse(f *testing.F) {
	s := plugin()
	s.Version, s.Time, s.BootID = Version, time.Unix(2, 0), "00000000-0000-4000-8000-000000000000"
	data, err := json.Marshal(s)
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte("null"))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		// A valid state can be written again and stays valid.
		out, err := json.Marshal(s)
		require.NoError(t, err)
		if len(out) <= MaxBytes {
			_, err = Parse(out)
			require.NoError(t, err)
		}
	})
}
