package gpu_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// TestGPUPreflight prints the result of a preflight with its usual 10 s on this machine. Only a person who
// knows what else runs on it can judge whether a GPU is slow.
func TestGPUPreflight(t *testing.T) {
	snap := machine(t)
	page := filepath.Join(t.TempDir(), "preflight.html")
	cmd := exec.CommandContext(t.Context(), built.Path(t, "gpu-validator"), "preflight", "--results-dir=", "-o", "json", "--html", page)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	t.Logf("exit code %d\n%s%s", cmd.ProcessState.ExitCode(), out, &stderr)
	var r struct {
		Verdict   string
		Simulated bool
		GPUs      []struct {
			UUID    string
			Runs    []struct{ Sample, Verdict string }
			Figures []struct {
				Name  string
				Value float64
			}
		}
	}
	require.NoError(t, json.Unmarshal(out, &r))
	require.False(t, r.Simulated)
	require.Contains(t, []string{"ok", "slow"}, r.Verdict)
	require.GreaterOrEqual(t, len(r.GPUs), len(snap.Devices))
	for _, g := range r.GPUs {
		for _, run := range g.Runs {
			require.Equal(t, "ok", run.Verdict, "%s on %s", run.Sample, g.UUID)
		}
		for _, f := range g.Figures {
			require.Positive(t, f.Value, "%s of %s", f.Name, g.UUID)
		}
	}
	require.FileExists(t, page)
}
