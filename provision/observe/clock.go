package observe

import (
	"sync"
	"time"
)

// Clock is the clock of a measurement.
type Clock interface {
	// Now returns the time since the measurement began. It never jumps.
	Now() time.Duration
	// Wall returns the time of day, which may be set meanwhile.
	Wall() time.Time
}

// SystemClock returns the machine's clock.
func SystemClock() Clock { return systemClock{time.Now()} }

type systemClock struct{ began time.Time }

func (c systemClock) Now() time.Duration { return time.Since(c.began) } // of the monotonic clock
func (c systemClock) Wall() time.Time    { return time.Now().Round(0) } // without the monotonic reading

// Jump is a moment at which the time of day was set, or the machine slept.
type Jump struct {
	At time.Duration // on the clock that does not jump
	By time.Duration // how far the time of day moved
}

// jumpAbove bounds the drift of the time of day between two checks.
const jumpAbove = 500 * time.Millisecond

// JumpDetector detects jumps of the time of day. Its methods may be called concurrently.
type JumpDetector struct {
	clock  Clock
	mu     sync.Mutex
	offset time.Duration
	jumps  []Jump
}

// NewJumpDetector returns a Watch of a clock.
func NewJumpDetector(c Clock) *JumpDetector { return &JumpDetector{clock: c, offset: offset(c)} }

// offset returns how far the time of day is ahead of the clock that does not jump.
func offset(c Clock) time.Duration { return time.Duration(c.Wall().UnixNano()) - c.Now() }

// Check compares the two clocks and records a jump.
func (w *JumpDetector) Check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := offset(w.clock)
	if by := now - w.offset; by.Abs() > jumpAbove {
		w.jumps = append(w.jumps, Jump{w.clock.Now(), by})
		w.offset = now
	}
}

// Jumps returns the detected jumps, oldest first.
func (w *JumpDetector) Jumps() []Jump {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Jump(nil), w.jumps...)
}
