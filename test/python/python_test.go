// Package python runs CUDA programs of third-party clients on the simulated driver: Numba's CUDA target
// and PyCUDA, as packaged by Debian. Each program of scripts/ checks its results against numpy's, and
// Numba's own tests run, too.
package python

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/built"
)

// machine is Python with its packages, and the driver root that it uses.
type machine struct {
	python string
	env    []string
	driver string
}

// newMachine fetches the packages. Some are NVIDIA's, which we may not distribute, so the test is skipped
// unless the environment enables it.
func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getenv("GPUREADY_PYTHON") == "" {
		t.Skip("make e2e-python fetches Numba, PyCUDA and parts of the CUDA toolkit")
	}
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	packages, err := binaries.EnsureDebian(t.Context(), cache, binaries.PythonCUDA, os.Stderr)
	require.NoError(t, err)
	m := &machine{python: filepath.Join(packages, "usr/bin/python3.11"), driver: built.DriverRoot(t, "h100-sxm", "--gpus", "2")}
	lib := filepath.Join(packages, "usr/lib/x86_64-linux-gnu")
	m.env = []string{
		"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(), "LC_ALL=C.UTF-8",
		"PATH=" + filepath.Join(packages, "usr/bin") + ":" + os.Getenv("PATH"),
		"PYTHONHOME=" + filepath.Join(packages, "usr"), "PYTHONPATH=" + filepath.Join(packages, "usr/lib/python3/dist-packages"),
		"PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1",
		"LD_LIBRARY_PATH=" + strings.Join([]string{filepath.Join(m.driver, "usr/lib/x86_64-linux-gnu"), lib, lib + "/blas", lib + "/lapack"}, ":"),
		"CUDA_HOME=" + toolkit(t, packages), "NUMBA_CUDA_USE_NVIDIA_BINDING=0",
		// Numba queries the CUDA runtime's version to determine the features of libnvvm, and the runtime does
		// not start on the simulated driver.
		"NUMBA_FORCE_CUDA_CC=9.0",
		"KERNELS=" + filepath.Join(built.Root(), "simulator/cudatest/kernels"),
	}
	return m
}

// toolkit returns a folder laid out as Numba expects a CUDA toolkit.
func toolkit(t *testing.T, packages string) string {
	t.Helper()
	home := t.TempDir()
	for name, from := range map[string]string{
		"nvvm/lib64/libnvvm.so.4":        "usr/lib/x86_64-linux-gnu/libnvvm.so.4",
		"nvvm/libdevice/libdevice.10.bc": "usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc",
	} {
		path := filepath.Join(home, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.Symlink(filepath.Join(packages, from), path))
	}
	return home
}

// run runs Python and returns its output.
func (m *machine) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, m.python, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = m.env, &out, &out
	cmd.Dir = t.TempDir()
	err := cmd.Run()
	return out.String(), err
}

func TestNumbaAndPyCUDARunTheirKernels(t *testing.T) {
	m := newMachine(t)
	scripts, err := filepath.Glob("scripts/*_*.py")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		path, err := filepath.Abs(script)
		require.NoError(t, err)
		t.Run(strings.TrimSuffix(filepath.Base(script), ".py"), func(t *testing.T) {
			t.Parallel()
			out, err := m.run(t, "-W", "ignore", path)
			require.NoError(t, err, out)
			t.Log("\n" + out)
		})
	}
}

// gpusim's log shows failures, with the opcode, the line and CUDA's name of the error.
func TestTheLogNamesPyCUDAFailures(t *testing.T) {
	m := newMachine(t)
	path, err := filepath.Abs("scripts/pycuda_errors.py")
	require.NoError(t, err)
	out, err := m.run(t, "-W", "ignore", path)
	require.NoError(t, err, out)
	log := built.Gpusim(t, "log", "--root", m.driver)
	require.Regexp(t, `python3.11\[\d+\] GPU-\S+: CUDA_ERROR_INVALID_PTX: .*line 4; .*'frobnicate.u32'\n`, log)
	require.Regexp(t, `CUDA_ERROR_NOT_SUPPORTED: .*line 7; .*'movmatrix.sync.aligned.m8n8.trans.b16'\n`, log)
	require.Regexp(t, `CUDA_ERROR_ILLEGAL_ADDRESS: line \d+, .* out of bounds, in vectoradd\n`, log)
}

// numbaTests are 80 of the 116 modules of numba.cuda.tests. Left out are
//   - those that ask the CUDA runtime for its version, which does not start on the simulator:
//     test_caching, test_compiler, test_constmem, test_intrinsics, test_runtime;
//   - test_ipc, whose memory between processes is not served, and test_managed_alloc, which
//     writes to half of the GPU's memory, more than the host may have;
//   - test_localmem, which writes 10 numbers to an array of one, and gets an error;
//   - test_sm and test_debug, which fail in Numba's compiler with these versions of Python and
//     numpy, and test_nvvm_driver, which NUMBA_FORCE_CUDA_CC contradicts;
//   - test_cooperative_groups, which skips all, without the library cudadevrt;
//   - those that take 10 seconds or more, and some that were not tried with warnings on.
var numbaTests = strings.Fields(`
	cudadrv.test_array_attr cudadrv.test_context_stack cudadrv.test_cuda_array_slicing cudadrv.test_cuda_auto_context
	cudadrv.test_cuda_devicerecord cudadrv.test_cuda_driver cudadrv.test_cuda_memory cudadrv.test_cuda_ndarray cudadrv.test_deallocations
	cudadrv.test_emm_plugins cudadrv.test_events cudadrv.test_host_alloc cudadrv.test_inline_ptx cudadrv.test_linker cudadrv.test_pinned
	cudadrv.test_profiler cudadrv.test_reset_device cudadrv.test_select_device cudadrv.test_streams

	cudapy.test_alignment cudapy.test_array cudapy.test_array_args cudapy.test_array_methods cudapy.test_atomics cudapy.test_blackscholes
	cudapy.test_boolean cudapy.test_casting cudapy.test_complex cudapy.test_complex_kernel cudapy.test_const_string
	cudapy.test_cuda_array_interface cudapy.test_datetime cudapy.test_debuginfo cudapy.test_device_func cudapy.test_dispatcher
	cudapy.test_enums cudapy.test_errors cudapy.test_exception cudapy.test_extending cudapy.test_fastmath cudapy.test_forall
	cudapy.test_freevar cudapy.test_frexp_ldexp cudapy.test_globals cudapy.test_idiv cudapy.test_iterators
	cudapy.test_lang cudapy.test_laplace cudapy.test_lineinfo cudapy.test_mandel cudapy.test_math cudapy.test_minmax
	cudapy.test_montecarlo cudapy.test_multigpu cudapy.test_multithreads cudapy.test_nondet cudapy.test_operator cudapy.test_optimization
	cudapy.test_overload cudapy.test_powi cudapy.test_random cudapy.test_record_dtype cudapy.test_recursion cudapy.test_reduction
	cudapy.test_serialize cudapy.test_slicing cudapy.test_sm_creation cudapy.test_sync cudapy.test_transpose cudapy.test_userexc
	cudapy.test_vectorize cudapy.test_vectorize_complex cudapy.test_vectorize_decor cudapy.test_vectorize_device cudapy.test_vectorize_scalar_arg

	doc_examples.test_cpu_gpu_compat doc_examples.test_matmul doc_examples.test_montecarlo doc_examples.test_reduction doc_examples.test_vecadd
`)

var numbaRan = regexp.MustCompile(`(?m)^Ran (\d+) tests? in `)

func TestNumbasOwnTestsPass(t *testing.T) {
	m := newMachine(t)
	for _, name := range numbaTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := m.run(t, "-m", "numba.runtests", "-v", "numba.cuda.tests."+name)
			require.NoError(t, err, out)
			ran := numbaRan.FindStringSubmatch(out)
			require.NotNil(t, ran, out)
			require.NotEqual(t, "0", ran[1], out)
			t.Logf("%s tests", ran[1])
		})
	}
}
