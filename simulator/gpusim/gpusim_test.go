package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/golden"
)

// environment is the environment of the programs under test. Those with the race detector
// would otherwise sleep for a second before they end.
var environment = []string{"PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}

// gpusim runs the built program, without the environment of whoever runs the tests.
func gpusim(t testing.TB, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so", "nvidia-smi", "nvidia-cuda-mps-control"} {
		built.Path(t, "lib/"+lib)
	}
	cmd := exec.Command(built.Path(t, "gpusim"), args...)
	cmd.Env = environment
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

func ok(t testing.TB, args ...string) string {
	t.Helper()
	stdout, stderr, exit := gpusim(t, args...)
	require.Zero(t, exit, stderr)
	return stdout
}

func read(t testing.TB, root string) *state.State {
	t.Helper()
	f, err := state.OpenRead(filepath.Join(root, "var/lib/gpusim/state"))
	require.NoError(t, err)
	defer f.Close()
	var s state.State
	f.Read(&s)
	return &s
}

// golden compares with a file, in which ROOT stands for root, unless that is empty.
// requireGolden compares output with a file in testdata. root is written there as ROOT.
func requireGolden(t *testing.T, name, root, got string) {
	t.Helper()
	if root != "" {
		got = strings.ReplaceAll(got, root, "ROOT")
	}
	golden.Require(t, filepath.Join("testdata", name), got)
}

func TestHelpOfEveryCommandHasExamplesAndExitCodes(t *testing.T) {
	all := ok(t, "--help")
	requireGolden(t, "help.txt", "", all)
	for _, name := range []string{"profiles", "up", "serve", "status", "xid", "ecc", "remap", "lose", "restore", "reset",
		"mig", "memfault", "wrong", "degrade", "fabric", "load", "mode", "process", "fail", "refuse", "cost", "record", "down"} {
		help := ok(t, name, "--help")
		require.Contains(t, all, "\n  "+name)
		require.Contains(t, help, "Examples:\n  gpusim "+name)
		require.Contains(t, help, "Exit codes:")
		requireGolden(t, "help-"+name+".txt", "", help)
	}
	require.Contains(t, ok(t, "--version"), "gpusim ")
}

func TestProfilesAreListed(t *testing.T) {
	requireGolden(t, "profiles.txt", "", ok(t, "profiles"))
	var listed []struct {
		Name          string
		GPUs, MaxGPUs int
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, "profiles", "-o", "json")), &listed))
	require.Len(t, listed, len(profile.Names()))
	for _, p := range listed {
		require.LessOrEqual(t, p.GPUs, p.MaxGPUs, p.Name)
	}
}

func TestDriverIsCreatedBrokenRepairedAndRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	require.Contains(t, ok(t, "up", "--root", root, "--profile", "h100-sxm"), "simulated driver 580.95.05 with 8 GPUs")
	ok(t, "xid", "--root", root, "--gpu", "1", "--xid", "95")
	ok(t, "ecc", "--root", root, "--gpu", "2", "--uncorrected", "2")
	ok(t, "lose", "--root", root, "--gpu", "3", "--how", "gone")
	uuid := state.Text(read(t, root).Gpu[4].Uuid[:])
	ok(t, "mig", "--root", root, "--gpu", uuid, "--layout", "3g.40gb:1c+2c,1g.10gb")
	ok(t, "memfault", "--root", root, "--gpu", "5", "--kind", "flip", "--offset", "4096")
	ok(t, "fail", "--root", root, "--init", "no-permission", "--events", "42")
	ok(t, "lose", "--root", root, "--gpu", "6")
	ok(t, "wrong", "--root", root, "--gpu", "7", "--every", "50")
	ok(t, "degrade", "--root", root, "--gpu", "0", "--pcie-gen", "3", "--pcie-width", "8", "--throttle", "hw-thermal,sw-power-cap", "--links-down", "2,5")
	ok(t, "load", "--root", root, "--gpu", "1", "--percent", "90")
	ok(t, "cost", "--root", root, "--init", "200ms", "--call", "10us")
	requireGolden(t, "status.txt", root, ok(t, "status", "--root", root))
	requireGolden(t, "status.json", root, ok(t, "status", "--root", root, "-o", "json"))
	for _, gpu := range []string{"0", "1", "2", "3", "5", "6", "7"} {
		ok(t, "restore", "--root", root, "--gpu", gpu)
	}
	ok(t, "mig", "--root", root, "--gpu", "all", "--off")
	ok(t, "load", "--root", root, "--gpu", "all", "--percent", "0")
	ok(t, "fail", "--root", root, "--init", "none", "--events", "none")
	ok(t, "cost", "--root", root, "--init", "0", "--call", "0")
	requireGolden(t, "status-restored.txt", root, ok(t, "status", "--root", root))
	ok(t, "down", "--root", root)
	require.NoDirExists(t, root)
	require.Contains(t, ok(t, "down", "--root", root), "there is no simulated driver")
}

// TestEventsAreThoseOfARealDriver reads the ring after faults.
func TestEventsAreThoseOfARealDriver(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	ok(t, "up", "--root", root, "--profile", "h100-sxm", "--gpus", "2")
	f, err := state.OpenRead(filepath.Join(root, "var/lib/gpusim/state"))
	require.NoError(t, err)
	defer f.Close()
	for _, c := range []struct {
		args string
		want [][2]uint64 // type, data
	}{
		{"xid --gpu 0 --xid 13", [][2]uint64{{8, 13}}},
		{"xid --gpu 0 --xid 79", [][2]uint64{{8, 79}, {0x8000, 1}}},
		{"xid --gpu 0 --xid 79", [][2]uint64{{8, 79}}},
		{"ecc --gpu 1 --corrected 2 --uncorrected 1", [][2]uint64{{1, 0}, {2, 0}, {0x8000, 4}}},
		{"lose --gpu 1 --how gone", nil},
		{"lose --gpu 1 --how calls", [][2]uint64{{8, 79}, {0x8000, 1}}},
		{"lose --gpu 1 --how calls --xid=false", nil},
		{"restore --gpu 1", nil},
		{"mig --gpu 0 --layout 1g.10gb", nil},
		{"mig --gpu 0 --off", nil},
		{"memfault --gpu 0 --bit 3", nil},
	} {
		from := f.EventCount()
		ok(t, append(strings.Fields(c.args), "--root", root)...)
		var got [][2]uint64
		for _, e := range f.Events(from) {
			got = append(got, [2]uint64{e.Type, e.Data})
		}
		require.Equal(t, c.want, got, c.args)
	}
}

func TestRecordNeedsADriver(t *testing.T) {
	built.SkipWithDriver(t)
	_, stderr, exit := gpusim(t, "record", "--driver-root", filepath.Join(t.TempDir(), "none"), "--out", "-")
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, "does not start")
	require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
}

func TestMistakesGetOneLineAndTheNextAction(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	none := filepath.Join(t.TempDir(), "none")
	ok(t, "up", "--root", root, "--profile", "mixed")
	for _, c := range []struct {
		args string
		exit int
		want string
	}{
		{"fly", 2, `gpusim: unknown command "fly"`},
		{"up", 2, "gpusim: up: --profile is missing; gpusim profiles lists them"},
		{"up --profile h100", 1, `unknown profile "h100"; there are a100-80gb, a10g, b200, b300, dgx-2,`},
		{"up --profile t4 --gpus 9", 1, "profile t4 has 1 to 8 GPUs, not 9"},
		{"up --profile t4 --driver-version ../x", 2, `--driver-version: "../x" is no driver version`},
		{"up --profile t4 --lib-dir /nowhere", 1, "build it with make, or name its folder with --lib-dir"},
		{"up --profile /nowhere/x.yaml", 1, "/nowhere/x.yaml: no such file"},
		{"up --profile t4 more", 2, `up takes no arguments, but was given "more"`},
		{"up --profile t4 --root /", 1, "/ is where a real driver belongs"},
		{"status --root " + none, 1, "no simulated driver; run gpusim up --root " + none},
		{"status --root " + root + " -o xml", 2, `--output: "xml" is neither text nor json`},
		{"xid --root " + root, 2, "--xid is missing"},
		{"xid --root " + root + " --xid 79", 2, "--gpu is missing"},
		{"xid --root " + root + " --xid 79 --gpu 4", 1, "there is no GPU 4; gpusim status --root " + root + " lists the 4 there are"},
		{"lose --root " + root + " --gpu 0 --how away", 1, `how: "away" is not one of calls, events, gone, handle, unknown`},
		{"mig --root " + root + " --gpu 0 --on", 1, "GPU 0: SIMULATED Tesla T4 cannot do MIG"},
		{"mig --root " + root + " --gpu 0", 2, "give one of --layout, --on and --off"},
		{"mig --root " + root + " --gpu 2 --layout 1g.5gb", 1, "has no profile 1g.5gb; it has 1g.10gb,"},
		{"mig --root " + root + " --gpu 2 --layout 7", 2, `"7" is not PROFILE`},
		{"mig --root " + none + " --gpu 2 --on", 1, "no simulated driver"},
		{"wrong --root " + root + " --gpu 0 --bit 32", 1, "bit: 32 is not 0 to 31"},
		{"degrade --root " + root + " --gpu 0", 2, "give --pcie-gen, --pcie-width, --throttle or --links-down"},
		{"degrade --root " + root + " --gpu 0 --pcie-gen 9", 1, "has no generation above 3"},
		{"degrade --root " + root + " --gpu 0 --pcie-width 6", 1, "pcie-width: 6 is neither 0 nor 1, 2, 4, … 16 lanes"},
		{"degrade --root " + root + " --gpu 0 --throttle heat", 1, `throttle: "heat" is neither none nor one of applications-clocks,`},
		{"degrade --root " + root + " --gpu 0 --links-down 0", 1, "has no NVLink 0 in use, of 0"},
		{"degrade --root " + root + " --gpu 0 --links-down two", 1, `links-down: "two" is neither none nor the number`},
		{"fail --root " + root, 2, "give --init, --events or --mig"},
		{"fail --root " + root + " --init often", 2, `--init: "often" is neither a number up to 999 nor one of driver-not-loaded,`},
		{"fail --root " + none + " --init 9", 1, "no simulated driver"},
		{"up --profile t4 --nvml-init-cost 1h", 2, "--nvml-init-cost: 1h0m0s is not 0 to 10m0s"},
		{"up --profile t4 --nvml-call-cost -1ms", 2, "--nvml-call-cost: -1ms is not 0 to 10s"},
		{"cost --root " + root, 2, "give --init or --call"},
		{"cost --root " + root + " --call 1m", 2, "--call: 1m0s is not 0 to 10s"},
		{"cost --root " + root + " --init 200", 2, "is not a duration, such as 30s or 5m"},
		{"cost --root " + none + " --init 1s", 1, "no simulated driver"},
		{"serve", 2, "gpusim: serve: --profile is missing; gpusim profiles lists them"},
		{"serve --profile t4 --root driver", 2, `--root: "driver" is no absolute path`},
		{"serve --profile t4 --mig 1g.10gb", 2, `--mig: "1g.10gb": of the 1 GPUs none is meant that can do MIG`},
		{"serve --profile a100-80gb --mig 9=1g.10gb", 2, `--mig: "9=1g.10gb": of the 8 GPUs none is meant`},
		{"serve --profile a100-80gb --mig 0=1g.5gb", 2, "--mig: GPU 0: "},
		{"serve --profile t4 --boot-delay -1s", 2, "--boot-delay: -1s is in the past"},
		{"serve --profile t4 --log-format xml", 2, `--log-format "xml": want text or json`},
		{"record", 2, "--out is missing"},
	} {
		args := strings.Fields(c.args)
		if args[0] == "up" && !strings.Contains(c.args, "--root") {
			args = append(args, "--root", none)
		}
		_, stderr, exit := gpusim(t, args...)
		require.Equal(t, c.exit, exit, c.args)
		require.Contains(t, stderr, c.want, c.args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "%s: one line: %s", c.args, stderr)
		require.NoDirExists(t, none, c.args)
	}
}

func TestTruncatedStateIsReportedAndRepaired(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	ok(t, "up", "--root", root, "--profile", "t4")
	path, err := filepath.EvalSymlinks(filepath.Join(root, "var/lib/gpusim/state"))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 100))
	_, stderr, exit := gpusim(t, "status", "--root", root)
	require.Equal(t, 1, exit)
	require.Contains(t, stderr, "it has 100 bytes")
	require.Contains(t, stderr, "run gpusim up again")
	ok(t, "up", "--root", root, "--profile", "t4")
	ok(t, "status", "--root", root)
}

func TestNVMLFailsAsConfigured(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	ok(t, "up", "--root", root, "--profile", "t4")
	smi := func() string {
		cmd := exec.Command(filepath.Join(root, "usr/bin/nvidia-smi"), "-L")
		lib, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libnvidia-ml.so.1"))
		require.NoError(t, err)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(lib[0])}
		out, _ := cmd.CombinedOutput() // it fails, which is what it prints
		return string(out)
	}
	require.Contains(t, smi(), "SIMULATED Tesla T4")
	ok(t, "fail", "--root", root, "--init", "999")
	require.Contains(t, smi(), "Unknown Error")
	ok(t, "fail", "--root", root, "--init", "none")
	require.Contains(t, smi(), "SIMULATED Tesla T4")
}

func TestNVMLTakesTheConfiguredTime(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	up := []string{"up", "--root", root, "--profile", "t4"}
	cost := func() []uint64 {
		s := read(t, root)
		return []uint64{s.InitCostNs, s.CallCostNs}
	}
	ok(t, append(up, "--nvml-init-cost", "200ms", "--nvml-call-cost", "10us")...)
	require.Equal(t, []uint64{200_000_000, 10_000}, cost())
	ok(t, "cost", "--root", root, "--init", "1s")
	require.Equal(t, []uint64{1_000_000_000, 10_000}, cost(), "what is not given stays")
	ok(t, "cost", "--root", root, "--call", "0")
	require.Equal(t, []uint64{1_000_000_000, 0}, cost())
	ok(t, up...)
	require.Equal(t, []uint64{0, 0}, cost(), "up begins anew")
}

// TestRecordedMachineIsTheSameMachine records each simulated machine through
// NVML and makes it again: not one field of its state differs.
func TestRecordedMachineIsTheSameMachine(t *testing.T) {
	machines := [][]string{{"a100-80gb", "4"}, {"a100-80gb", "1"}}
	for _, name := range profile.Names() {
		machines = append(machines, []string{name, "0"})
	}
	for _, m := range machines {
		t.Run(strings.Join(m, "-"), func(t *testing.T) {
			dir := t.TempDir()
			root, again, file := filepath.Join(dir, "driver"), filepath.Join(dir, "again"), filepath.Join(dir, "profile.yaml")
			ok(t, "up", "--root", root, "--profile", m[0], "--gpus", m[1], "--driver-version", "570.86.15")
			ok(t, "record", "--driver-root", root, "--name", m[0], "--out", file)
			ok(t, "up", "--root", again, "--profile", file)
			want, got := read(t, root), read(t, again)
			if *want != *got {
				t.Fatal(cmp.Diff(want, got))
			}
		})
	}
}

// TestWithoutPermissionPlainFilesStandInForNodes runs gpusim as nobody.
func TestWithoutPermissionPlainFilesStandInForNodes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become nobody")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "gpusim-nobody-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	// The build may lie where nobody may not look.
	require.NoError(t, os.CopyFS(filepath.Join(dir, "lib"), os.DirFS(filepath.Dir(built.Path(t, "lib/libcuda.so")))))
	built.Copy(t, filepath.Join(dir, "gpusim"), "gpusim")
	require.NoError(t, os.Chown(dir, nobody, nobody))
	require.NoError(t, os.Chmod(dir, 0o755))
	run := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, "gpusim"), args...)
		cmd.Env = environment
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	root := filepath.Join(dir, "driver")
	out, err := run("up", "--root", root, "--profile", "h100-sxm")
	require.NoError(t, err, out)
	require.Contains(t, out, "plain files stand in for them")
	info, err := os.Lstat(filepath.Join(root, "dev/nvidia7"))
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular())
	for _, args := range [][]string{{"mig", "--gpu", "0", "--layout", "1g.10gb"}, {"xid", "--gpu", "0", "--xid", "79"}} {
		out, err = run(append(args, "--root", root)...)
		require.NoError(t, err, out)
	}
	require.Contains(t, ok(t, "status", "--root", root), "plain files stand in for the device nodes")
	out, err = run("down", "--root", root)
	require.NoError(t, err, out)
	require.NoDirExists(t, root)
}

func BenchmarkUp(b *testing.B) {
	root := filepath.Join(b.TempDir(), "driver")
	for b.Loop() {
		ok(b, "up", "--root", root, "--profile", "h100-sxm")
		b.StopTimer()
		ok(b, "down", "--root", root)
		b.StartTimer()
	}
}

func TestASignalEndsAWaitForTheLock(t *testing.T) {
	root := filepath.Join(t.TempDir(), "driver")
	ok(t, "up", "--root", root, "--profile", "t4")
	holder, err := os.Open(filepath.Join(root, "var/lib/gpusim/lock"))
	require.NoError(t, err)
	defer holder.Close()
	require.NoError(t, syscall.Flock(int(holder.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := built.Start(t, "gpusim", []string{"up", "--root", root, "--profile", "t4"})
	require.NoError(t, p.WaitOutput(ctx, "waiting for"))
	require.NoError(t, p.Signal(os.Interrupt))
	_, err = p.Wait(ctx)
	require.NoError(t, err)
}
