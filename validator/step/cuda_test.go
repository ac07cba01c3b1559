package step

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/check"
)

// cudaTestNode returns a node whose sample is a shell script with the given body.
func cudaTestNode(t *testing.T, script string) check.Node {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vectoradd")
	built.Script(t, path, script)
	root, err := host.Open("/")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return check.Node{Root: root, VectorAdd: path, CUDATimeout: time.Minute, CUDAConcurrency: 3}
}

func cudaTestDriver(n int) check.Driver {
	return check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, LibDirs: []string{"/drivers lib"}, GPUs: gputest.Node("a100-80gb", n).Devices}
}

func TestEveryGPUAndMIGDeviceIsTried(t *testing.T) {
	seen := t.TempDir()
	n := cudaTestNode(t, `env | grep -v '^\(PWD\|SHLVL\|_\)=' | cut -d= -f1 | sort | tr '\n' ' ' > "`+seen+`/$CUDA_VISIBLE_DEVICES"
[ "$LD_LIBRARY_PATH" = "/drivers lib" ] && [ "$*" = "-o json" ] && echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`)
	t.Setenv("CUDA_VISIBLE_DEVICES", "none")
	t.Setenv("NVIDIA_VISIBLE_DEVICES", "void")
	d := cudaTestDriver(5)
	d.GPUs[1] = gputest.WithMIG(d.GPUs[1], "1g.10gb", "2g.20gb")
	d.GPUs[2] = gputest.WithMIG(d.GPUs[2])
	d.GPUs[3].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	o := checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	want := []gpu.UUID{d.GPUs[0].UUID, d.GPUs[1].MIG[0].UUID, d.GPUs[1].MIG[1].UUID, d.GPUs[4].UUID}
	require.Equal(t, len(want), o.Proof.GPUs)
	require.Contains(t, o.Proof.Summary, "vectorAdd on 3 of 5 GPUs, of which 1 as 2 MIG devices, slowest ")
	require.Len(t, o.Proof.Seconds, len(want))
	for _, id := range want {
		require.Positive(t, o.Proof.Seconds[id])
		environment, err := os.ReadFile(filepath.Join(seen, string(id)))
		require.NoError(t, err)
		require.Equal(t, "CUDA_CACHE_DISABLE CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH PATH ", string(environment))
	}
}

// What claims have had created is theirs: nothing is run on it.
func TestNothingIsRunOnPartitionsOfClaims(t *testing.T) {
	n := cudaTestNode(t, "exit 1")
	d := cudaTestDriver(2)
	d.OnDemand = true
	for i := range d.GPUs {
		d.GPUs[i].MIGEnabled = true
	}
	o := checkCUDA(t.Context(), n, d)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Zero(t, o.Proof.GPUs)
	d.OnDemand = false
	require.Equal(t, reasonNoMIGDevices, checkCUDA(t.Context(), n, d).NotReady.Reason)
}

func TestAFailureNamesTheGPUAndQuotesTheSample(t *testing.T) {
	bad := string(gputest.GPU(1))
	cases := map[string]struct {
		script string
		reason gpu.Reason
		says   string
	}{
		"wrong result in its answer": {`echo '{"passed": false, "error": "element 7 is 3, want 4"}'; exit 1`, reasonSampleFailed, "element 7 is 3, want 4"},
		"wrong result on stderr":     {`echo Working >&2; echo 'Result verification failed at element 7!' >&2; exit 1`, reasonSampleFailed, "Result verification failed at element 7!"},
		"not passed, and exit 0":     {`echo '{"passed": false, "error": "lied"}'`, reasonSampleFailed, "the sample says that it did not pass: lied"},
		"no answer, and exit 0":      {`echo hello`, reasonSampleFailed, `ended with 0 and no result: "hello"`},
		"passed but exit 3":          {`echo '{"passed": true}'; exit 3`, reasonSampleFailed, "exit status 3"},
		"ran on another GPU":         {`echo '{"passed": true, "uuid": "GPU-other"}'`, reasonSampleFailed, `the sample ran on "GPU-other"`},
		"simulated libcuda only":     {`echo "{\"passed\": true, \"simulated\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"`, reasonSampleFailed, "of different drivers"},
		"killed":                     {`kill -9 $$`, reasonSampleFailed, "signal: killed"},
		"an escape sequence":         {`printf '\033[2Jgone' >&2; exit 1`, reasonSampleFailed, "[2Jgone"},
		"hangs":                      {`sleep 1000 & wait`, reasonSampleTimeout, "no result in 5s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := cudaTestNode(t, `if [ "$CUDA_VISIBLE_DEVICES" != `+bad+` ]; then echo "{\"passed\": true, \"uuid\": \"$CUDA_VISIBLE_DEVICES\"}"; exit 0; fi
`+c.script)
			if c.reason == reasonSampleTimeout {
				n.CUDATimeout = 5 * time.Second
			}
			o := checkCUDA(t.Context(), n, cudaTestDriver(3))
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, c.reason, o.NotReady.Reason)
			require.Contains(t, o.NotReady.Message, "vectorAdd failed on 1 of 3 GPUs: GPU 1 ("+bad+", 0000:11:00.0): ")
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotContains(t, o.NotReady.Message, "\x1b")
		})
	}
}

func TestAFloodOfOutputIsBounded(t *testing.T) {
	n := cudaTestNode(t, `head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2; exit 1`)
	o := checkCUDA(t.Context(), n, cudaTestDriver(1))
	require.Equal(t, reasonSampleFailed, o.NotReady.Reason)
	require.Less(t, len(o.NotReady.Message), 4096)
}

func TestWithoutSampleOrMIGDevicesThereIsAReason(t *testing.T) {
	o := checkCUDA(t.Context(), check.Node{}, cudaTestDriver(1))
	require.Equal(t, reasonSampleMissing, o.NotReady.Reason)
	n := cudaTestNode(t, "exit 1")
	n.VectorAdd += "-not-there"
	o = checkCUDA(t.Context(), n, cudaTestDriver(1))
	require.Contains(t, o.NotReady.Message, "no such file")
	d := cudaTestDriver(1)
	d.GPUs[0] = gputest.WithMIG(d.GPUs[0])
	require.Equal(t, reasonNoMIGDevices, checkCUDA(t.Context(), n, d).NotReady.Reason)
}

func TestCancellingEndsTheSamples(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	require.NoError(t, os.WriteFile(started, nil, 0o644))
	n := cudaTestNode(t, `rm `+started+`; sleep 1000`)
	done := make(chan check.Outcome)
	go func() { done <- checkCUDA(ctx, n, cudaTestDriver(1)) }()
	require.Eventually(t, func() bool { _, err := os.Stat(started); return err != nil }, 30*time.Second, time.Millisecond)
	cancel()
	require.Equal(t, check.Failed, (<-done).Kind)
}
