package step

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// keeper checks layer cuda in new processes, and counts the runs of the sample.
type keeper struct {
	t    *testing.T
	node check.Node
	d    check.Driver
	runs string
}

func newKeeper(t *testing.T, gpus int) *keeper {
	t.Helper()
	k := &keeper{t: t, d: cudaTestDriver(gpus), runs: t.TempDir()}
	k.node = cudaTestNode(t, passingSample(k.runs))
	k.node.BootID, k.node.KeptProof = "00000000-0000-4000-8000-000000000000", filepath.Join(t.TempDir(), "validations", KeptProofName)
	return k
}

// restart checks in a new process. It returns the devices on which the sample ran.
func (k *keeper) restart() (o check.Outcome, ran []gpu.UUID) {
	k.t.Helper()
	o = (&cudaCheck{}).check(k.t.Context(), k.node, k.d)
	require.Equal(k.t, check.Passed, o.Kind, "%+v", o.NotReady)
	entries, err := os.ReadDir(k.runs)
	require.NoError(k.t, err)
	for _, e := range entries {
		ran = append(ran, gpu.UUID(e.Name()))
		require.NoError(k.t, os.Remove(filepath.Join(k.runs, e.Name())))
	}
	return o, ran
}

func TestTheProofSurvivesARestart(t *testing.T) {
	k := newKeeper(t, 2)
	ids := []gpu.UUID{k.d.GPUs[0].UUID, k.d.GPUs[1].UUID}
	before := time.Now()
	first, ran := k.restart()
	require.ElementsMatch(t, ids, ran)
	require.Zero(t, first.Proof.Time, "now")
	require.NotContains(t, first.Proof.Summary, "proven")

	again, ran := k.restart()
	require.Empty(t, ran, "nothing is computed again")
	require.Equal(t, 2, again.Proof.GPUs)
	require.InDelta(t, first.Proof.Seconds[ids[0]], again.Proof.Seconds[ids[0]], 1e-6)
	require.WithinRange(t, again.Proof.Time, before, time.Now())
	require.Contains(t, again.Proof.Summary, ", proven "+again.Proof.Time.UTC().Format("2006-01-02T15:04"))
	require.False(t, again.Retry)

	k.d.GPUs[1].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	_, ran = k.restart()
	require.Empty(t, ran)
	k.d.GPUs[1].Fault = gpu.Fault{}
	_, ran = k.restart()
	require.Equal(t, ids[1:], ran, "a GPU that was lost is proven again, the other not")

	k.d.GPUs = gputest.Node("a100-80gb", 3).Devices
	_, ran = k.restart()
	require.Equal(t, []gpu.UUID{k.d.GPUs[2].UUID}, ran, "a GPU more")

	k.d.GPUs[2] = gputest.WithMIG(k.d.GPUs[2], "1g.10gb", "2g.20gb")
	_, ran = k.restart()
	require.Len(t, ran, 2, "the new MIG devices")
	k.d.GPUs[2].MIG[0].Profile = "1g.20gb"
	_, ran = k.restart()
	require.Equal(t, []gpu.UUID{k.d.GPUs[2].MIG[0].UUID}, ran, "the same UUID, another size")
	k.d.GPUs[0].PCI = "0000:99:00.0"
	_, ran = k.restart()
	require.Equal(t, ids[:1], ran, "another slot")
}

func TestWhatChangesTheDriverOrTheBootEndsTheProof(t *testing.T) {
	k := newKeeper(t, 1)
	libs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(libs, "libcuda.so.1"), []byte("a"), 0o644))
	k.d.LibDir = libs
	k.node.Injection = "base1.whole1"
	_, ran := k.restart()
	require.Len(t, ran, 1)
	for what, change := range map[string]func(){
		"the driver":                    func() { k.d.Info.Version = "590.10.01" },
		"the same driver, loaded again": func() { k.d.Module = "another" },
		"a library":                     func() { require.NoError(t, os.WriteFile(filepath.Join(libs, "libcuda.so.1"), []byte("bb"), 0o644)) },
		"a library's time": func() {
			require.NoError(t, os.Chtimes(filepath.Join(libs, "libcuda.so.1"), time.Now(), time.Unix(1, 0)))
		},
		"a simulated driver":    func() { k.d.Info.Simulated = true; k.node.VectorAdd = simulatedSample(t, k.runs) },
		"the boot":              func() { k.node.BootID = "11111111-0000-4000-8000-000000000000" },
		"the toolkit's devices": func() { k.node.Injection = "base2.whole1" },
	} {
		change()
		_, ran := k.restart()
		require.Len(t, ran, 1, what)
		_, ran = k.restart()
		require.Empty(t, ran, what)
	}
	k.node.Injection = "base2.whole2"
	_, ran = k.restart()
	require.Empty(t, ran, "other MIG devices of other GPUs")
}

func simulatedSample(t *testing.T, dir string) string {
	t.Helper()
	return cudaTestNode(t, strings.Replace(passingSample(dir), `\"passed\": true,`, `\"passed\": true, \"simulated\": true,`, 1)).VectorAdd
}

// Of an XID that the device plugin has recorded NVML may say nothing.
func TestAProofThatIsOlderThanAFaultIsNone(t *testing.T) {
	k := newKeeper(t, 3)
	k.node.Root, k.node.StateDir = newMachine(t).Root, "/states"
	k.d.GPUs[2] = gputest.WithMIG(k.d.GPUs[2], "1g.10gb", "2g.20gb")
	first, second := k.d.GPUs[2].MIG[0], k.d.GPUs[2].MIG[1]
	_, ran := k.restart()
	require.Len(t, ran, 4)
	before, after := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		fault nodestate.Fault
		again []gpu.UUID
	}{
		"since":                   {nodestate.Fault{GPU: k.d.GPUs[1].UUID, Since: after}, []gpu.UUID{k.d.GPUs[1].UUID}},
		"since, until a reload":   {nodestate.Fault{GPU: k.d.GPUs[1].UUID, Since: after, Needs: nodestate.EvidenceReload}, []gpu.UUID{k.d.GPUs[1].UUID}},
		"before the pass":         {nodestate.Fault{GPU: k.d.GPUs[1].UUID, Since: before}, nil},
		"one that ends alone":     {nodestate.Fault{GPU: k.d.GPUs[1].UUID, Since: after, Needs: nodestate.EvidenceQuiet}, nil},
		"of a divided GPU":        {nodestate.Fault{GPU: k.d.GPUs[2].UUID, Since: after}, []gpu.UUID{first.UUID, second.UUID}},
		"of one of its instances": {nodestate.Fault{GPU: k.d.GPUs[2].UUID, GPUInstance: &second.GPUInstance, Since: after}, []gpu.UUID{second.UUID}},
	} {
		c.fault.Reason = gpu.ReasonXID
		require.NoError(t, nodestate.Write(k.node.StatePath(nodestate.DevicePlugin), nodestate.State{
			Component: nodestate.DevicePlugin, BootID: k.node.BootID, Phase: nodestate.Ready,
			DevicePlugin: &nodestate.DevicePluginInfo{Faults: []nodestate.Fault{c.fault}},
		}))
		_, ran := k.restart()
		require.ElementsMatch(t, c.again, ran, name)
	}
}

// Outside of injected containers the toolkit's state has the generation. While it is not known, it is no
// other one.
func TestTheToolkitsGenerationIsPartOfTheProof(t *testing.T) {
	k := newKeeper(t, 1)
	k.node.Root, k.node.StateDir = newMachine(t).Root, "/states"
	write := func(generation string) {
		require.NoError(t, nodestate.Write(k.node.StatePath(nodestate.Toolkit), nodestate.State{Component: nodestate.Toolkit, BootID: k.node.BootID, Phase: nodestate.Ready,
			Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Working: true, Generation: generation}}}))
	}
	for _, c := range []struct {
		generation string
		runs       int
	}{{"b1.w1", 1}, {"b1.w2", 0}, {"", 0}, {"b1.w1", 0}, {"b2.w1", 1}, {"", 0}, {"b1.w1", 1}} {
		write(c.generation)
		_, ran := k.restart()
		require.Len(t, ran, c.runs, "%+v", c)
	}
}

func TestAFileThatCannotBeTrustedProvesNothing(t *testing.T) {
	k := newKeeper(t, 1)
	k.restart()
	good, err := os.ReadFile(k.node.KeptProof)
	require.NoError(t, err)
	change := func(edit func(map[string]any)) []byte {
		var m map[string]any
		require.NoError(t, json.Unmarshal(good, &m))
		edit(m)
		data, err := json.Marshal(m)
		require.NoError(t, err)
		return data
	}
	unit := func(m map[string]any) map[string]any {
		return m["units"].(map[string]any)[string(k.d.GPUs[0].UUID)].(map[string]any)
	}
	for name, data := range map[string][]byte{
		"empty":               {},
		"cut short":           good[:len(good)/2],
		"zeros":               make([]byte, len(good)),
		"two of them":         append(append([]byte{}, good...), good...),
		"another program's":   []byte(`{"jobs": 3}`),
		"an array":            []byte(`[]`),
		"no version":          change(func(m map[string]any) { delete(m, "version") }),
		"a later version":     change(func(m map[string]any) { m["version"] = 2 }),
		"a field more":        change(func(m map[string]any) { m["trust"] = true }),
		"another boot":        change(func(m map[string]any) { m["bootID"] = "x" }),
		"another driver":      change(func(m map[string]any) { m["driver"] = "x" }),
		"no units":            change(func(m map[string]any) { delete(m, "units") }),
		"a unit without time": change(func(m map[string]any) { delete(unit(m), "time") }),
		"a negative duration": change(func(m map[string]any) { unit(m)["seconds"] = -1 }),
		"another place":       change(func(m map[string]any) { unit(m)["place"] = "0000:99:00.0" }),
		"too large":           append(append([]byte{}, good...), make([]byte, maxKeptBytes)...),
	} {
		require.NoError(t, os.WriteFile(k.node.KeptProof, data, 0o644))
		_, ran := k.restart()
		require.Len(t, ran, 1, name)
		now, err := os.ReadFile(k.node.KeptProof)
		require.NoError(t, err)
		_, ran = k.restart()
		require.Empty(t, ran, "%s: it was replaced by %s", name, now)
	}
	require.NoError(t, os.Remove(k.node.KeptProof))
	require.NoError(t, unix.Mkfifo(k.node.KeptProof, 0o644))
	_, ran := k.restart()
	require.Len(t, ran, 1, "a FIFO, which must not be waited for")
}

func TestAProofThatCannotBeKeptIsStillOne(t *testing.T) {
	k := newKeeper(t, 1)
	require.NoError(t, os.WriteFile(filepath.Dir(k.node.KeptProof), nil, 0o644)) // a file in the folder's place
	c := &cudaCheck{}
	o := c.check(t.Context(), k.node, k.d)
	require.Equal(t, check.Passed, o.Kind)
	require.Contains(t, strings.Join(o.Notes, " "), "will not survive a restart")
	require.NoError(t, os.Remove(filepath.Dir(k.node.KeptProof)))
	o = c.check(t.Context(), k.node, k.d)
	require.Empty(t, o.Notes, "it is written once there is room")
	require.FileExists(t, k.node.KeptProof)
	_, ran := k.restart()
	require.Len(t, ran, 1, "of the first check only")
}

func TestAProofThatIsWrongDoesNotStay(t *testing.T) {
	k := newKeeper(t, 2)
	k.restart()
	data, err := os.ReadFile(k.node.KeptProof)
	require.NoError(t, err)
	// Beside a file with so long a name no temporary file can be made, as without a free inode.
	k.node.KeptProof = filepath.Join(filepath.Dir(k.node.KeptProof), strings.Repeat("p", 250))
	require.NoError(t, os.WriteFile(k.node.KeptProof, data, 0o644))
	k.d.GPUs[1].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	o, ran := k.restart()
	require.Empty(t, ran)
	require.Empty(t, o.Notes)
	k.d.GPUs[1].Fault = gpu.Fault{}
	_, ran = k.restart()
	require.Equal(t, []gpu.UUID{k.d.GPUs[1].UUID}, ran)

	k.node.KeptProof = filepath.Join(cudaTestNode(t, "").VectorAdd, KeptProofName) // a file in the folder's place
	k.node.VectorAdd = cudaTestNode(t, failsOn(k.d.GPUs[0].UUID, 700)).VectorAdd
	o = (&cudaCheck{}).check(t.Context(), k.node, k.d)
	require.Equal(t, check.Failed, o.Kind)
	require.Contains(t, strings.Join(o.Notes, " "), "will not survive a restart", "nor does what passed beside it")
}

func TestOnlyWhatFailedIsTriedAgain(t *testing.T) {
	k := newKeeper(t, 3)
	bad := k.d.GPUs[1].UUID
	good := k.node.VectorAdd
	k.node.VectorAdd = cudaTestNode(t, failsOn(bad, 700)).VectorAdd
	o := (&cudaCheck{}).check(t.Context(), k.node, k.d)
	require.Equal(t, check.Failed, o.Kind)
	require.Contains(t, o.NotReady.Message, "vectorAdd failed on 1 of 3 GPUs")
	k.node.VectorAdd = good
	_, ran := k.restart()
	require.Equal(t, []gpu.UUID{bad}, ran)
}

func TestNobodyIsAskedWhoUsesGPUsThatAreProven(t *testing.T) {
	k := newKeeper(t, 1)
	k.restart()
	k.node.ReadUsage = func(context.Context, check.Node) (map[gpu.UUID]gpu.Usage, error) {
		t.Error("the driver was asked")
		return nil, nil
	}
	_, ran := k.restart()
	require.Empty(t, ran)
}

// A device plugin that is not told of the failure gives the GPU to a pod: that makes it no good one.
func TestAGPUThatFailedIsNotOneInUse(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		reason  gpu.Reason
		says    string
	}{
		"wrong":  {`echo '{"passed": false, "error": "element 7 is 3, want 4"}'; exit 3`, time.Minute, reasonSampleFailed, "element 7 is 3, want 4"},
		"failed": {`echo '{"passed": false, "code": 700, "error": "error 700"}'; exit 1`, time.Minute, reasonSampleFailed, "error 700"},
		"hangs":  {`sleep 1000 & wait`, 100 * time.Millisecond, reasonSampleTimeout, "no result in 100ms"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t, 1)
			kubelet := serveKubelet(t, &k.node)
			good, bad := k.node.VectorAdd, k.d.GPUs[0].UUID
			requireFailed := func(c2 *cudaCheck, says ...string) {
				t.Helper()
				o := c2.check(t.Context(), k.node, k.d)
				require.Equal(t, check.Failed, o.Kind, "%+v", o.Proof)
				require.Equal(t, c.reason, o.NotReady.Reason)
				for _, text := range append(says, c.says) {
					require.Contains(t, o.NotReady.Message, text)
				}
				require.Empty(t, o.Unproven)
			}
			k.node.VectorAdd, k.node.CUDATimeout = cudaTestNode(t, c.script).VectorAdd, c.timeout
			same := &cudaCheck{}
			requireFailed(same)
			k.node.VectorAdd, k.node.CUDATimeout = good, time.Minute
			kubelet.hold("job", string(bad))
			for range 2 {
				requireFailed(same, "held by pod default/job")
				requireFailed(&cudaCheck{}, "held by pod default/job")
			}
			devices := k.d.GPUs
			k.d.GPUs = gputest.Node("a100-80gb", 2).Devices[1:] // it is lost for a moment
			_, ran := k.restart()
			require.Equal(t, []gpu.UUID{k.d.GPUs[0].UUID}, ran)
			k.d.GPUs = devices
			requireFailed(&cudaCheck{})
			k.node.Injection = "base2.whole1"
			requireFailed(&cudaCheck{})

			data, err := os.ReadFile(k.node.KeptProof)
			require.NoError(t, err)
			for what, change := range map[string]func(){
				"another driver": func() { k.d.Info.Version = "590.10.01" },
				"another boot":   func() { k.node.BootID = "11111111-0000-4000-8000-000000000000" },
				"another place":  func() { k.d.GPUs[0].PCI = "0000:99:00.0" },
			} {
				before, driver := k.node, k.d
				driver.GPUs = append([]gpu.Device{}, k.d.GPUs...)
				change()
				o, ran := k.restart()
				require.Empty(t, ran)
				require.Equal(t, map[gpu.UUID]gpu.Reason{bad: ReasonInUse}, o.Proof.Unproven, what)
				k.node, k.d = before, driver
				require.NoError(t, os.WriteFile(k.node.KeptProof, data, 0o644))
				requireFailed(&cudaCheck{})
			}

			kubelet.release()
			_, ran = k.restart()
			require.Equal(t, []gpu.UUID{bad}, ran)
			k.d.GPUs = gputest.Node("a100-80gb", 2).Devices[1:] // so that the pass is not kept, either
			k.restart()
			k.d.GPUs = devices
			kubelet.hold("job", string(bad))
			o, _ := k.restart()
			require.Equal(t, map[gpu.UUID]gpu.Reason{bad: ReasonInUse}, o.Proof.Unproven)
		})
	}
}

func TestWhatIsNoFailureOfTheGPUIsNotKept(t *testing.T) {
	k := newKeeper(t, 1)
	kubelet := serveKubelet(t, &k.node)
	good := k.node.VectorAdd
	for name, path := range map[string]string{
		"no memory, nobody is seen": cudaTestNode(t, failsOn(k.d.GPUs[0].UUID, 2)).VectorAdd,
		"no program":                good + "-not-there",
		// A fabric manager that begins after the first check, and a device node that the toolkit has yet to inject.
		"the fabric is not ready": cudaTestNode(t, failsOn(k.d.GPUs[0].UUID, 802)).VectorAdd,
		"no device":               cudaTestNode(t, failsOn(k.d.GPUs[0].UUID, 100)).VectorAdd,
		"killed for memory":       cudaTestNode(t, "kill -9 $$").VectorAdd,
	} {
		k.node.VectorAdd = path
		require.Equal(t, check.Failed, (&cudaCheck{}).check(t.Context(), k.node, k.d).Kind, name)
		kubelet.hold("job", string(k.d.GPUs[0].UUID))
		o, _ := k.restart()
		require.Len(t, o.Proof.Unproven, 1, name)
		kubelet.release()
	}
	started := filepath.Join(t.TempDir(), "started")
	k.node.VectorAdd = cudaTestNode(t, "touch "+started+"; sleep 1000").VectorAdd
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan check.Outcome)
	go func() { done <- (&cudaCheck{}).check(ctx, k.node, k.d) }()
	require.Eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, 30*time.Second, time.Millisecond)
	cancel()
	require.Equal(t, check.Failed, (<-done).Kind)
	kubelet.hold("job", string(k.d.GPUs[0].UUID))
	o, _ := k.restart()
	require.Len(t, o.Proof.Unproven, 1, "the validator ended")
}

// The validator before this one wrote no failures.
func TestAProofWithoutFailuresIsRead(t *testing.T) {
	k := newKeeper(t, 1)
	k.restart()
	data, err := os.ReadFile(k.node.KeptProof)
	require.NoError(t, err)
	require.NotContains(t, string(data), "failed")
	_, ran := k.restart()
	require.Empty(t, ran)
}
