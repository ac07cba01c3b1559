package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// bridge is a layer whose component is replaced; the test sets the outcome of its check.
type bridge struct {
	t       *testing.T
	d       *Daemon
	outcome check.Outcome
	driver  check.Driver
	run     check.LayerCheck
}

func newBridge(t *testing.T, dir string) *bridge {
	t.Helper()
	b := &bridge{t: t, d: &Daemon{proofs: NewProofWriter(dir, boot)}, driver: check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}}}
	b.restart()
	return b
}

// restart begins a new validator.
func (b *bridge) restart() {
	b.run = b.d.bridgeRestart(readiness.Plugin, func(context.Context, check.Node, check.Driver) check.Outcome { return b.outcome })
}

func (b *bridge) runPasses() {
	b.outcome = check.NewPass(readiness.Proof{Driver: &b.driver.Info, GPUs: 8, Summary: "8 allocatable"})
}

func (b *bridge) fails(away check.Absence) {
	b.outcome = check.Fail("DevicePluginSilent", "the device plugin was stopped", "start it")
	b.outcome.Away = away
}

func (b *bridge) check(kind check.Kind) check.Outcome {
	b.t.Helper()
	o := b.run(b.t.Context(), check.Node{}, b.driver)
	require.Equal(b.t, kind, o.Kind, "%+v", o.NotReady)
	return o
}

func TestAReplacedComponentIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridge(t, t.TempDir())
		b.fails(check.Stopped)
		b.check(check.Failed) // it has not passed before
		b.runPasses()
		b.check(check.Passed)
		b.fails(check.Stopped)
		o := b.check(check.Passed)
		require.Equal(t, "8 allocatable", o.Proof.Summary)
		require.Equal(t, []string{"the device plugin was stopped; it has 30s to come back"}, o.Notes)
		require.True(t, o.Retry, "no event tells that the time is over")
		time.Sleep(20 * time.Second)
		b.fails(check.Waiting) // its successor registers
		b.check(check.Passed)
		time.Sleep(9 * time.Second)
		b.check(check.Passed)
		b.runPasses()
		require.Empty(t, b.check(check.Passed).Notes)

		b.fails(check.Stopped) // the next time it does not come back
		b.check(check.Passed)
		time.Sleep(restartGrace)
		b.check(check.Failed)
		b.check(check.Failed)
	})
}

func TestOnlyAReplacementIsBridged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridge(t, t.TempDir())
		b.runPasses()
		b.check(check.Passed)
		b.fails(check.Waiting) // it runs, and the kubelet does not
		b.check(check.Failed)
		b.runPasses()
		b.check(check.Passed)
		b.fails(check.Stopped)
		b.check(check.Passed)
		b.fails(check.Present) // its successor refuses its configuration
		b.check(check.Failed)
		b.fails(check.Stopped)
		b.check(check.Failed)
		b.runPasses()
		b.check(check.Passed)
		b.driver.Info.Version = "590.10.01"
		b.fails(check.Stopped)
		b.check(check.Failed)
	})
}

func TestAValidatorThatIsReplacedTooBridges(t *testing.T) {
	dir := t.TempDir()
	b := newBridge(t, dir)
	require.NoError(t, readiness.WriteReady(dir, readiness.Plugin, readiness.Proof{BootID: boot, Driver: &b.driver.Info, GPUs: 8, Summary: "8 allocatable"}))
	b.restart()
	b.fails(check.Waiting)
	require.Equal(t, 8, b.check(check.Passed).Proof.GPUs)
	b.restart()
	b.driver.Info.Version = "590.10.01"
	b.check(check.Failed)
	require.NoError(t, readiness.WriteReady(dir, readiness.Plugin, readiness.Proof{BootID: "11111111-0000-4000-8000-000000000000", Driver: &b.driver.Info}))
	b.restart()
	b.check(check.Failed)
}
