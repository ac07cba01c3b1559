package preflight

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func run(day int, gpus ...GPU) Result {
	return Result{Schema: ResultSchema, Node: "n1", Time: noon.AddDate(0, 0, day), GPUs: gpus}
}

func device(id gpu.UUID, pci gpu.PCIAddress, speed float64) GPU {
	return GPU{UUID: id, PCI: pci, Figures: []Figure{{Name: "copy", Unit: "B/s", Value: speed}}}
}

func TestResultsAreKeptUpToABound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "results")
	past, err := ReadHistory(dir)
	require.NoError(t, err)
	require.Empty(t, past)
	for day := range keptResults + 3 {
		require.NoError(t, WriteHistory(dir, run(day, device("GPU-a", "0000:01:00.0", 3e12))))
	}
	require.NoError(t, os.WriteFile(dir+"/notes.json", []byte("mine"), 0o644))
	require.NoError(t, os.WriteFile(dir+"/20300101T000000.000Z.json", []byte(`{"schema":99}`), 0o644))
	require.NoError(t, os.Symlink("/etc/passwd", dir+"/20300102T000000.000Z.json"))
	past, err = ReadHistory(dir)
	require.NoError(t, err)
	require.Len(t, past, keptResults)
	require.Equal(t, run(3, device("GPU-a", "0000:01:00.0", 3e12)), past[0])
	require.FileExists(t, dir+"/notes.json")
}

func TestANodeIsComparedWithItsPast(t *testing.T) {
	past := []Result{
		run(0, device("GPU-a", "0000:01:00.0", 3.0e12), device("GPU-b", "0000:02:00.0", 3.2e12), device("GPU-c", "0000:03:00.0", 1e12), device("GPU-m", "0000:05:00.0", 0)),
		run(0, device("GPU-b", "0000:02:00.0", 3.2e12)), // without GPU-a
		run(1, device("GPU-a", "0000:01:00.0", 2.9e12), device("GPU-b", "0000:02:00.0", 3.1e12), device("GPU-c", "0000:03:00.0", 1e12), device("GPU-m", "0000:05:00.0", 0)),
		{Schema: 1, Simulated: true, Time: noon.AddDate(0, 0, 2)},
	}
	r := run(3, device("GPU-a", "0000:01:00.0", 2.7e12), device("GPU-x", "0000:02:00.0", 3.1e12), device("GPU-y", "0000:04:00.0", 1e12), device("GPU-m", "0000:06:00.0", 0))
	CompareHistory(&r, past)
	f, _ := r.GPUs[0].Find("copy")
	require.Equal(t, 2.9e12, f.Last)
	require.Equal(t, 3.0e12, f.Best)
	require.Equal(t, []string{"copy: 2700 GB/s is 10 % below its best of 2 earlier runs, 3000 GB/s"}, r.GPUs[0].Notes)
	require.Equal(t, []string{
		"since 2026-01-03T12:00:00Z the GPU at 0000:02:00.0 was exchanged: GPU-x, before it GPU-b",
		"since 2026-01-03T12:00:00Z GPU-c at 0000:03:00.0 is not there any more",
		"since 2026-01-03T12:00:00Z GPU-m moved from 0000:05:00.0 to 0000:06:00.0",
		"since 2026-01-03T12:00:00Z GPU-y at 0000:04:00.0 is new",
	}, r.Notes)
	f, _ = r.GPUs[1].Find("copy")
	require.Zero(t, f.Best, "the one before it was another GPU")
}
