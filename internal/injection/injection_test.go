package injection

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const boot = "00000000-0000-4000-8000-000000000000"

func toolkit(t *testing.T, dir string, i *nodestate.Injection, reason string) {
	t.Helper()
	s := nodestate.State{Component: nodestate.Toolkit, BootID: boot, Phase: nodestate.Ready, Message: "the message"}
	if reason != "" {
		s.Phase, s.Reason = nodestate.Waiting, ReasonNoGPU
	}
	s.Toolkit = &nodestate.ToolkitInfo{Injection: i}
	require.NoError(t, nodestate.Write(dir, s))
}

func TestWaitEndsWhenAContainerWouldBeGivenTheGPUs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toolkit")
	progress := make(chan string, 10)
	ended := make(chan error, 1)
	go func() { ended <- Wait(t.Context(), dir, boot, func(s string) { progress <- s }) }()
	require.Contains(t, <-progress, "reported nothing since the node booted")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	toolkit(t, dir, nil, "")
	require.Contains(t, <-progress, "does not inject devices on this node: Ready: the message")
	toolkit(t, dir, &nodestate.Injection{Message: "no NRI socket"}, "")
	require.Contains(t, <-progress, "cannot inject devices: no NRI socket")
	toolkit(t, dir, &nodestate.Injection{Working: true}, "")
	require.Contains(t, <-progress, "nothing to inject yet: Ready: the message")
	toolkit(t, dir, &nodestate.Injection{Working: true, Generation: "a"}, "")
	require.NoError(t, <-ended)
}

func TestANodeWithoutAGPUHasNothingToWaitFor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toolkit")
	for _, i := range []*nodestate.Injection{{Working: true}, {Message: "no NRI socket"}, nil} {
		toolkit(t, dir, i, ReasonNoGPU)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, Wait(ctx, dir, boot, func(s string) {
			t.Error(s)
			cancel()
		}))
		cancel()
	}
}

func TestWaitSaysInItsErrorWhatItWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := Wait(ctx, filepath.Join(t.TempDir(), "toolkit"), boot, func(string) {})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "reported nothing since the node booted")
}

func TestAContainerOfAnEarlierStateIsOutdated(t *testing.T) {
	working := func(generation string) nodestate.State {
		return nodestate.State{Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Working: true, Generation: generation}}}
	}
	for _, c := range []struct {
		name     string
		state    nodestate.State
		err      error
		given    string
		outdated string
	}{
		{"the same", working("a"), nil, "a", ""},
		{"another", working("b"), nil, "a", "an earlier state of the node (a, now b)"},
		{"created before there was anything", working("b"), nil, Expected, "created without the GPUs' devices"},
		{"nothing to give, as before", working(""), nil, Expected, ""},
		{"nothing to give any more", working(""), nil, "a", ""},
		{"does not work now", nodestate.State{Toolkit: &nodestate.ToolkitInfo{Injection: &nodestate.Injection{Generation: "b"}}}, nil, "a", ""},
		{"silent", nodestate.State{}, nil, "a", ""},
		{"unreadable", nodestate.State{}, errors.New("truncated"), "a", ""},
	} {
		err := compare(c.state, c.err, c.given, Whole)
		if c.outdated == "" {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorIs(t, err, ErrOutdated, c.name)
		require.ErrorContains(t, err, c.outdated, c.name)
	}
}

func TestWatchEndsWhenTheToolkitHasMore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toolkit")
	toolkit(t, dir, &nodestate.Injection{Working: true, Generation: "a"}, "")
	ended := make(chan error, 1)
	go func() { ended <- Watch(t.Context(), dir, boot, "a", func() Extent { return Whole }) }()
	toolkit(t, dir, &nodestate.Injection{Working: true, Generation: "b"}, "")
	require.ErrorIs(t, <-ended, ErrOutdated)
}

func TestOneThatExpectsNothingWatchesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Watch(ctx, "/nonexistent", boot, "", func() Extent { return Whole }), context.Canceled)
}
