package daemon

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// fakeDriverPod records the calls of its methods.
type fakeDriverPod struct {
	news chan struct{}

	mu     sync.Mutex
	calls  []string
	result *check.Outcome
}

func (w *fakeDriverPod) record(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, what)
}

func (w *fakeDriverPod) Proven(check.Driver)      { w.record("proven") }
func (w *fakeDriverPod) Withdraw()                { w.record("withdrawn") }
func (w *fakeDriverPod) Updates() <-chan struct{} { return w.news }

func (w *fakeDriverPod) Result() *check.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

func (w *fakeDriverPod) takeCalls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.calls
	w.calls = nil
	return all
}

func TestOnlyLayerCUDANotifiesTheDriverPod(t *testing.T) {
	b := newBench(t)
	w := &fakeDriverPod{}
	b.d.DriverPod = w
	run := func() []string {
		b.d.record(b.d.Pipeline.Run(t.Context(), b.d.Node, nil))
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

func TestTheDriverPodsResultIsPublished(t *testing.T) {
	b := newBench(t)
	w := &fakeDriverPod{news: make(chan struct{})}
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
