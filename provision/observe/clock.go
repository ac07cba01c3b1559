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
	offset time.Duration // wallOffset at the last check
	jumps  []Jump
}

// NewJumpDetector returns a JumpDetector for a clock.
func NewJumpDetector(c Clock) *JumpDetector { return &JumpDetector{clock: c, offset: wallOffset(c)} }

// wallOffset returns the difference between the time of day and the clock that does not jump.
func wallOffset(c Clock) time.Duration { return time.Duration(c.Wall().UnixNano()) - c.Now() }

// Check compares the two clocks and records a jump.
func (d *JumpDetector) Check() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := wallOffset(d.clock)
	if by := now - d.offset; by.Abs() > jumpAbove {
		d.jumps = append(d.jumps, Jump{d.clock.Now(), by})
		d.offset = now
	}
}

// Jumps returns the detected jumps, oldest first.
func (d *JumpDetector) Jumps() []Jump {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Jump(nil), d.jumps...)
}
