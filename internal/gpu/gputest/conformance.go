package gputest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Fixture is a Source under test with at least two healthy GPUs and no MIG
// devices, and functions to change or break them. A nil function is not supported: the
// cases that need it are skipped, by name.
type Fixture struct {
	Source gpu.Source
	// XID makes the driver report an XID for a whole GPU; MIGXID for one
	// compute instance. ECC makes it report an uncorrectable memory error.
	XID    func(id gpu.UUID, xid uint64)
	MIGXID func(id gpu.UUID, gpuInstance, computeInstance int, xid uint64)
	ECC    func(id gpu.UUID)
	// Remap makes rows of a GPU's memory wait to be remapped, and the driver report it.
	Remap func(id gpu.UUID)
	// Lose holds each way in which the driver can report that a GPU is lost, by
	// name. Restore brings back a lost GPU, and resets one that waits for it.
	Lose    map[string]func(id gpu.UUID)
	Restore func(id gpu.UUID)
	// SetMIG partitions a GPU of 80 GB by the layout ("1g.10gb", …); no
	// layout turns MIG mode off.
	SetMIG func(id gpu.UUID, layout ...string)
	// Broken returns, for one of package gpu's sentinels, the error of a source of the
	// same kind on a node whose driver fails in that way.
	Broken map[error]func() error
}

// Case is one case of the suite.
type Case struct {
	Name string
	Run  func(t *testing.T, f Fixture)
}

// Conformance runs the suite, each case on a Fixture of its own. The case
// closes the Source.
func Conformance(t *testing.T, make func(t *testing.T) Fixture) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, make(t)) })
	}
}

// Cases lists the suite, for callers that run each case in a separate process.
func Cases() []Case {
	cases := slices.Concat(snapshotCases, eventCases, faultCases)
	for i, c := range cases {
		cases[i].Run = func(t *testing.T, f Fixture) {
			t.Cleanup(func() { require.NoError(t, f.Source.Close(), "closing the source") })
			c.Run(t, f)
		}
	}
	return cases
}

// patience bounds the wait of a case for an expected event. It does not measure speed:
// a slow machine must not fail.
const patience = time.Minute

// skipUnless skips the case if the fixture does not support what it needs.
func skipUnless(t *testing.T, has bool, way string) {
	t.Helper()
	if !has {
		t.Skipf("%s: this fixture has no way to cause it", way)
	}
}

// snapshot reads the node and checks the invariants of every Snapshot.
func snapshot(t *testing.T, source gpu.Source) gpu.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := source.Snapshot(ctx)
	require.NoError(t, err)
	return s
}

// pick returns the first two GPUs.
func pick(t *testing.T, s gpu.Snapshot) (a, b gpu.UUID) {
	t.Helper()
	require.GreaterOrEqual(t, len(s.Devices), 2, "the fixture must have two GPUs")
	for _, d := range s.Devices {
		require.Zero(t, d.Fault, "the fixture's GPUs must be healthy at first")
	}
	return s.Devices[0].UUID, s.Devices[1].UUID
}

// pickMIG returns the first GPU that can be divided.
func pickMIG(t *testing.T, s gpu.Snapshot) gpu.UUID {
	t.Helper()
	i := slices.IndexFunc(s.Devices, func(d gpu.Device) bool { return d.MIGCapable })
	require.GreaterOrEqual(t, i, 0, "a fixture with SetMIG must have a GPU that is MIG capable")
	return s.Devices[i].UUID
}

// recorder runs Watch and records its events.
type recorder struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan struct{} // closed when Watch has returned err
	err    error

	mu      sync.Mutex
	events  []gpu.Event
	changed chan struct{} // closed and replaced with each event
	busy    bool          // inside deliver
}

// watch starts Watch and returns once it is ready. during, when not nil, is
// called inside each delivery.
func watch(t *testing.T, source gpu.Source, during func(gpu.Event)) *recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{t: t, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(r.ended)
		r.err = source.Watch(ctx, func() { close(ready) }, func(e gpu.Event) { r.deliver(e, during) })
	}()
	t.Cleanup(func() { _ = r.stop() })
	select {
	case <-ready:
	case <-r.ended:
		t.Fatalf("Watch ended before it was ready: %v", r.err)
	case <-time.After(patience):
		t.Fatal("Watch did not become ready")
	}
	return r
}

func (r *recorder) deliver(e gpu.Event, during func(gpu.Event)) {
	r.mu.Lock()
	if r.busy {
		r.t.Errorf("deliver was called while it was running: events must come one at a time")
	}
	r.busy = true
	r.mu.Unlock()
	if during != nil {
		during(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.ended:
		r.t.Errorf("an event came after Watch had returned: %+v", e)
	default:
	}
	r.busy = false
	r.events = append(r.events, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait returns all events so far once done returns true for them.
func (r *recorder) wait(what string, done func([]gpu.Event) bool) []gpu.Event {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		events, changed := slices.Clone(r.events), r.changed
		r.mu.Unlock()
		if done(events) {
			return events
		}
		select {
		case <-changed:
		case <-r.ended:
			r.t.Fatalf("Watch ended (%v) before %s; events so far: %+v", r.err, what, events)
		case <-deadline:
			r.t.Fatalf("%s did not come; events so far: %+v", what, events)
		}
	}
}

// received returns all events so far.
func (r *recorder) received() []gpu.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// stop ends Watch and returns its error.
func (r *recorder) stop() error {
	r.t.Helper()
	r.cancel()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(patience):
		r.t.Fatal("Watch did not end when its context did")
		return nil
	}
}

// of returns the events of one kind.
func of(kind gpu.EventKind, events []gpu.Event) []gpu.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e gpu.Event) bool { return e.Kind != kind })
}

// xids returns the numbers of the XIDs among the events.
func xids(events []gpu.Event) []uint64 {
	var numbers []uint64
	for _, e := range of(gpu.EventXID, events) {
		numbers = append(numbers, e.XID)
	}
	return numbers
}

// count returns a condition for wait: at least n events of a kind.
func count(kind gpu.EventKind, n int) func([]gpu.Event) bool {
	return func(events []gpu.Event) bool { return len(of(kind, events)) >= n }
}
