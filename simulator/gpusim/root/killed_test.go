package root

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// interrupt returns a step function that fails before the n-th step.
func interrupt(n int) func(string) error {
	return func(string) error {
		if n--; n < 0 {
			return errInterrupted
		}
		return nil
	}
}

var errInterrupted = errors.New("killed")

// TestKilledUpIsRepaired stops gpusim before each of its steps. A root without
// a state never has a libnvidia-ml.so.1, and both up and down put things right.
func TestKilledUpIsRepaired(t *testing.T) {
	first := spec(t, "t4", profile.Options{DriverVersion: "570.1.2"})
	then := spec(t, "a100-80gb", profile.Options{GPUs: 1, DriverVersion: "580.3.4"})
	want := filepath.Join(t.TempDir(), "want")
	require.NoError(t, newRoot(t, want).Up(then))
	wanted := listing(t, want)

	for _, upgrade := range []bool{false, true} {
		for n := 0; ; n++ {
			dir := filepath.Join(t.TempDir(), "root")
			r := newRoot(t, dir)
			if upgrade {
				require.NoError(t, r.Up(first))
			}
			r.step = interrupt(n)
			err := r.Up(then)
			if err == nil {
				require.Greater(t, n, 40)
				break
			}
			require.ErrorIs(t, err, errInterrupted)
			usable(t, dir)
			r.step = nil
			if n%3 == 0 { // down alone puts the others right
				require.NoError(t, r.Up(then))
				require.Equal(t, wanted, listing(t, dir), "step %d", n)
			}
			_, err = r.Down()
			require.NoError(t, err)
			require.NoDirExists(t, dir, "step %d", n)
		}
	}
}

// usable fails if there is a libnvidia-ml.so.1 that a program could not use.
func usable(t *testing.T, dir string) {
	t.Helper()
	lib := filepath.Join(dir, LibDir("amd64"))
	real, err := filepath.EvalSymlinks(filepath.Join(lib, "libnvidia-ml.so.1"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	require.NoError(t, err)
	f, err := elf.Open(real)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	version := strings.TrimPrefix(filepath.Base(real), "libnvidia-ml.so.")
	s, err := state.OpenRead(filepath.Join(lib, "libnvidia-gpusim.so."+version))
	require.NoError(t, err)
	var now state.State
	s.Read(&now)
	require.NoError(t, s.Close())
	require.Equal(t, version, state.Text(now.ModuleVersion[:]))
	for _, g := range now.GPUs() {
		_, err := os.Lstat(filepath.Join(dir, fmt.Sprintf("dev/nvidia%d", g.Minor)))
		require.NoError(t, err)
	}
}

func TestKilledDownIsFinishedByTheNext(t *testing.T) {
	s := spec(t, "t4", profile.Options{})
	for n := 0; ; n += 3 {
		dir := filepath.Join(t.TempDir(), "root")
		r := newRoot(t, dir)
		require.NoError(t, r.Up(s))
		r.step = interrupt(n)
		_, err := r.Down()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, errInterrupted)
		r.step = nil
		_, err = r.Down()
		require.NoError(t, err)
		require.NoDirExists(t, dir)
	}
}

func TestTwoAtOnceTakeTurns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	s := []Spec{spec(t, "t4", profile.Options{DriverVersion: "570.1"}), spec(t, "h100-sxm", profile.Options{DriverVersion: "580.2"})}
	var all sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		all.Go(func() {
			r := newRoot(t, dir)
			if i%4 == 3 {
				_, errs[i] = r.Down()
				return
			}
			errs[i] = r.Up(s[i%2])
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, newRoot(t, dir).Up(s[0]))
	usable(t, dir)
	_, err := newRoot(t, dir).Down()
	require.NoError(t, err)
	require.NoDirExists(t, dir)
}

// TestFaultsWaitForAChangeToEnd opens the state while another gpusim is half-way.
func TestFaultsWaitForAChangeToEnd(t *testing.T) {
	r := newRoot(t, t.TempDir())
	s := spec(t, "t4", profile.Options{})
	require.NoError(t, r.Up(s))
	halfway, goOn := make(chan bool), make(chan bool)
	busy := newRoot(t, r.Dir)
	busy.step = func(what string) error {
		if what == "manifest complete" {
			halfway <- true
			<-goOn
		}
		return nil
	}
	upDone := make(chan error, 1)
	go func() { upDone <- busy.Up(s) }()
	<-halfway
	waiting := make(chan string, 1)
	r.Logf = func(format string, a ...any) { waiting <- fmt.Sprintf(format, a...) }
	opened := make(chan error, 1)
	go func() {
		f, err := r.Open()
		if err == nil {
			err = f.Close()
		}
		opened <- err
	}()
	require.Contains(t, <-waiting, "waiting for pid")
	close(goOn)
	require.NoError(t, <-upDone)
	require.NoError(t, <-opened)
}

func TestKilledChangeIsReported(t *testing.T) {
	r := newRoot(t, t.TempDir())
	s := spec(t, "t4", profile.Options{})
	r.step = interrupt(5)
	require.ErrorIs(t, r.Up(s), errInterrupted)
	_, err := r.Open()
	require.ErrorIs(t, err, errUnfinished)
	require.ErrorContains(t, err, "run gpusim up --root "+r.Dir+" again")
	require.ErrorIs(t, r.Change(func(*state.State) error { return nil }), errUnfinished)
}

func TestWaitingReportsTheHolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	held, err := acquire(path, "gpusim up --profile t4", t.Logf)
	require.NoError(t, err)
	said := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		second, err := acquire(path, "gpusim down", func(format string, a ...any) { said <- fmt.Sprintf(format, a...) })
		if err == nil {
			err = second.release()
		}
		done <- err
	}()
	require.Contains(t, <-said, fmt.Sprintf("waiting for pid %d (gpusim up --profile t4)", os.Getpid()))
	require.NoError(t, held.release())
	require.NoError(t, <-done)
}
