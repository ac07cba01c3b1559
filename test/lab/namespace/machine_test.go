package namespace

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// silent returns a machine that has reported no event.
func silent(t *testing.T, printed string) *Machine {
	log := filepath.Join(t.TempDir(), "kubelet.log")
	require.NoError(t, os.WriteFile(log, []byte(printed), 0o600))
	return &Machine{
		name: "n1", spec: Spec{Programs: []Program{{Name: "kubelet", Log: log}}},
		ended: make(chan struct{}), programs: map[string]history{}, changed: make(chan struct{}),
	}
}

func TestAProgramThatEndedIsExplainedByItsLog(t *testing.T) {
	m := silent(t, "one\ntwo\n")
	require.NoError(t, m.CheckRunning("kubelet"))
	m.record(Event{Program: "kubelet", Kind: Started})
	m.record(Event{Program: "kubelet", Kind: Exited, Message: "exit status 1"})
	err := m.CheckRunning("kubelet")
	require.ErrorContains(t, err, "kubelet on n1: it ended: exit status 1; the last of "+m.Log("kubelet")+":\n  one\n  two")
	require.ErrorContains(t, silent(t, "").WithLog("kubelet", err), "it printed nothing")
}

func TestWaitersGetTheMachinesError(t *testing.T) {
	m := silent(t, "")
	booted := make(chan error)
	go func() { booted <- m.WaitBooted(t.Context()) }()
	m.record(Event{Kind: Failed, Message: "mount /dev: no"})
	require.EqualError(t, <-booted, "mount /dev: no")
}

func TestACrashLoopEndsTheWait(t *testing.T) {
	m := silent(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.WaitCrashing(ctx, "kubelet"), "nobody waits any longer")

	crashing := make(chan error, 1)
	go func() { crashing <- m.WaitCrashing(t.Context(), "kubelet") }()
	for {
		select {
		case err := <-crashing:
			require.ErrorContains(t, err, "it ends again and again")
			return
		default:
			m.record(Event{Program: "kubelet", Kind: Exited, Message: "exit status 1"})
		}
	}
}

func TestTheTailOfALogIsItsLastLines(t *testing.T) {
	log := silent(t, "one\ntwo\n").Log("kubelet")
	require.Equal(t, "  one\n  two", tail(log, 5))
	require.Equal(t, "  two", tail(log, 1))
	require.Empty(t, tail(log+".none", 1))
}
