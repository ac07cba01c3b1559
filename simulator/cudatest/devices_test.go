package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// listing returns the devices visible to a process: "GPU-… SIMULATED NVIDIA H100 80GB HBM3" by ordinal.
func listing(t *testing.T, l *lib) []string {
	t.Helper()
	var n int32
	require.Zero(t, l.cuDeviceGetCount(&n))
	name := bind[func(*byte, int32, int32) int32](l, "cuDeviceGetName")
	whole := bind[func(*[16]byte, int32) int32](l, "cuDeviceGetUuid")
	own := bind[func(*[16]byte, int32) int32](l, "cuDeviceGetUuid_v2")
	list := []string{}
	for i := range n {
		text := make([]byte, 128)
		var a, b [16]byte
		require.Zero(t, name(&text[0], 128, i))
		require.Zero(t, whole(&a, i))
		require.Zero(t, own(&b, i))
		prefix := "GPU"
		if a != b {
			prefix = "MIG"
		}
		list = append(list, fmt.Sprintf("%s-%x-%x-%x-%x-%x %s", prefix, b[:4], b[4:6], b[6:8], b[8:10], b[10:], strings.TrimRight(string(text), "\x00")))
	}
	return list
}

// see loads a root's library anew and lists its devices, or says why there is none.
func visibleDevices(t *testing.T, root, visible string) ([]string, error) {
	t.Helper()
	// The library decides once in a process: each look is at a copy of the root's.
	if visible == "unset" {
		require.NoError(t, os.Unsetenv("CUDA_VISIBLE_DEVICES"))
	} else {
		t.Setenv("CUDA_VISIBLE_DEVICES", visible)
	}
	l := load(t, root)
	if err := check(l.cuInit(0)); err != nil {
		var n int32
		require.Equal(t, notInitialized, check(l.cuDeviceGetCount(&n)))
		return nil, err
	}
	return listing(t, l), nil
}

func TestVisibleDevicesAreChosenAsCUDAChooses(t *testing.T) {
	all, err := visibleDevices(t, built.DriverRoot(t, "h100-sxm", "--gpus", "4"), "unset")
	require.NoError(t, err)
	require.Len(t, all, 4)
	uuid := make1(4, func(i int) string { return strings.Fields(all[i])[0] })
	for _, c := range []struct {
		visible string
		want    []int
	}{
		{"2", []int{2}},
		{"3,0", []int{3, 0}},
		{" 1 , 2", []int{1, 2}},
		{"1,9,2", []int{1}},    // what follows an index that is not there is ignored
		{"1,-1,2", []int{1}},   // the documented way to hide the rest
		{"0,zero,2", []int{0}}, // and what follows nonsense
		{"1,2,1", nil},         // an index twice leaves nothing
		{"-1", nil},
		{"", nil},
		{"NoDevFiles", nil}, // what some runtimes write for "none"
		{uuid[1], []int{1}},
		{uuid[3] + "," + uuid[0], []int{3, 0}},
		{uuid[2][:10], []int{2}}, // cut short, and still unambiguous
		{"GPU-", nil},            // ambiguous
		{uuid[1] + ",2", []int{1}},
		{uuid[1] + "," + uuid[1], nil},
	} {
		t.Run(c.visible, func(t *testing.T) {
			got, err := visibleDevices(t, built.DriverRoot(t, "h100-sxm", "--gpus", "4"), c.visible)
			if c.want == nil {
				require.Equal(t, noDevice, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, make1(len(c.want), func(i int) string { return all[c.want[i]] }), got)
		})
	}
}

func TestAProcessSeesOneMIGDevice(t *testing.T) {
	up := func(t *testing.T, gpus string, mig ...string) string {
		root := built.DriverRoot(t, "h100-sxm", "--gpus", gpus)
		for _, gpu := range mig {
			built.Gpusim(t, "mig", "--root", root, "--gpu", gpu, "--layout", "1g.10gb,2g.20gb")
		}
		return root
	}
	// Which ones there are, in nvidia-smi's words.
	root := up(t, "1", "0")
	smi := exec.Command(filepath.Join(root, "usr/bin/nvidia-smi"), "-L")
	smi.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(libraryOf(t, root)))
	out, err := smi.CombinedOutput()
	require.NoError(t, err, string(out))
	there := regexp.MustCompile(`(?m)^  MIG (\S+).*UUID: (MIG-[-0-9a-f]+)`).FindAllStringSubmatch(string(out), -1)
	require.Len(t, there, 2, string(out))
	shown := func(i int) []string {
		return []string{there[i][2] + " SIMULATED NVIDIA H100 80GB HBM3 MIG " + there[i][1]}
	}

	got, err := visibleDevices(t, root, "unset")
	require.NoError(t, err)
	require.Equal(t, shown(0), got)
	got, err = visibleDevices(t, up(t, "1", "0"), there[1][2])
	require.NoError(t, err)
	require.Equal(t, shown(1), got)
	got, err = visibleDevices(t, up(t, "1", "0"), there[1][2]+","+there[0][2])
	require.NoError(t, err)
	require.Equal(t, shown(1), got, "the first that is named")

	// A whole GPU comes before a MIG device, and they are not mixed.
	mixed, err := visibleDevices(t, up(t, "2", "0"), "unset")
	require.NoError(t, err)
	require.Len(t, mixed, 1)
	require.True(t, strings.HasPrefix(mixed[0], "GPU-"), mixed[0])

	// MIG mode without instances is no device at all.
	empty := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
	built.Gpusim(t, "mig", "--root", empty, "--gpu", "0", "--on")
	_, err = visibleDevices(t, empty, "unset")
	require.Equal(t, noDevice, err)
}

func TestMIGDevicesHaveTheirOwnMemoryAndProcessors(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "1")
	built.Gpusim(t, "mig", "--root", root, "--gpu", "0", "--layout", "1g.10gb")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	var memory uint64
	var processors int32
	require.Zero(t, l.cuDeviceTotalMem(&memory, 0))
	require.Zero(t, l.cuDeviceGetAttribute(&processors, 16, 0))
	require.InDelta(t, 10<<30, memory, 1<<30)
	require.EqualValues(t, 16, processors)
	d := l.newContext(t, 0)
	require.Equal(t, outOfMemory, check(d.cuMemAlloc(new(uint64), 11<<30)))
}

func TestDevicesAreMissingAsWithARealDriver(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(t *testing.T, root string)
		want    error
	}{
		"no state":     {func(t *testing.T, root string) { removeState(t, root) }, noDevice},
		"no nvidiactl": {func(t *testing.T, root string) { remove(t, root, "dev/nvidiactl") }, noDevice},
		"no uvm":       {func(t *testing.T, root string) { remove(t, root, "dev/nvidia-uvm") }, unknown},
		"no GPU node":  {func(t *testing.T, root string) { remove(t, root, "dev/nvidia0"); remove(t, root, "dev/nvidia1") }, noDevice},
		"another kernel module": {func(t *testing.T, root string) {
			built.Gpusim(t, "up", "--root", root, "--profile", "l40s", "--gpus", "2", "--module-version", "550.1.1")
		}, mismatch},
		"all lost": {func(t *testing.T, root string) {
			built.Gpusim(t, "lose", "--root", root, "--gpu", "0")
			built.Gpusim(t, "lose", "--root", root, "--gpu", "1", "--how", "gone")
		}, noDevice},
	} {
		t.Run(name, func(t *testing.T) {
			root := built.DriverRoot(t, "l40s", "--gpus", "2")
			c.breakIt(t, root)
			_, err := visibleDevices(t, root, "unset")
			require.Equal(t, c.want, err)
		})
	}
	t.Run("one of two", func(t *testing.T) {
		root := built.DriverRoot(t, "l40s", "--gpus", "2")
		remove(t, root, "dev/nvidia0")
		got, err := visibleDevices(t, root, "unset")
		require.NoError(t, err)
		require.Len(t, got, 1)
	})
}

func remove(t *testing.T, root, name string) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(root, name)))
}

func removeState(t *testing.T, root string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libnvidia-gpusim.so.*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, os.Remove(found[0]))
}

func TestADeviceNodeThatMayNotBeOpenedIsAnErrorOfTheSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make nodes and become somebody else")
	}
	dir, err := os.MkdirTemp("", "gpusim")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	root, sample := filepath.Join(dir, "driver"), filepath.Join(dir, "vectoradd")
	built.Gpusim(t, "up", "--root", root, "--profile", "t4")
	t.Cleanup(func() { built.Gpusim(t, "down", "--root", root) })
	// Where tests are built is nobody's business.
	built.Copy(t, sample, "vectoradd")
	run := func() (string, int) {
		cmd := exec.Command(sample)
		cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(libraryOf(t, root))}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, exit := run()
	require.Zero(t, exit, out)
	require.Contains(t, out, "Test PASSED (SIMULATED)")
	for node, want := range map[string]string{
		"nvidiactl":  "cuInit: error 304 (CUDA_ERROR_OPERATING_SYSTEM); the driver's device nodes cannot be opened",
		"nvidia0":    "cuInit: error 304 (CUDA_ERROR_OPERATING_SYSTEM); the driver's device nodes cannot be opened",
		"nvidia-uvm": "cuInit: error 999 (CUDA_ERROR_UNKNOWN); may this process open /dev/nvidia-uvm",
	} {
		require.NoError(t, os.Chmod(filepath.Join(root, "dev", node), 0o600))
		out, exit = run()
		require.Equal(t, 1, exit, out)
		require.Contains(t, out, want)
		require.NoError(t, os.Chmod(filepath.Join(root, "dev", node), 0o666))
	}
}

func TestAGPULostWhileInUseAnswersNothingMore(t *testing.T) {
	root := built.DriverRoot(t, "l40s", "--gpus", "2")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	other := l.newContext(t, 1)
	d := l.newContext(t, 0)
	require.NoError(t, check(d.cuCtxSynchronize()))
	built.Gpusim(t, "lose", "--root", root, "--gpu", "0")
	require.Equal(t, unknown, check(d.cuCtxSynchronize()))
	require.Equal(t, unknown, check(d.cuMemAlloc(new(uint64), 4)))
	var context uintptr
	require.Equal(t, unknown, check(d.cuCtxCreate(&context, 0, 0)))

	require.Zero(t, l.cuCtxSetCurrent(other.context))
	require.NoError(t, check(other.cuCtxSynchronize()), "its neighbour")
}
