package toolkit

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// long selects every sample instead of a few.
var long = os.Getenv("GPUREADY_LONG") != ""

// victim is a host on which gpu-toolkit is killed.
type victim struct {
	h       *node.Host
	s       *runtimetest.Systemd
	kind    node.Kind
	before  map[string]file // of the configuration
	applied map[string]file
	bare    node.RuntimeStatus
}

// configFiles returns the runtime's files without their times.
func (v *victim) configFiles(t *testing.T) map[string]file {
	t.Helper()
	return contents(t, filepath.Dir(written[v.kind].path))
}

// bringTo runs a command to its end, and checks that the host is in its final state.
func (v *victim) bringTo(t *testing.T, command string) {
	t.Helper()
	gpuToolkit(t, configuring(v.kind, command)...)
	now := status(t, v.h)
	if command == "apply" {
		require.ElementsMatch(t, append(slices.Clone(v.bare.Handlers), "nvidia"), now.Handlers)
		require.Equal(t, v.applied, v.configFiles(t))
		require.FileExists(t, "/usr/local/nvidia/gpuready/gpu-oci-runtime")
		return
	}
	require.Equal(t, v.before, v.configFiles(t))
	require.ElementsMatch(t, v.bare.Handlers, now.Handlers, "it runs with what is on the disk")
	require.NoDirExists(t, "/usr/local/nvidia")
	left, err := filepath.Glob("/var/run/cdi/*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// kill kills a command some time after its start, and reports whether it was still running.
func (v *victim) kill(t *testing.T, command string, after time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	_ = program(ctx, t, configuring(v.kind, command)...).Run()
	killed := ctx.Err() != nil
	v.s.Wait() // systemd completes its jobs
	return killed
}

// starts checks that the runtime starts with the files on the disk.
func (v *victim) starts(t *testing.T) {
	t.Helper()
	_ = v.h.Stop(t.Context())
	require.NoError(t, v.h.Start(t.Context()), "with %v", v.configFiles(t))
	require.Subset(t, status(t, v.h).Handlers, v.bare.Handlers)
}

// timeCommand returns how long a command takes after the other one.
func (v *victim) timeCommand(t *testing.T, command string) time.Duration {
	t.Helper()
	start := time.Now()
	gpuToolkit(t, configuring(v.kind, command)...)
	return time.Since(start)
}

// killed kills apply and restore at moments spread over their run. After each kill the runtime must
// start with the files on the disk, and the next apply and the next restore must reach their usual
// final states.
func killed(t *testing.T, kind node.Kind, short, all int) {
	t.Helper()
	if !enter(t) {
		return
	}
	kills := short
	if long {
		kills = all
	}
	h := start(t, kind)
	v := &victim{h: h, s: systemd(t, h), kind: kind, bare: status(t, h)}
	v.before = v.configFiles(t)
	took := map[string]time.Duration{"apply": v.timeCommand(t, "apply")}
	v.applied = v.configFiles(t)
	took["restore"] = v.timeCommand(t, "restore")
	v.bringTo(t, "restore")
	t.Logf("apply takes %v, restore %v", took["apply"], took["restore"])

	random := rand.New(rand.NewPCG(1, uint64(len(kind))))
	hit := map[string]int{}
	for i := range kills {
		command, back := "apply", "restore"
		if i%2 == 1 {
			command, back = back, command
		}
		// Stratify: one kill in each of as many intervals as there are kills.
		at := (float64(i/2) + random.Float64()) / float64(max(kills/2, 1))
		if v.kill(t, command, time.Duration(at*float64(took[command]))) {
			hit[command]++
		}
		if i%4 < 2 { // otherwise continue with the runtime as it was left
			v.starts(t)
		}
		next := []string{command, back, command}
		if i%8 >= 4 { // run the other command first
			next = []string{back, command}
		}
		for _, n := range next {
			v.bringTo(t, n)
		}
		if t.Failed() {
			t.Fatalf("%s killed after %.3f of its time", command, at)
		}
	}
	t.Logf("%d kills: %v before the end", kills, hit)
	require.Positive(t, hit["apply"])
	require.Positive(t, hit["restore"])
	v.bringTo(t, "restore")
	ordinary(t, h)
}

func TestContainerd2SurvivesAKillAtAnyMoment(t *testing.T) {
	killed(t, node.Containerd2, 12, 120)
}

func TestContainerd16SurvivesAKillAtAnyMoment(t *testing.T) {
	killed(t, node.Containerd16, 8, 100)
}
