package nvml

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// A process can load one libnvidia-ml in its life, and each driver root has one
// of its own. So each test here runs again in a process of its own.

const aloneEnv = "GPUREADY_NVML_ALONE"

// alone returns true in a process in which only this test runs; elsewhere it
// starts that process, through the given command if any, reports how it went,
// and returns false.
func alone(t *testing.T, through ...string) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	built.Gpusim(t, "profiles") // builds all that is needed, once
	var parts []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	args := append(through, os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), aloneEnv+"="+t.Name(), "GPUREADY_BIN="+filepath.Dir(built.Path(t, "gpusim")))
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("alone: %v\n%s", err, out)
	case !strings.Contains(string(out), "=== RUN   "+t.Name()+"\n"):
		t.Errorf("alone: it was not run:\n%s", out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skipf("alone:\n%s", out)
	}
	return false
}

// simulated opens a Source on a driver root of its own.
func simulated(t *testing.T, profile string, args ...string) (*Source, string) {
	t.Helper()
	root := built.DriverRoot(t, profile, args...)
	s, err := Open(Options{DriverRoot: root, ProbeInterval: 50 * time.Millisecond})
	require.NoError(t, err)
	s.slice, s.quiet = 100*time.Millisecond, time.Hour
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, root
}

func TestSourceOnTheSimulatorConforms(t *testing.T) {
	for _, c := range gputest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if alone(t) {
				c.Run(t, simulatedFixture(t))
			}
		})
	}
}

func simulatedFixture(t *testing.T) gputest.Fixture {
	s, root := simulated(t, "a100-80gb", "--gpus", "4")
	first, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	gpusim := func(id gpu.UUID, command string, args ...string) {
		d, ok := first.Device(id)
		require.True(t, ok)
		built.Gpusim(t, append([]string{command, "--root", root, "--gpu", strconv.Itoa(d.Index)}, args...)...)
	}
	f := gputest.Fixture{
		Source: s,
		XID:    func(id gpu.UUID, xid uint64) { gpusim(id, "xid", "--xid", fmt.Sprint(xid)) },
		MIGXID: func(id gpu.UUID, gi, ci int, xid uint64) {
			gpusim(id, "xid", "--xid", fmt.Sprint(xid), "--gi", strconv.Itoa(gi), "--ci", strconv.Itoa(ci))
		},
		Remap:   func(id gpu.UUID) { gpusim(id, "remap") },
		ECC:     func(id gpu.UUID) { gpusim(id, "ecc", "--uncorrected", "1") },
		Lose:    map[string]func(gpu.UUID){},
		Restore: func(id gpu.UUID) { gpusim(id, "restore") },
		SetMIG: func(id gpu.UUID, layout ...string) {
			if len(layout) == 0 {
				gpusim(id, "mig", "--off")
			} else {
				gpusim(id, "mig", "--layout", strings.Join(layout, ","))
			}
		},
	}
	for _, way := range []string{"calls", "handle", "gone", "unknown", "events"} {
		f.Lose[way] = func(id gpu.UUID) { gpusim(id, "lose", "--how", way) }
	}
	return f
}

func TestOpenReportsTheLibraryAndThatItIsSimulated(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "t4", "--driver-version", "570.86.15")
	found, err := FindLibrary("", root)
	require.NoError(t, err)
	require.Equal(t, found, s.Library())
	require.True(t, strings.HasSuffix(s.Library(), "/libnvidia-ml.so.570.86.15"), s.Library())
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.True(t, got.Driver.Simulated)
	require.Equal(t, "570.86.15", got.Driver.Version)
	require.True(t, strings.HasPrefix(got.Devices[0].Product, "SIMULATED "), got.Devices[0].Product)
}

func TestOpenAgainAfterClose(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "t4")
	require.NoError(t, s.Close())
	again, err := Open(Options{DriverRoot: root})
	require.NoError(t, err)
	defer again.Close()
	got, err := again.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 1)
}

func TestReplacedLibraryNeedsAnotherProcess(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "t4", "--driver-version", "570.86.15")
	built.Gpusim(t, "up", "--root", root, "--profile", "t4", "--driver-version", "580.95.05")
	found, err := FindLibrary("", root)
	require.NoError(t, err)
	require.NotEqual(t, found, s.Library(), "which is how a caller sees it")
	_, err = Open(Options{DriverRoot: root})
	require.ErrorIs(t, err, ErrOtherLibrary)
	require.ErrorContains(t, err, "start the process again")
}

func TestOpenWithoutADriver(t *testing.T) {
	if !alone(t) {
		return
	}
	_, err := Open(Options{DriverRoot: t.TempDir()})
	if _, found := FindLibrary("", "/"); found == nil {
		t.Skip("this machine has a driver on the loader's own path")
	}
	require.ErrorIs(t, err, gpu.ErrNoDriver)
	require.ErrorContains(t, err, "--driver-root")
}

func TestOpenOfALibraryThatCannotBeLoaded(t *testing.T) {
	if !alone(t) {
		return
	}
	_, err := Open(Options{DriverRoot: driverRoot(t, map[string]string{"/usr/lib64/libnvidia-ml.so.1": ours()})})
	require.ErrorIs(t, err, gpu.ErrNoDriver)
	require.ErrorContains(t, err, "cannot be loaded")
}

func TestOpenWithAModuleOfAnotherVersion(t *testing.T) {
	if !alone(t) {
		return
	}
	root := built.DriverRoot(t, "t4", "--driver-version", "580.95.05", "--module-version", "570.86.15")
	_, err := Open(Options{DriverRoot: root})
	require.ErrorIs(t, err, gpu.ErrVersionMismatch)
	require.ErrorContains(t, err, "libnvidia-ml.so.580.95.05")
}

func TestOpenWithoutPermissionOnTheDeviceNodes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("device nodes can only be closed by root")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is missing; install util-linux")
	}
	// Root passes every permission bit unless these are taken away.
	const rootEnv = "GPUREADY_NVML_ROOT"
	root := os.Getenv(rootEnv)
	if root == "" {
		root = built.DriverRoot(t, "t4")
		nodes, err := filepath.Glob(root + "/dev/nvidia*")
		require.NoError(t, err)
		require.NotEmpty(t, nodes)
		for _, node := range nodes {
			require.NoError(t, os.Chmod(node, 0))
		}
		t.Setenv(rootEnv, root)
	}
	if !alone(t, setpriv, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all") {
		return
	}
	_, err = Open(Options{DriverRoot: root})
	require.ErrorIs(t, err, gpu.ErrNoPermission)
	require.ErrorContains(t, err, "/dev/nvidiactl")
}

// TestEveryProfile reads each machine that the simulator knows.
func TestEveryProfile(t *testing.T) {
	noXIDs := []gpu.Note{{Reason: gpu.NoteNoXIDs}}
	for profile, want := range map[string]struct {
		gpus, links, lanes int // lanes of each link; -1: they differ
		numa               bool
		notes              []gpu.Note
		fabric             gpu.Fabric // of several machines
		addressing         string
	}{
		"t4":        {gpus: 1},
		"a100-80gb": {gpus: 8, links: 28, lanes: 12, numa: true},
		"h100-sxm":  {gpus: 8, links: 28, lanes: 18, numa: true},
		"h200-sxm":  {gpus: 8, links: 28, lanes: 18, numa: true},
		"b200":      {gpus: 8, links: 28, lanes: 18, numa: true},
		"dgx-2":     {gpus: 16, links: 120, lanes: 6, numa: true},

		"a10g":         {gpus: 1},
		"b300":         {gpus: 8, links: 28, lanes: 18, numa: true},
		"gb10":         {gpus: 1, addressing: "ATS"},
		"gb200":        {gpus: 4, links: 6, lanes: 18, numa: true, fabric: gpu.Fabric{Cluster: [16]uint8{3: 1, 15: 1}, Clique: 2}, addressing: "ATS"},
		"gh200":        {gpus: 1, addressing: "ATS"},
		"h20":          {gpus: 8, links: 28, lanes: 18, numa: true},
		"l40s":         {gpus: 4, links: 6, numa: true},
		"mixed":        {gpus: 4, links: 6, numa: true},
		"rtx-pro-6000": {gpus: 4, links: 6, numa: true},
		"v100-sxm2":    {gpus: 8, links: 28, lanes: -1, numa: true},
		"vgpu":         {gpus: 1, notes: noXIDs},
	} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			if !alone(t) {
				return
			}
			s, _ := simulated(t, profile)
			got, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.Len(t, got.Devices, want.gpus)
			require.Len(t, got.Links, want.links)
			require.True(t, got.Equal(got.Sorted()))
			lanes := map[int]int{}
			for _, l := range got.Links {
				require.True(t, want.lanes < 0 || l.Lanes == want.lanes, "%+v", l)
				lanes[l.Lanes]++
			}
			if want.lanes < 0 {
				require.Equal(t, map[int]int{0: 12, 1: 8, 2: 8}, lanes)
			}
			nodes := map[int]int{}
			for _, d := range got.Devices {
				require.Zero(t, d.Fault)
				require.Len(t, d.Notes, len(want.notes))
				for i := range want.notes {
					require.Equal(t, want.notes[i].Reason, d.Notes[i].Reason)
				}
				require.Equal(t, want.fabric, d.Fabric)
				require.Equal(t, cmp.Or(want.addressing, "None"), d.AddressingMode)
				require.Equal(t, profile == "gb10", d.MemoryBytes == 0)
				nodes[d.NUMANode]++
			}
			if want.numa {
				require.Equal(t, map[int]int{0: want.gpus / 2, 1: want.gpus / 2}, nodes)
			}
		})
	}
}

// A vGPU has no XIDs, which its note says, and is polled.
func TestAVGPUIsPolled(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := simulated(t, "vgpu")
	w := start(t, s)
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.NoteNoXIDs, got.Devices[0].Notes[0].Reason)
	built.Gpusim(t, "lose", "--root", root, "--gpu", "0", "--how", "calls")
	w.until(t, gpu.EventLost, got.Devices[0].UUID)
}
