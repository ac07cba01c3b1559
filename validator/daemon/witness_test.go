package daemon

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// witness records the calls of its methods.
type witness struct {
	news chan struct{}

	mu     sync.Mutex
	calls  []string
	result *check.Outcome
}

func (w *witness) record(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, what)
}

func (w *witness) Proven(check.Driver)      { w.record("proven") }
func (w *witness) Withdraw()                { w.record("withdrawn") }
func (w *witness) Updates() <-chan struct{} { return w.news }

func (w *witness) Result() *check.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

func (w *witness) takeCalls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.calls
	w.calls = nil
	return all
}

func TestOnlyLayerCUDANotifiesTheWitness(t *testing.T) {
	b := newBench(t)
	w := &witness{}
	b.d.DriverPod = w
	run := func() []string {
		b.d.record(b.d.Road.Run(t.Context(), b.d.Node, nil))
		return w.takeCalls()
	}
	require.Equal(t, []string{"proven"}, run())
	require.Equal(t, []string{"proven"}, run(), "also of what is remembered")
	require.Equal(t, 1, b.count(readiness.CUDA))
	b.set(readiness.Plugin, check.Fail("Broken", "it is", "mend it"))
	require.Equal(t, []string{"proven"}, run())
	b.set(readiness.Driver, check.Fail("Broken", "it is", "mend it"))
	require.Equal(t, []string{"withdrawn"}, run(), "a driver that is gone is proven no more")
}

func TestTheWitnessesResultIsPublished(t *testing.T) {
	b := newBench(t)
	w := &witness{news: make(chan struct{})}
	b.d.DriverPod = w
	var published recorder
	b.d.Publish = published.record
	b.start()
	b.until(readiness.Plugin, proven)
	failed := check.Fail("WorkloadFailed", "it did not pass", "see its log")
	w.mu.Lock()
	w.result = &failed
	w.mu.Unlock()
	w.news <- struct{}{}
	require.Eventually(t, func() bool { return published.last().DriverPod == &failed }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return b.d.Ready() == nil }, time.Minute, time.Millisecond, "no layer depends on it")
}
