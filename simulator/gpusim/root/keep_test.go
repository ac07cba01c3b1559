package root

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

func TestAnotherSpecIsAnotherMachine(t *testing.T) {
	r := newRoot(t, t.TempDir())
	holds := func(name string, o profile.Options, change func(*Spec)) bool {
		s := spec(t, name, o)
		change(&s)
		same, err := r.Holds(s)
		require.NoError(t, err)
		return same
	}
	as := func(*Spec) {}
	require.False(t, holds("h100-sxm", profile.Options{GPUs: 4}, as), "there is none yet")
	require.NoError(t, r.Up(spec(t, "h100-sxm", profile.Options{GPUs: 4})))
	partition(t, r, 0, "1g.10gb") // what became of it does not count
	require.True(t, holds("h100-sxm", profile.Options{GPUs: 4}, as))
	require.True(t, holds("h100-sxm", profile.Options{GPUs: 4}, func(s *Spec) { s.State.MajorGpu = 77 }), "that depends on the kernel")
	for _, o := range []profile.Options{{GPUs: 5}, {GPUs: 4, Seed: "n1"}, {GPUs: 4, DriverVersion: "590.1"}, {GPUs: 4, ModuleVersion: "590.1"}} {
		require.False(t, holds("h100-sxm", o, as), "%+v", o)
	}
	require.False(t, holds("a100-80gb", profile.Options{GPUs: 4}, as))
	require.False(t, holds("h100-sxm", profile.Options{GPUs: 4}, func(s *Spec) { s.Arch = "arm64" }))
	require.False(t, holds("h100-sxm", profile.Options{GPUs: 4}, func(s *Spec) {
		require.NoError(t, profile.EnableMIG(&s.State.Gpu[0], layout(t, "1g.10gb")))
	}))
}

// TestRefreshFinishesAnInterruptedChange stops a change of the root before every sixth
// of its steps. The state stays, in its file.
func TestRefreshFinishesAnInterruptedChange(t *testing.T) {
	wanted := spec(t, "h100-sxm", profile.Options{GPUs: 1})
	for n := 0; ; n += 6 {
		r := newRoot(t, filepath.Join(t.TempDir(), "root"))
		require.NoError(t, r.Up(wanted))
		partition(t, r, 0, "3g.40gb")
		f, err := r.Open()
		require.NoError(t, err)
		require.NoError(t, f.Update(func(s *state.State) error {
			return s.CorruptMemory(0, "stuck", 0, 0)
		}))
		was := listing(t, r.Dir)
		r.step = interrupt(n)
		err = r.Change(func(s *state.State) error { return profile.EnableMIG(&s.Gpu[0], layout(t, "1g.10gb,1g.10gb")) })
		done := err == nil
		r.step = nil
		same, err := r.Holds(wanted)
		require.NoError(t, err)
		require.True(t, same)
		require.NoError(t, r.Refresh(wanted))
		var s state.State
		f.Read(&s)
		require.Equal(t, state.MemfaultStuck, int(s.Gpu[0].MemfaultKind), "step %d", n)
		if len(profile.Layout(&s.Gpu[0])) == 1 {
			require.Equal(t, was, listing(t, r.Dir), "step %d", n)
		} else {
			require.Contains(t, listing(t, r.Dir), "gi8/access", "step %d", n)
		}
		require.NoError(t, f.Close())
		if done {
			require.Greater(t, n, 10)
			break
		}
	}
}

func TestRefreshTakesNewLibraries(t *testing.T) {
	r := newRoot(t, t.TempDir())
	s := spec(t, "t4", profile.Options{})
	require.NoError(t, r.Up(s))
	f, err := r.Open()
	require.NoError(t, err)
	defer f.Close()
	newer := t.TempDir()
	require.NoError(t, os.CopyFS(newer, os.DirFS(s.Libraries)))
	require.NoError(t, os.WriteFile(filepath.Join(newer, "nvidia-smi"), []byte("#!/bin/sh\n# newer\n"), 0o755))
	s.Libraries = newer
	require.NoError(t, r.Refresh(s))
	text, err := os.ReadFile(filepath.Join(r.Dir, "usr/bin/nvidia-smi"))
	require.NoError(t, err)
	require.Contains(t, string(text), "newer")
	again, err := r.Open()
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.Emit(state.Event{Type: state.EventXID}))
	require.EqualValues(t, 1, f.EventCount(), "it is the same file")
	// The next change must keep the present content.
	partitioned := r.Change(func(*state.State) error { return nil })
	require.NoError(t, partitioned)
}

func TestRefreshReportsUnusableRoots(t *testing.T) {
	r := newRoot(t, t.TempDir())
	s := spec(t, "t4", profile.Options{})
	require.ErrorIs(t, r.Refresh(s), ErrNone)
	require.NoError(t, r.Retire("1"), "there is nothing to retire")
	require.NoError(t, r.Up(s))
	path, err := r.StatePath()
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 100))
	require.ErrorIs(t, r.Refresh(s), state.ErrInvalid)
}
