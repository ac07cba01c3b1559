package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

func (b *bench) state() nodestate.State {
	b.t.Helper()
	s, err := nodestate.ReadBoot(b.d.Node.StatePath(nodestate.Validator), boot)
	require.NoError(b.t, err)
	return s
}

// again starts the next process on the same node.
func (b *bench) again() {
	c := b.d.Config
	c.Log, c.Metrics = slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry())
	b.d = New(c)
}

func outcomes(last check.Outcome) []check.Outcome {
	return []check.Outcome{check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05"}}), last}
}

func TestEveryStateHasTheNodesChoice(t *testing.T) {
	b := newBench(t)
	choice := map[string]string{nodestate.ConfigLabel: "shared"}
	require.NoError(t, b.d.SetNodeLabels(choice), "before any proof")
	s := b.state()
	require.Equal(t, choice, s.Validator.NodeLabels)
	require.Equal(t, nodestate.Waiting, s.Phase)

	for _, last := range []check.Outcome{
		check.NewPass(readiness.Proof{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05"}}),
		check.Fail("Broken", "it is", "mend it"),
	} {
		last.Layer = readiness.Toolkit
		require.NoError(t, b.d.writeState(outcomes(last)))
		require.Equal(t, choice, b.state().Validator.NodeLabels)
	}
	require.Equal(t, nodestate.Failed, b.state().Phase)

	require.NoError(t, b.d.SetNodeLabels(map[string]string{}))
	s = b.state()
	require.NotNil(t, s.Validator.NodeLabels, "the Node was read, and chooses nothing")
	require.Empty(t, s.Validator.NodeLabels)
	require.Equal(t, nodestate.Failed, s.Phase)

	require.NoError(t, b.d.SetNodeLabels(choice))
	b.d.Retire("InjectionOutdated", "the driver is another")
	s = b.state()
	require.Equal(t, choice, s.Validator.NodeLabels)
	require.EqualValues(t, "InjectionOutdated", s.Reason)
}

func TestTheNextProcessKeepsTheNodesChoice(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.d.writeState(outcomes(check.NewPass(readiness.Proof{}))))
	require.Nil(t, b.state().Validator, "the Node was not read")
	choice := map[string]string{nodestate.ConfigLabel: "shared"}
	require.NoError(t, b.d.SetNodeLabels(choice))
	b.again()
	require.NoError(t, b.d.writeState(outcomes(check.NewPass(readiness.Proof{}))))
	require.Equal(t, choice, b.state().Validator.NodeLabels)

	// A state of another boot does not count.
	s := b.state()
	s.BootID = "11111111-0000-4000-8000-000000000000"
	require.NoError(t, nodestate.Write(b.d.Node.StatePath(nodestate.Validator), s))
	b.again()
	require.NoError(t, b.d.writeState(outcomes(check.NewPass(readiness.Proof{}))))
	require.Nil(t, b.state().Validator)
}

func TestAnUnwritableChoiceIsAnErrorUntilWritten(t *testing.T) {
	b := newBench(t)
	dir := b.d.Node.StatePath(nodestate.Validator)
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // no folder
	choice := map[string]string{nodestate.ConfigLabel: "shared"}
	require.Error(t, b.d.SetNodeLabels(choice))
	require.NoError(t, os.Remove(dir))
	require.NoError(t, b.d.SetNodeLabels(choice))
	require.Equal(t, choice, b.state().Validator.NodeLabels)
}
