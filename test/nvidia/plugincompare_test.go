package nvidia

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/built"
)

const (
	rounds    = 3
	noticing  = 30 * time.Second // after it a loss counts as not noticed
	settling  = 10 * time.Second // NVIDIA's plugin waits for events for 5 s at a time
	resetting = 30 * time.Second // after it a reset counts as refused
	mending   = 2 * time.Minute  // after it a repaired GPU counts as not served again
	lost      = 3                // number of the GPU
)

// faults are the ways in which a GPU is lost: gpusim's, those without an XID also with one, and an XID of a GPU that
// still works.
var faults = []struct {
	name string
	args []string // of gpusim
}{
	{"calls, XID 79", []string{"lose", "--how", "calls"}},
	{"handle", []string{"lose", "--how", "handle"}},
	{"handle, XID 79", []string{"lose", "--how", "handle", "--xid"}},
	{"gone", []string{"lose", "--how", "gone"}},
	{"gone, XID 79", []string{"lose", "--how", "gone", "--xid"}},
	{"unknown", []string{"lose", "--how", "unknown"}},
	{"unknown, XID 79", []string{"lose", "--how", "unknown", "--xid"}},
	{"events, XID 79", []string{"lose", "--how", "events"}},
	{"XID 48 only", []string{"xid", "--xid", "48"}},
}

// loss holds what a plugin did about one lost GPU of eight, by round.
type loss struct {
	noticed    []time.Duration // from the loss to the kubelet's list with the GPU unhealthy
	healthy    []string        // devices that stay so
	preferred  []string        // the answer for two of the seven others
	pods       []string        // of eight that request one GPU
	restarted  []string        // devices served after a restart while the GPU is lost
	again      []string        // pods then
	reset      []string        // whether a reset of the GPU is possible while the plugin runs
	mended     []string        // from the repair until all eight are served, without a restart
	afterwards []string        // with one
}

// Both plugins serve eight GPUs, and one is lost. It is repaired later, and lost again before the plugin starts.
func TestPluginsLoseAGPU(t *testing.T) {
	found := map[string]map[string]*loss{} // by fault and program
	for _, fault := range faults {
		found[fault.name] = map[string]*loss{}
		for _, program := range plugins(t) {
			found[fault.name][program] = &loss{}
		}
	}
	t.Run("cases", func(t *testing.T) {
		for _, fault := range faults {
			for program, l := range found[fault.name] {
				t.Run(fault.name+"/"+side(program), func(t *testing.T) {
					t.Parallel()
					for range rounds {
						t.Run("round", func(t *testing.T) { l.add(startNode(t, program, "h100-sxm"), fault.args) })
					}
				})
			}
		}
	})
	var rows [][]string
	for _, fault := range faults {
		for _, program := range plugins(t) {
			l := found[fault.name][program]
			rows = append(rows, []string{fault.name, side(program), fmt.Sprintf("%d of %d", len(l.noticed), rounds), median(l.noticed),
				same(l.healthy), same(l.preferred), same(l.pods), same(l.restarted), same(l.again), same(l.reset), same(l.mended), same(l.afterwards)})
		}
	}
	t.Logf("\n%s", table([]string{"GPU 3 is lost", "plugin", "noticed", "after", "healthy", "2 of the 7 others", "pods that start",
		"healthy after a restart", "pods then", "reset", "8 again", "8 after a restart"}, rows))
}

// side names a plugin by its program.
func side(program string) string {
	if program == "" {
		return "gpuready"
	}
	return "nvidia"
}

// same returns what all rounds have in common, else what each had.
func same(values []string) string {
	if all := slices.Compact(slices.Sorted(slices.Values(values))); len(all) == 1 {
		return all[0]
	}
	return strings.Join(values, "; ")
}

// add measures one round.
func (l *loss) add(n *pluginNode, fault []string) {
	ids := n.uuids()
	others := slices.Delete(slices.Clone(ids), lost, lost+1)
	lose := func() time.Time {
		began := time.Now()
		n.sim(fault[0], append(fault[1:], "--gpu", fmt.Sprint(lost))...)
		return began
	}
	n.start()
	n.mustServe(len(ids))
	time.Sleep(2 * time.Second) // NVIDIA's listens for events some time after its first list

	began := lose()
	r, ok := n.wait(noticing, func(r kubelettest.Resource) bool {
		return slices.ContainsFunc(r.Devices, func(d *v1beta1.Device) bool { return d.GetID() == ids[lost] && d.GetHealth() != v1beta1.Healthy })
	})
	if ok {
		l.noticed = append(l.noticed, r.Listed.Sub(began))
	}
	time.Sleep(settling)
	r, _ = n.kubelet.Resource(gpus)
	l.healthy = append(l.healthy, n.served(r))
	l.preferred = append(l.preferred, n.choose(r.Endpoint, others))
	l.pods = append(l.pods, n.admit(ids))

	l.reset = append(l.reset, n.repair())
	before := r.Lists
	began = time.Now()
	switch r, ok := n.wait(mending, serves(len(ids))); {
	case !ok:
		l.mended = append(l.mended, fmt.Sprintf("no: %s", n.served(r)))
	case r.Lists == before:
		l.mended = append(l.mended, "they were never fewer")
	default:
		l.mended = append(l.mended, "after "+formatTime(max(0, r.Listed.Sub(began)).Round(time.Second)))
	}
	n.stop()
	n.start()
	r, _ = n.wait(noticing, serves(len(ids)))
	l.afterwards = append(l.afterwards, n.served(r))

	lose()
	n.stop()
	n.start()
	r, _ = n.wait(noticing, serves(len(others)))
	n.t.Logf("started while the GPU is lost: %s", n.complaint(0))
	l.restarted = append(l.restarted, n.served(r))
	l.again = append(l.again, n.admit(ids))
}

// choose requests two of the GPUs that are not lost, and describes the result.
func (n *pluginNode) choose(endpoint string, available []string) string {
	chosen, _, err := n.prefer(endpoint, available, 2)
	if err != nil {
		n.t.Logf("GetPreferredAllocation: %v", err)
		return "fails"
	}
	require.Len(n.t, chosen, 2)
	return "chosen"
}

// admit runs one pod for each GPU and removes them again. It describes how many of them start.
func (n *pluginNode) admit(ids []string) string {
	admitted, broken := 0, 0
	for i := range ids {
		pod := kubelettest.Pod{Namespace: "default", Name: fmt.Sprint("job-", i), Container: "cuda", Requests: map[string]int{gpus: 1}}
		a, err := n.kubelet.Admit(n.t.Context(), pod)
		switch {
		case err != nil:
			n.t.Logf("%s: %v", pod.Name, err)
		case slices.Contains(a.DeviceIDs[gpus], ids[lost]):
			broken++
		default:
			admitted++
		}
	}
	for i := range ids {
		n.kubelet.Remove("default", fmt.Sprint("job-", i))
	}
	if broken > 0 {
		return fmt.Sprintf("%d, %d of them on the broken GPU", admitted+broken, broken)
	}
	return fmt.Sprint(admitted)
}

// repair resets the lost GPU, as nvidia-smi does where no process has it open, and describes whether that was possible.
// Otherwise it is repaired regardless.
func (n *pluginNode) repair() string {
	reset := exec.CommandContext(n.t.Context(), built.Path(n.t, "gpusim"), "reset", "--root", n.path("driver"),
		"--gpu", fmt.Sprint(lost), "--wait", resetting.String())
	began := time.Now()
	out, err := reset.CombinedOutput()
	if err == nil {
		return "possible after " + formatTime(time.Since(began).Round(time.Second))
	}
	var exit *exec.ExitError
	require.True(n.t, errors.As(err, &exit) && exit.ExitCode() == 3, "%v: %s", err, out)
	n.sim("restore", "--gpu", fmt.Sprint(lost))
	return "refused"
}

// shared is a configuration file with which each of eight GPUs is served four times.
const shared = `version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
`

// configurations are a change and three files with a misspelt key.
var configurations = []struct{ name, text string }{
	{"`replicas: 2`, nothing misspelt", strings.Replace(shared, "replicas: 4", "replicas: 2", 1)},
	{"`replica: 4`", strings.Replace(shared, "replicas", "replica", 1)},
	{"`timeSlicng:`", strings.Replace(shared, "timeSlicing", "timeSlicng", 1)},
	{"`flags.migStratgy: mixed`, beside `replicas: 4`", shared + "flags:\n  migStratgy: mixed\n"},
	{"`failRequestsGreaterThanOn: true`, beside `replicas: 4`", strings.Replace(shared, "    resources",
		"    failRequestsGreaterThanOn: true\n    resources", 1)},
}

// Both plugins have a configuration file with a misspelt key, from the start or later.
func TestPluginsReadAWrongConfiguration(t *testing.T) {
	var mu sync.Mutex
	cells := map[string][]string{}
	add := func(key string, values ...string) {
		mu.Lock()
		defer mu.Unlock()
		cells[key] = append(cells[key], values...)
	}
	all := plugins(t)
	t.Run("cases", func(t *testing.T) {
		for _, c := range configurations {
			for _, program := range all {
				t.Run(c.name+"/"+side(program), func(t *testing.T) {
					t.Parallel()
					add(c.name+program, append(readAtStart(t, program, c.text), readLater(t, program, c.text)...)...)
				})
			}
		}
	})
	var rows [][]string
	for _, c := range configurations {
		for _, program := range all {
			rows = append(rows, append([]string{c.name, side(program)}, cells[c.name+program]...))
		}
	}
	t.Logf("\n%s", table([]string{"configuration", "plugin", "healthy after a start with it", "problem in the log",
		"when the file changes to it", "after", "problem in the log", "after SIGHUP", "problem in the log"}, rows))
}

// readAtStart starts a plugin with a configuration.
func readAtStart(t *testing.T, program, text string) []string {
	t.Helper()
	n := startNode(t, program, "h100-sxm")
	file := n.path("config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	n.start("--config-file", file)
	r, _ := n.wait(settling, never)
	return []string{n.served(r), n.complaint(0)}
}

// never is the condition of a wait for what happens in a given time.
func never(kubelettest.Resource) bool { return false }

// readLater changes the configuration of a running plugin, and sends it the signal of NVIDIA's config-manager.
func readLater(t *testing.T, program, text string) []string {
	t.Helper()
	n := startNode(t, program, "h100-sxm")
	dir := n.path("config")
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"config.yaml": shared}))
	n.start("--config-file", dir+"/config.yaml")
	before := n.mustServe(32)
	logged := len(n.output())
	began := time.Now()
	require.NoError(t, kubelettest.MountConfigMap(dir, map[string]string{"config.yaml": text}))
	r, ok := n.wait(noticing, func(r kubelettest.Resource) bool { return !r.Gone && r.Allocatable != before.Allocatable })
	after := "–"
	if ok {
		after = formatTime(r.Listed.Sub(began))
	}
	cells := []string{n.served(r), after, n.complaint(logged)}
	logged = len(n.output())
	if _, ended := n.exit(); !ended {
		require.NoError(t, n.cmd.Process.Signal(syscall.SIGHUP))
	}
	r, _ = n.wait(settling, never)
	return append(cells, n.served(r), n.complaint(logged))
}

// Both plugins choose among the 16 GPUs of a DGX-2.
func TestPluginsPreferDevices(t *testing.T) {
	var rows [][]string
	for _, program := range plugins(t) {
		n := startNode(t, program, "dgx-2")
		n.start()
		r := n.mustServe(16)
		row := []string{side(program)}
		for _, size := range []int{2, 4, 8} {
			var times []time.Duration
			for range rounds {
				chosen, took, err := n.prefer(r.Endpoint, n.uuids(), size)
				require.NoError(t, err)
				require.Len(t, chosen, size)
				times = append(times, took)
			}
			row = append(row, median(times))
		}
		rows = append(rows, row)
		n.stop()
	}
	t.Logf("\n%s", table([]string{"GetPreferredAllocation, median (slowest) of " + fmt.Sprint(rounds), "2 of 16", "4 of 16", "8 of 16"}, rows))
}
