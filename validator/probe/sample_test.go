package probe

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/test/lab/built"
)

// job returns a SampleJob whose sample is a shell script with the given body.
func job(t *testing.T, script string) SampleJob {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bandwidth")
	built.Script(t, path, script)
	return SampleJob{Name: "bandwidth", Path: path, Devices: []gpu.UUID{"GPU-a"}, LibDirs: []string{"/drivers lib"}, Timeout: time.Minute}
}

const good = `{"passed": true, "uuid": "GPU-a", "figures": [{"name": "copy", "value": 3.1e12, "unit": "B/s", "peak": 3.35e12}]}`

func TestTheSamplesAnswerIsRead(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "none")
	t.Setenv("BANDWIDTH_BYTES", "7")
	j := job(t, `[ "$*" = "-o json --peers" ] && [ "$LD_LIBRARY_PATH" = "/drivers lib" ] && [ "$CUDA_VISIBLE_DEVICES" = GPU-a,GPU-b ] && [ -z "$BANDWIDTH_BYTES" ] && echo '`+good+`'`)
	j.Args, j.Devices = []string{"--peers"}, append(j.Devices, "GPU-b")
	r := RunSample(t.Context(), j)
	require.Equal(t, SamplePassed, r.Outcome, r.Message)
	require.Equal(t, []Figure{{Name: "copy", Value: 3.1e12, Unit: "B/s", Peak: 3.35e12}}, r.Answer.Figures)
	require.Positive(t, r.Elapsed)
}

func TestHowASampleEnds(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		outcome SampleOutcome
		says    string
	}{
		"a call failed":          {`echo '{"passed": false, "error": "cuInit: 999"}'; exit 1`, SampleFailed, "cuInit: 999"},
		"wrong usage":            {`echo 'unknown flag: --peers' >&2; exit 2`, SampleFailed, "unknown flag"},
		"a wrong result":         {`echo '{"passed": false, "error": "element 7", "wrongCount": 3}'; exit 3`, SampleWrong, "element 7"},
		"its own limit":          {`echo late >&2; exit 4`, SampleNoResult, "late"},
		"not possible":           {`echo '{"passed": false, "error": "no bf16"}'; exit 5`, SampleImpossible, "no bf16"},
		"killed":                 {`kill -9 $$`, SampleFailed, "signal: killed"},
		"passed, and exit 1":     {`echo '` + good + `'; exit 1`, SampleFailed, "exit status 1"},
		"not passed, and exit 0": {`echo '{"passed": false, "error": "lied"}'`, SampleFailed, "did not pass: lied"},
		"no answer":              {`echo hello`, SampleFailed, `ended with 0 and no result: "hello"`},
		"another GPU":            {`echo '{"passed": true, "uuid": "GPU-z"}'`, SampleFailed, `the sample ran on "GPU-z"`},
		"an escape sequence":     {`printf '\033[2Jgone' >&2; exit 1`, SampleFailed, "[2Jgone"},
		"a flood":                {`head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 1`, SampleFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := RunSample(t.Context(), job(t, c.script))
			require.Equal(t, c.outcome, r.Outcome, r.Message)
			require.Contains(t, r.Message, c.says)
			require.NotContains(t, r.Message, "\x1b")
			require.LessOrEqual(t, len(r.Message), 1000)
		})
	}
}

func TestASampleOnAGPUInUseGivesACode(t *testing.T) {
	for code, inUse := range map[string]bool{
		`"code": 2, `: true, `"code": 46, `: true, `"code": 807, `: true, `"code": 810, `: true,
		`"code": 811, `: false, `"code": 700, `: false, `"code": 804, `: false, ``: false, `"code": "46", `: false,
	} {
		r := RunSample(t.Context(), job(t, `echo '{"passed": false, `+code+`"error": "cuDevicePrimaryCtxRetain: error 46"}'; exit 1`))
		require.Equal(t, SampleFailed, r.Outcome)
		require.Equal(t, inUse, r.MeansInUse(), code)
	}
	r := RunSample(t.Context(), job(t, `echo '{"passed": false, "code": 46, "error": "element 7"}'; exit 3`))
	require.False(t, r.MeansInUse(), "a wrong result is one")
}

func TestASampleBlamesTheDeviceOnly(t *testing.T) {
	for script, blames := range map[string]bool{
		`echo '{"passed": false, "code": 700, "error": "e"}'; exit 1`: true,
		`echo '{"passed": false, "code": 999, "error": "e"}'; exit 1`: true,
		`echo '{"passed": false, "error": "element 7"}'; exit 3`:      true,
		`exit 4`: true,
		`echo '{"passed": false, "code": 2, "error": "e"}'; exit 1`:   false,
		`echo '{"passed": false, "code": 802, "error": "e"}'; exit 1`: false,
		`echo '{"passed": false, "code": 100, "error": "e"}'; exit 1`: false,
		`exit 1`:              false,
		`kill -9 $$`:          false,
		`exit 5`:              false,
		"echo '" + good + "'": false,
	} {
		require.Equal(t, blames, RunSample(t.Context(), job(t, script)).BlamesDevice(), script)
	}
	require.False(t, RunSample(t.Context(), SampleJob{Name: "x", Path: "/nonexistent", Timeout: time.Minute}).BlamesDevice())
}

func TestASampleIsAClientOfMPS(t *testing.T) {
	shm := t.TempDir()
	j := job(t, `[ "$CUDA_MPS_PIPE_DIRECTORY" = /mps/pipe ] && echo '`+good+`'`)
	j.MPSPipe, j.MPSShm = "/mps/pipe", shm
	require.Equal(t, SamplePassed, RunSample(t.Context(), j).Outcome)
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	require.NoError(t, os.WriteFile(filepath.Join(shm, "servers"), nil, 0o644))
	j = job(t, `[ -e /dev/shm/servers ] && echo '`+good+`'`)
	j.MPSPipe, j.MPSShm = "/mps/pipe", shm
	r := RunSample(t.Context(), j)
	require.Equal(t, SamplePassed, r.Outcome, r.Message)
	require.NoFileExists(t, "/dev/shm/servers", "this process keeps its own")
	j.Path = filepath.Join(t.TempDir(), "nothing")
	require.Equal(t, SampleFailed, RunSample(t.Context(), j).Outcome)
	hangs := job(t, `sleep 1000 & wait`)
	hangs.MPSPipe, hangs.MPSShm, hangs.Timeout = "/mps/pipe", shm, time.Second
	require.Equal(t, SampleNoResult, RunSample(t.Context(), hangs).Outcome)
}

func TestAHangingSampleIsKilled(t *testing.T) {
	j := job(t, `sleep 1000 & wait`)
	j.Timeout = time.Second
	r := RunSample(t.Context(), j)
	require.Equal(t, SampleNoResult, r.Outcome)
	require.Equal(t, "no result in 1s", r.Message)
	j.Timeout = 0
	require.Equal(t, "no time was left for it", RunSample(t.Context(), j).Message)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j.Timeout = time.Minute
	require.Equal(t, SampleNoResult, RunSample(ctx, j).Outcome)
}

func TestAMissingSampleIsAnOutcome(t *testing.T) {
	r := RunSample(t.Context(), SampleJob{Name: "gemm", Timeout: time.Minute})
	require.Equal(t, SampleMissing, r.Outcome)
	require.Equal(t, "the sample gemm is neither beside gpu-validator nor in PATH", r.Message)
	r = RunSample(t.Context(), SampleJob{Name: "gemm", Path: "/nowhere/gemm", Timeout: time.Minute})
	require.Equal(t, SampleFailed, r.Outcome)
	require.Contains(t, r.Message, "no such file")
}

func TestASampleRunsOnItsProcessors(t *testing.T) {
	j := job(t, `grep -q "Cpus_allowed_list:.0$" /proc/self/status && echo '`+good+`'`)
	j.CPUs = []int{0}
	r := RunSample(t.Context(), j)
	require.Equal(t, SamplePassed, r.Outcome, r.Message)
	j = job(t, `echo '`+good+`'`)
	j.CPUs = []int{900} // there is none
	require.Equal(t, SamplePassed, RunSample(t.Context(), j).Outcome)
}

func TestParseCPUs(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 8, 10, 11}, ParseCPUs("0-2,8,10-11\n"))
	for _, bad := range []string{"", "x", "3-1", "0-99999999", "-1", "1,"} {
		require.Empty(t, ParseCPUs(bad), bad)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add([]byte(good), "last words")
	f.Add([]byte(`{"passed": true, "wrong": [{"address": "0x7f", "want": 1, "got": "2"}]}`), "")
	f.Fuzz(func(t *testing.T, stdout []byte, stderr string) {
		r := evaluateSample(SampleJob{Devices: []gpu.UUID{"GPU-a"}}, nil, stdout, stderr)
		if len(r.Message) > 2000 {
			t.Errorf("a message of %d bytes", len(r.Message))
		}
	})
}

func TestAFloodOfOutputIsBounded(t *testing.T) {
	var b bytes.Buffer
	n, err := io.Copy(&limited{&b, 10}, strings.NewReader(strings.Repeat("x", 1<<20)))
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n, "what writes must not be held up")
	require.Equal(t, 10, b.Len())
}
