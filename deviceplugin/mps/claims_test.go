package mps

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// modes are the modes of GPUs; a GPU with an error cannot be set.
type modes struct {
	mode  map[gpu.UUID]gpu.ComputeMode
	fails map[gpu.UUID]error
}

func (m *modes) ComputeMode(_ context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	return m.mode[id], nil
}

func (m *modes) SetComputeMode(_ context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	if err := m.fails[id]; err != nil {
		return err
	}
	m.mode[id] = mode
	return nil
}

func TestUnsharedGPUGetsItsModeBack(t *testing.T) {
	node := gputest.Node("t4", 4)
	ids := []gpu.UUID{gputest.GPU(0), gputest.GPU(1), gputest.GPU(2), gputest.GPU(3)}
	m := &modes{mode: map[gpu.UUID]gpu.ComputeMode{}, fails: map[gpu.UUID]error{ids[2]: errors.New("not now")}}
	for _, id := range ids {
		m.mode[id] = gpu.ComputeExclusive
	}
	gone := gpu.UUID("GPU-gone")
	written := 0
	d := &daemon{cfg: Config{Log: slog.New(slog.DiscardHandler)}, claims: newClaims(func() { written++ }, []gpu.UUID{ids[0], ids[1], ids[2], gone}, false)}
	shared := []Spec{{Resource: "nvidia.com/gpu", GPUs: []GPU{{UUID: ids[0]}}}}

	require.False(t, d.restoreUnshared(t.Context(), m, node, shared), "one cannot be set back")
	require.Equal(t, map[gpu.UUID]gpu.ComputeMode{
		ids[0]: gpu.ComputeExclusive, // is shared
		ids[1]: gpu.ComputeDefault,
		ids[2]: gpu.ComputeExclusive,
		ids[3]: gpu.ComputeExclusive, // was never ours
	}, m.mode)
	require.ElementsMatch(t, []gpu.UUID{ids[0], ids[2]}, d.claims.list())
	require.Equal(t, 2, written)

	m.fails = nil
	require.True(t, d.restoreUnshared(t.Context(), m, node, nil))
	require.Empty(t, d.claims.list())
	require.Equal(t, gpu.ComputeDefault, m.mode[ids[2]])
}

// A new process cannot tell which GPU it is that does not answer.
func TestTheClaimOfAGPUThatCannotBeNamedStays(t *testing.T) {
	node := gputest.Node("t4", 2)
	id := node.Devices[1].UUID
	node.Devices[1].UUID, node.Devices[1].Fault = "", gpu.Fault{Reason: gpu.ReasonUnreadable}
	m := &modes{mode: map[gpu.UUID]gpu.ComputeMode{id: gpu.ComputeExclusive}}
	d := &daemon{cfg: Config{Log: slog.New(slog.DiscardHandler)}, claims: newClaims(func() {}, []gpu.UUID{id}, false)}
	require.False(t, d.restoreUnshared(t.Context(), m, node, nil))
	node.Devices[1].UUID, node.Devices[1].Fault = id, gpu.Fault{}
	require.True(t, d.restoreUnshared(t.Context(), m, node, nil))
	require.Equal(t, gpu.ComputeDefault, m.mode[id])
}

func TestAnAdministratorsModeIsKept(t *testing.T) {
	admins, claimed, plain := gputest.GPU(0), gputest.GPU(1), gputest.GPU(2)
	m := &modes{mode: map[gpu.UUID]gpu.ComputeMode{admins: gpu.ComputeExclusive, claimed: gpu.ComputeExclusive}}
	spec := Spec{GPUs: []GPU{{UUID: admins}, {UUID: claimed}, {UUID: plain}}}
	c := &control{spec: spec, modes: m, refused: map[gpu.UUID]string{}, log: slog.New(slog.DiscardHandler)}
	c.claims = newClaims(func() {}, []gpu.UUID{claimed}, false) // by an earlier process, which was killed
	require.Len(t, c.claimGPUs(t.Context()), 3, "MPS works on each")
	c.claimGPUs(t.Context()) // as each check does
	require.ElementsMatch(t, []gpu.UUID{claimed, plain}, c.claims.list())
	c.restoreModes()
	require.Equal(t, map[gpu.UUID]gpu.ComputeMode{admins: gpu.ComputeExclusive, claimed: gpu.ComputeDefault, plain: gpu.ComputeDefault}, m.mode)
	require.Empty(t, c.claims.list())

	d := &daemon{cfg: Config{Log: slog.New(slog.DiscardHandler)}, claims: c.claims}
	require.True(t, d.restoreUnshared(t.Context(), m, gputest.Node("t4", 3), nil))
	require.Equal(t, gpu.ComputeExclusive, m.mode[admins])
}

// A process that was killed while the disk was full has left an empty state.
func TestWhereClaimsAreLostAnExclusiveGPUIsReset(t *testing.T) {
	const boot = "00000000-0000-4000-8000-000000000000"
	id := gputest.GPU(0)
	write := func(content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, nodestate.FileName), []byte(content), 0o644))
		}
	}
	of := func(boot string, info *nodestate.MPSInfo) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, nodestate.Write(dir, nodestate.State{Component: nodestate.MPS, BootID: boot, Phase: nodestate.Ready, MPS: info}))
		}
	}
	for name, c := range map[string]struct {
		leave func(*testing.T, string)
		want  gpu.ComputeMode
	}{
		"none":               {func(*testing.T, string) {}, gpu.ComputeExclusive},
		"of an earlier boot": {of("11111111-0000-4000-8000-000000000000", &nodestate.MPSInfo{Claimed: []gpu.UUID{id}}), gpu.ComputeExclusive},
		"nothing claimed":    {of(boot, &nodestate.MPSInfo{}), gpu.ComputeExclusive},
		"claimed":            {of(boot, &nodestate.MPSInfo{Claimed: []gpu.UUID{id}}), gpu.ComputeDefault},
		"empty":              {write(""), gpu.ComputeDefault},
		"torn":               {write(`{"component":"mps`), gpu.ComputeDefault},
		"no state":           {write("[]"), gpu.ComputeDefault},
		"a folder in its place": {func(t *testing.T, dir string) {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, nodestate.FileName), 0o755))
		}, gpu.ComputeDefault},
		"lost, and then restarted": {of(boot, &nodestate.MPSInfo{ClaimsLost: true}), gpu.ComputeDefault},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{cfg: Config{Log: slog.New(slog.DiscardHandler), HostRoot: t.TempDir(), StateDir: "/run"}, boot: boot}
			c.leave(t, d.stateDir())
			claimed, lost := d.readClaimed()
			d.claims = newClaims(func() {}, claimed, lost)
			require.Equal(t, lost, d.currentState().MPS.ClaimsLost, "the next process learns it")
			m := &modes{mode: map[gpu.UUID]gpu.ComputeMode{id: gpu.ComputeExclusive}}
			ctl := &control{spec: Spec{GPUs: []GPU{{UUID: id}}}, modes: m, claims: d.claims, refused: map[gpu.UUID]string{}, log: d.cfg.Log}
			require.Len(t, ctl.claimGPUs(t.Context()), 1)
			ctl.restoreModes()
			require.Equal(t, c.want, m.mode[id])
		})
	}
}

func TestClaimIsWrittenBeforeTheModeIsSet(t *testing.T) {
	id := gputest.GPU(0)
	m := &modes{mode: map[gpu.UUID]gpu.ComputeMode{}}
	var at []gpu.ComputeMode
	c := &control{spec: Spec{GPUs: []GPU{{UUID: id}}}, modes: m, refused: map[gpu.UUID]string{}, log: slog.New(slog.DiscardHandler)}
	c.claims = newClaims(func() { at = append(at, m.mode[id]) }, nil, false)
	require.Len(t, c.claimGPUs(t.Context()), 1)
	require.Equal(t, []gpu.ComputeMode{gpu.ComputeDefault}, at)
	c.claimGPUs(t.Context())
	require.Len(t, at, 1, "once")
	c.restoreModes()
	require.Empty(t, c.claims.list())
	require.Equal(t, gpu.ComputeDefault, m.mode[id])
}
