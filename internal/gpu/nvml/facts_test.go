package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// Facts that were read while an event made them doubtful are read again.
func TestAnEventDuringAReadingExpiresItsFacts(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 1), Options{})
	begun := false
	f.gpus[0].onName = func() {
		if !begun {
			begun = true
			s.expireFacts()
		}
	}
	for range 2 {
		_, err := s.Snapshot(t.Context())
		require.NoError(t, err)
	}
	f.locked(func() { require.Equal(t, 2, f.gpus[0].counts["nvmlDeviceGetName"]) })
}

// An error of a program tells nothing new of the GPUs, of which a program in a loop can make hundreds a second.
func TestAnErrorOfAProgramExpiresNoFacts(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{ProbeInterval: time.Hour})
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	w := start(t, s)
	read := func(xid uint64) (n int) {
		f.locked(func() { f.gpus[0].counts = nil })
		f.send(gputest.GPU(0), nvml.EventTypeXidCriticalError, xid, none, none)
		w.until(t, gpu.EventXID, gputest.GPU(0))
		_, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		f.locked(func() { n = f.gpus[0].counts["nvmlDeviceGetName"] })
		return n
	}
	require.Zero(t, read(31))
	require.Equal(t, 1, read(74))
}

// Where a driver does not describe MIG devices, one that was created anew in the place of another has its UUID.
func TestAProfileIsReadAgainWhereNothingElseTellsItsChange(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-mig", 1), Options{})
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetAttributes_v2": nvml.ERROR_NOT_SUPPORTED}
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	f.gpus[0].device.MIG[0].Profile = "1c.3g.40gb"
	s.expireFacts()
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1c.3g.40gb", got.Devices[0].MIG[0].Profile)
}

// That GPUs have no common ancestor is known after one question.
func TestLinksThatADriverDoesNotKnowAreAskedForOnce(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	var failures []string
	s.failed = func(code string) { failures = append(failures, code) }
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetTopologyCommonAncestor": nvml.ERROR_NOT_SUPPORTED}
	for range 3 {
		got, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, gpu.LinkUnknown, got.Links[0].Kind)
	}
	require.Equal(t, 1, f.topologyCallCount)
	require.Empty(t, failures)
}
