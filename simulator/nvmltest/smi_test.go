package nvmltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/golden"
)

// install puts nvidia-smi where a driver has it.
func install(t *testing.T) func(machine) {
	return func(m machine) {
		require.NoError(t, os.MkdirAll(filepath.Join(m.root, "usr/bin"), 0o755))
		built.Copy(t, m.smi(), "lib/nvidia-smi")
	}
}

func (m machine) smi() string { return filepath.Join(m.root, "usr/bin/nvidia-smi") }

func (m machine) runSMI(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(m.smi(), args...)
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

var date = regexp.MustCompile(`(?m)^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}$`)

// requireGolden compares output of nvidia-smi with a file in testdata.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	golden.Require(t, filepath.Join("testdata", name+".golden"), date.ReplaceAllString(got, "DATE"))
}

func partitioned(t *testing.T) func(machine) {
	return func(m machine) {
		install(t)(m)
		layout, err := profile.ParseLayout("3g.40gb,2g.20gb:1c+1c,1g.10gb+me")
		require.NoError(t, err)
		m.change(t, func(s *state.State) {
			s.Ngpus = 2
			require.NoError(t, profile.EnableMIG(&s.Gpu[0], layout))
			gi := s.Gpu[0].Gi[0].Id
			s.Gpu[0].Proc[0] = state.Proc{Used: 1, Pid: 4711, Gi: gi, Memory: 512 << 20}
			require.NoError(t, state.SetText(s.Gpu[0].Proc[0].Name[:], "/usr/bin/python3"))
			for _, ci := range s.Gpu[0].Ci {
				if ci.Used != 0 {
					m.addCapability(t, 0, int(ci.Gi), int(ci.Id))
				}
			}
		})
	}
}

func TestNvidiaSMIListsWhatNVMLSays(t *testing.T) {
	alone(t, "a100-80gb", partitioned(t), func(t *testing.T, m machine, _ nvml.Interface) {
		for name, args := range map[string][]string{
			"table": nil, "list": {"-L"}, "details": {"-q", "-i", "1"}, "topology": {"topo", "-m"},
			"query": {"--query-gpu=index,uuid,name,driver_version,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu," +
				"pci.bus_id,power.draw,compute_cap,mig.mode.current,ecc.errors.uncorrected.volatile.total,serial", "--format=csv"},
			"bare": {"--query-gpu", "index,memory.total,gpu_name", "--format", "csv,noheader,nounits"},
		} {
			t.Run(name, func(t *testing.T) {
				out, exit := m.runSMI(t, args...)
				require.Zero(t, exit, out)
				requireGolden(t, "smi-"+name, out)
			})
		}
	})
}

func TestNvidiaSMIChoosesGPUsByIndexUUIDAndAddress(t *testing.T) {
	alone(t, "h100-sxm", install(t), func(t *testing.T, m machine, _ nvml.Interface) {
		for index, gpu := range described(t, m).GPUs() {
			for _, name := range []string{fmt.Sprint(index), state.Text(gpu.Uuid[:]), gpu.Pci.Address()} {
				out, exit := m.runSMI(t, "-i", name, "--query-gpu=index", "--format=csv,noheader")
				require.Zero(t, exit)
				require.Equal(t, fmt.Sprintln(index), out)
			}
		}
	})
}

func TestNvidiaSMIFailsWithTheRealWordsAndCodes(t *testing.T) {
	built.SkipWithDriver(t)
	alone(t, "t4", install(t), func(t *testing.T, m machine, _ nvml.Interface) {
		expect := func(want int, words string, args ...string) {
			t.Helper()
			out, exit := m.runSMI(t, args...)
			require.Equal(t, want, exit, out)
			require.Contains(t, out, words)
		}
		expect(0, "SIMULATED", "--version")
		expect(2, `Field "nonsense" is not a valid field to query.`, "--query-gpu=nonsense", "--format=csv")
		expect(2, `"--format=" switch is missing`, "--query-gpu=name")
		expect(2, "Invalid combination of input arguments", "--nonsense")
		expect(6, "No devices were found", "-i", "5")
		m.change(t, func(s *state.State) { s.Gpu[0].Lost = state.LostHandle })
		expect(15, "GPU is lost", "-L")
		m.change(t, func(s *state.State) { s.Gpu[0].Lost = state.LostCalls })
		expect(0, "[GPU is lost]", "--query-gpu=uuid", "--format=csv,noheader")
		m.change(t, func(s *state.State) { s.Gpu[0].Lost = state.LostGone })
		expect(6, "No devices were found", "-L")
		m.change(t, func(s *state.State) { copy(s.ModuleVersion[:], "999") })
		expect(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "+version)
		require.NoError(t, os.Remove(m.statePath()))
		expect(9, "couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.")
		require.NoError(t, os.Remove(m.library()))
		expect(12, "couldn't find libnvidia-ml.so library in your system")
	})
}

func TestMPSControlKeepsItsSettingsUntilItQuits(t *testing.T) {
	control := built.Path(t, "lib/nvidia-cuda-mps-control")
	dir := t.TempDir()
	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command(control, args...)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+dir, "CUDA_MPS_LOG_DIRECTORY="+dir)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("get_server_list\n")
	require.Error(t, err)
	require.Contains(t, out, "Cannot find MPS control daemon process")

	_, err = run("", "-d")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = run("quit\n") })
	out, err = run("", "-d")
	require.Error(t, err)
	require.Contains(t, out, "already running")
	for _, c := range []struct{ command, want string }{
		{"get_server_list", ""},
		{"get_default_active_thread_percentage", "100.0\n"},
		{"set_default_active_thread_percentage 25", "25.0\n"},
		{"get_default_active_thread_percentage", "25.0\n"},
		{"set_default_active_thread_percentage 101", "Invalid active thread percentage: it is above 0 and at most 100\n"},
		{"set_default_device_pinned_mem_limit 0 10G", ""},
		{"set_default_device_pinned_mem_limit 0 much", "Invalid pinned memory limit: much is no number of M or G\n"},
		{"get_default_device_pinned_mem_limit 0", "10G\n"},
		{"nonsense", "Unrecognized or incomplete command: nonsense\n"},
	} {
		out, err := run(c.command + "\n")
		require.NoError(t, err)
		require.Equal(t, c.want, out, c.command)
	}
	_, err = run("quit\n")
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, "control"))
	log, err := os.ReadFile(filepath.Join(dir, "control.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "SIMULATED: started")
}
