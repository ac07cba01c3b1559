package workload

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// podJob returns a Job with a script in place of vectoradd, in a container with these devices.
func podJob(t *testing.T, script string, dev ...string) (j PodJob, stdout, stderr *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	j = PodJob{Sample: filepath.Join(dir, "vectoradd"), MessagePath: filepath.Join(dir, "termination-log"), Dev: filepath.Join(dir, "dev")}
	built.Script(t, j.Sample, script)
	require.NoError(t, os.WriteFile(j.MessagePath, nil, 0o666))
	require.NoError(t, os.Mkdir(j.Dev, 0o755))
	for _, name := range dev {
		require.NoError(t, os.WriteFile(filepath.Join(j.Dev, name), nil, 0o600))
	}
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	j.Stdout, j.Stderr = stdout, stderr
	return j, stdout, stderr
}

func readAnswer(t *testing.T, j PodJob) string {
	t.Helper()
	data, err := os.ReadFile(j.MessagePath)
	require.NoError(t, err)
	return string(data)
}

func TestTheSamplesAnswerIsTheTerminationMessage(t *testing.T) {
	for _, c := range []struct {
		name, script string
		dev          []string
		code         int
		left         string
	}{
		{"passed", `echo '{"passed":true,"simulated":true,"uuid":"GPU-1","seconds":{}}' >"$2"`, nil, 0, `{"passed":true,"simulated":true,"uuid":"GPU-1"}`},
		{"failed", `echo '{"passed":false,"error":"element 7"}' >"$2"; exit 3`, []string{"nvidia0", "nvidiactl"}, 3, `{"passed":false,"simulated":false,"error":"element 7","devices":1}`},
		{"failed without a GPU", `echo '{"passed":false,"error":"no CUDA-capable device"}' >"$2"; exit 1`, []string{"nvidiactl"}, 1,
			`{"passed":false,"simulated":false,"error":"no CUDA-capable device","devices":0}`},
		{"no answer", `echo oops >&2; exit 1`, []string{"nvidia3"}, 1, ""},
		{"no answer and no GPU", `echo one >&2; echo oops >&2; exit 1`, nil, 1, `{"passed":false,"simulated":false,"error":"oops","devices":0}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, _, _ := podJob(t, c.script, c.dev...)
			code, err := j.Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.code, code)
			require.Equal(t, c.left, readAnswer(t, j))
		})
	}
	_, err := PodJob{}.Run(t.Context())
	require.ErrorContains(t, err, "neither beside gpu-validator nor in PATH")
	j, _, _ := podJob(t, "kill -9 $$", "nvidia0")
	code, err := j.Run(t.Context())
	require.Equal(t, 1, code)
	require.ErrorContains(t, err, "killed")
}

func TestTheSamplesOutputIsThePodsLog(t *testing.T) {
	j, stdout, stderr := podJob(t, `echo "Test PASSED"; echo warned >&2; echo '{"passed":true,"uuid":"GPU-1"}' >"$2"`)
	_, err := j.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "Test PASSED\n", stdout.String())
	require.Equal(t, "warned\n", stderr.String())
}

const samplePerUnit = `case $CUDA_VISIBLE_DEVICES in
GPU-bad) echo "Test FAILED"; echo '{"passed":false,"error":"element 7"}' >"$2"; exit 3 ;;
GPU-dead) kill -9 $$ ;;
GPU-liar) echo '{"passed":true,"uuid":"GPU-a"}' >"$2"; exit 0 ;;
*) echo "Test PASSED"; echo "{\"passed\":true,\"simulated\":true,\"uuid\":\"$CUDA_VISIBLE_DEVICES\"}" >"$2" ;;
esac`

func TestTheSampleRunsOnEachNamedUnit(t *testing.T) {
	j, stdout, _ := podJob(t, samplePerUnit, "nvidia0", "nvidia1")
	j.Units = []string{"GPU-a=GPU 0 (GPU-a, 0000:10:00.0)", "GPU-b=GPU 1 (GPU-b, 0000:11:00.0)"}
	code, err := j.Run(t.Context())
	require.NoError(t, err)
	require.Zero(t, code)
	require.Equal(t, `{"passed":true,"simulated":true,"ran":2}`, readAnswer(t, j))
	require.Equal(t, "GPU 0 (GPU-a, 0000:10:00.0)\nTest PASSED\n\nGPU 1 (GPU-b, 0000:11:00.0)\nTest PASSED\n", stdout.String())
}

func TestAFailedUnitIsNamedAndOthersAreTried(t *testing.T) {
	j, stdout, _ := podJob(t, samplePerUnit, "nvidia0")
	j.Units = []string{"GPU-bad=GPU 0", "GPU-dead=GPU 1", "GPU-liar=GPU 2", "GPU-b=GPU 3"}
	code, err := j.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, code, "that of the first")
	require.Equal(t, `{"passed":false,"simulated":true,"error":"GPU 0: element 7; GPU 1: signal: killed; GPU 2: the sample ran on \"GPU-a\"","ran":1,"devices":1}`, readAnswer(t, j))
	require.Contains(t, stdout.String(), "\nGPU 3\nTest PASSED\n")
}
